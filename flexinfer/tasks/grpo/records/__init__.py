"""What train-grpo measures and writes: records of steps, files, charts, the end on stdout."""
