"""`--dry-run`: what a run would do and need, known before weights are loaded; see run.py."""
