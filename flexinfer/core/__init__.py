"""Scheduling without tensors: sequences, pages and what the next step computes."""
