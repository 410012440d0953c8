"""Gated activations are Hugging Face's, by the names that configs use."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from flexinfer.kernels.mlp import ACTIVATIONS, activate, gated

X = torch.linspace(-12, 12, 97)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_known_names(name: str, dtype: torch.dtype) -> None:
    gate, up = X.to(dtype), X.flip(0).to(dtype)
    assert torch.equal(activate(gate, name), ACT2FN[name](gate))
    assert torch.equal(gated(gate, up, name), ACT2FN[name](gate) * up)


def test_the_two_gelus_differ() -> None:
    assert not torch.equal(activate(X, "gelu"), activate(X, "gelu_pytorch_tanh"))


def test_an_unknown_name_is_our_fault() -> None:
    with pytest.raises(AssertionError, match="relu2"):
        activate(X, "relu2")
