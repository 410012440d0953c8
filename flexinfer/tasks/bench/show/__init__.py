"""What is left of a run: tables, charts, the report, files."""
