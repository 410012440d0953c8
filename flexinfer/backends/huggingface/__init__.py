"""Back ends that run the Hugging Face module itself: generate, and continuous batching."""
