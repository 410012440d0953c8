"""Charts of a report, as PNG or as one HTML file: what `--report` of several commands writes."""
