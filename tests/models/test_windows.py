"""Sliding windows: how far a layer sees, and that one token more or less is noticed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flexinfer.attention.spec import LayerSpec
from flexinfer.models.catalog import build_decoder
from flexinfer.models.decoder import Decoder
from tests.support.dense import run_packed
from tests.support.oracle import hf_logits
from tests.support.prompts import distance, prompts_of
from tests.support.tiny import tiny_gemma4, tiny_qwen3

WINDOW = 8


@dataclass(frozen=True)
class Slack:
    """An Attend whose windows are off by `tokens`."""

    inner: object
    tokens: int

    def __call__(self, spec: LayerSpec) -> object:
        """Bind a layer with the wrong window."""
        wrong = None if spec.window is None else spec.window + self.tokens
        return self.inner(replace(spec, window=wrong))

    def kept(self) -> Slack:
        """Narrow the inner one."""
        return Slack(self.inner.kept(), self.tokens)


def loosened(decoder: Decoder, tokens: int) -> Decoder:
    """Return the decoder as a function over wrong windows."""
    return lambda ids, at, attend, keep: decoder(ids, at, Slack(attend, tokens), keep)


def only_active(layer: int) -> PreTrainedModel:
    """Build Gemma with the attention output of every layer but one zeroed."""
    model = tiny_gemma4()
    with torch.no_grad():
        for index, block in enumerate(model.model.layers):
            if index != layer:
                block.self_attn.o_proj.weight.zero_()
    return model


def changed_rows(decoder: Decoder) -> Tensor:
    """Return, for each of 30 positions, whether its logits depend on token 0."""
    (prompt,) = prompts_of(30)
    (one,) = run_packed(decoder, [prompt])
    (other,) = run_packed(decoder, [[prompt[0] + 1, *prompt[1:]]])
    return (one != other).any(-1)


@pytest.mark.parametrize("layer", [0, 1, 3, 4, 6])
def test_one_sliding_layer_sees_exactly_its_window(layer: int) -> None:
    decoder = build_decoder(only_active(layer))
    assert changed_rows(decoder).tolist() == [True] * WINDOW + [False] * (30 - WINDOW)


def test_one_full_layer_sees_everything() -> None:
    assert changed_rows(build_decoder(only_active(2))).all()


def test_a_wider_window_reaches_further() -> None:
    decoder = loosened(build_decoder(only_active(3)), 1)
    assert changed_rows(decoder).tolist() == [True] * (WINDOW + 1) + [False] * (29 - WINDOW)


@pytest.mark.parametrize("tokens", [-1, 1])
@pytest.mark.parametrize("family", ["gemma4", "qwen3"])
def test_a_window_off_by_one_is_not_the_oracles(family: str, tokens: int) -> None:
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
    model = tiny_gemma4() if family == "gemma4" else tiny_qwen3(**windows)
    prompts = prompts_of(30, WINDOW - 1)
    expected = [hf_logits(model, prompt) for prompt in prompts]
    long, short = run_packed(loosened(build_decoder(model), tokens), prompts)
    assert distance([long], expected[:1]) > 0.1
    assert distance([short], expected[1:]) < 1e-4
