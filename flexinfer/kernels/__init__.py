"""One operation a file: the plain PyTorch form, which is the oracle."""
