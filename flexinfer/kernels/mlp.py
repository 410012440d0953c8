"""The gated activation of an MLP: act(gate) * up, rounded where Hugging Face rounds."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh")
"""The activation names, as configs spell them, that `activate` knows."""


def activate(x: Tensor, name: str) -> Tensor:
    """Apply the activation that Hugging Face calls `name`; it must be one of ACTIVATIONS."""
    assert name in ACTIVATIONS, name
    if name in ("silu", "swish"):
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if name == "gelu_pytorch_tanh" else "none")


def gated(gate: Tensor, up: Tensor, name: str) -> Tensor:
    """Return act(gate) * up, elementwise, in the dtype of the inputs."""
    return activate(gate, name) * up
