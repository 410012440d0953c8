"""What the Hugging Face module says of an engine's tokens: bench and verify-drift ask it."""
