"""The fast path: the engine's operations as Triton kernels, each beside its plain form's name."""
