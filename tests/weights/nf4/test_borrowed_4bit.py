"""A borrowed 4-bit weight: its scales are no parameters, and are watched like ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flexinfer.errors import StaleWeights
from flexinfer.weights.borrowed import Borrowed

bnb: Any = pytest.importorskip("bitsandbytes")


def model(nested: bool) -> Any:
    options = {"compress_statistics": nested, "quant_type": "nf4"}
    layers = [bnb.nn.Linear4bit(256, 256, bias=False, **options) for _ in range(2)]
    return nn.Sequential(*layers).to("cpu").requires_grad_(False)


def another_state(weight: Any) -> None:
    weight.quant_state = bnb.nn.Params4bit(
        torch.ones(256, 256), quant_type="nf4", compress_statistics=weight.quant_state.nested
    ).to("cpu").quant_state  # fmt: skip


def other_scales(weight: Any) -> None:
    weight.quant_state.absmax = weight.quant_state.absmax.clone()


def moved_scales(weight: Any) -> None:
    weight.quant_state.absmax.data = weight.quant_state.absmax.data.clone()


def other_inner(weight: Any) -> None:
    weight.quant_state.state2.absmax = weight.quant_state.state2.absmax.clone()


def other_offset(weight: Any) -> None:
    weight.quant_state.offset = weight.quant_state.offset.clone()


PLAIN = (another_state, other_scales, moved_scales)
CHANGED = {other_inner: "state2.absmax", other_offset: "offset"}


@pytest.mark.parametrize(
    ("nested", "change"),
    [*((False, c) for c in PLAIN), *((True, c) for c in (*PLAIN, other_inner, other_offset))],
)
def test_scales_that_move_are_seen(nested: bool, change: Callable[[Any], None]) -> None:
    module = model(nested)
    held = Borrowed(module)
    held.check()
    change(module[1].weight)
    for _ in range(2):
        with pytest.raises(StaleWeights, match=rf"1\.weight's {CHANGED.get(change, 'absmax')} no"):
            held.check()


def test_a_forward_moves_nothing() -> None:
    module = model(nested=True)
    held = Borrowed(module)
    with torch.no_grad():
        module.train()(torch.ones(1, 256))
    held.check()
