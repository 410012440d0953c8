"""What several tests need: tiny checkpoints, the Hugging Face oracle, fakes."""
