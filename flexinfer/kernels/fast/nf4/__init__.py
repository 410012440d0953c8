"""Products with packed NF4 weights."""
