"""`generate`: from prompts to records, each in a file of its own step; `run.py` is the way in."""
