"""Rows held against something: the Hugging Face module, each other, an earlier run."""
