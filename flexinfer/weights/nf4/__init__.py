"""4-bit weights: read as they are stored, or quantised while they are loaded."""
