"""vLLM: an engine with weights of its own, loaded by name or copied from a trainer's module."""
