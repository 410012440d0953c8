"""TRL's trainer as train-grpo uses it: corrected, interruptible, without needless work."""
