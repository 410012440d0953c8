"""The search for tiles on a device: what is worth a trial, what a trial runs, and the race."""
