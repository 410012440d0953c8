"""`train-grpo`: GRPO on TRL and PEFT, rolled out from the trainer's own weights."""
