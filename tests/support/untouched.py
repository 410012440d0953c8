"""Everything of a trainer's module that a borrower could change, as one comparable value."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from transformers import PreTrainedModel


def digest(tensor: torch.Tensor) -> str:
    """Return the sha256 of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def describe(model: PreTrainedModel) -> dict[str, Any]:
    """Describe weights, addresses, flags, attributes, configs and the random states of torch."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    modules = dict(model.named_modules())
    return {
        "state": {name: digest(tensor) for name, tensor in model.state_dict().items()},
        "tensors": {
            name: (t.data_ptr(), t.requires_grad, t.grad is None, t._version, t.dtype, t.shape)
            for name, t in tensors.items()
        },
        "modes": {name: module.training for name, module in modules.items()},
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "classes": {name: (type(m), m.forward.__func__) for name, m in modules.items()},
        "hooks": {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in
                  modules.items()},
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "use_cache": model.config.use_cache,
        "checkpointing": model.is_gradient_checkpointing,
        "generation_config": model.generation_config.to_dict() if model.generation_config else None,
        "random": torch.get_rng_state().tolist(),
        "cuda_random": [s.tolist() for s in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available() else None,
        "defaults": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()),
    }  # fmt: skip
