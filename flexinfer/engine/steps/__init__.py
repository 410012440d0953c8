"""The loop of a call, and what a step of it is made of: batches, programs, graphs."""
