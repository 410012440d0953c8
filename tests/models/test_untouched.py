"""The module is only read: same state, modes, gradients, random state and forward afterwards."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

from flexinfer.models.catalog import build_decoder
from tests.support.dense import run_packed
from tests.support.oracle import hf_logits
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES


def fingerprint(model: nn.Module) -> tuple[object, ...]:
    """Describe everything that a borrower could change."""
    state = {
        name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for name, tensor in model.state_dict().items()
    }
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return (
        state,
        {name: (t.data_ptr(), t.requires_grad, t.grad is None, t._version) for name, t in tensors},
        {name: (module.training, sorted(vars(module))) for name, module in model.named_modules()},
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_building_and_running_leave_the_module_alone(family: str) -> None:
    model = FAMILIES[family]()
    model.train()
    model.model.layers[1].eval()
    model.model.embed_tokens.weight.requires_grad_(False)
    (prompt,) = prompts_of(20)
    logits, before = hf_logits(model, prompt), fingerprint(model)
    run_packed(build_decoder(model), [prompt], chunk=6)
    assert fingerprint(model) == before
    assert torch.equal(hf_logits(model, prompt), logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_asks_for_gradients(family: str) -> None:
    model = FAMILIES[family]()
    tokens = torch.arange(4)
    decoder = build_decoder(model)
    logits = decoder(tokens, tokens, Zeros())
    assert not logits.requires_grad


class Zeros:
    """An Attend that returns zeros, so that nothing but the walker can ask for a gradient."""

    def __call__(self, spec: object) -> object:
        """Return the same hole for every layer."""
        return self.Layer()

    class Layer:
        """A hole that keeps nothing and returns zeros."""

        def store(self, k_TGD: torch.Tensor, v_TGD: torch.Tensor) -> None:
            """Forget."""

        def __call__(self, q_THD: torch.Tensor) -> torch.Tensor:
            """Return zeros."""
            return torch.zeros_like(q_THD)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_edit_by_the_trainer_is_seen(family: str) -> None:
    model = FAMILIES[family]()
    decoder = build_decoder(model)
    (prompt,) = prompts_of(20)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    (found,) = run_packed(decoder, [prompt])
    assert torch.equal(found, hf_logits(model, prompt))
