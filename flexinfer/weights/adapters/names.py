"""Names of adapted modules, freed from what PEFT and wrappers put around them."""

from __future__ import annotations

WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts that torch.compile, FSDP and activation checkpointing put anywhere into a name."""

ROOTS = frozenset({"module", "base_model", "model", "language_model"})
"""Parts before the text model's root: of DDP, PEFT, a causal and a multimodal model."""

UNSERVED = frozenset({"lm_head", "embed_tokens", "embed_tokens_per_layer"})
"""Modules that change the text and that no adapter can: often tied, and never copied."""


def trained_name(name: str) -> str:
    """Return a module's name in the model that was given to PEFT: what PEFT's patterns match."""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while len(parts) > 2 and (parts[0] == "module" or parts[:2] == ["base_model", "model"]):
        parts = parts[1 if parts[0] == "module" else 2 :]
    return ".".join(parts)


def relative_name(name: str) -> str:
    """Return a module's name relative to the text model's root, "layers.0.mlp.up_proj"."""
    parts = trained_name(name).split(".")
    while len(parts) > 1 and parts[0] in ROOTS:
        parts = parts[1:]
    return ".".join(parts)


def some(names: list[str], most: int = 3) -> str:
    """Return the first names as a list in words."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
