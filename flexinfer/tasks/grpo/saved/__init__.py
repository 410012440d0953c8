"""The output folder: one run at a time, checkpoints, and whether they are whole."""
