"""The sampler in two kernels draws what the plain one draws, and feeds it back to the slots."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexinfer.config import SCALES, SamplingParams
from flexinfer.engine.steps.programs import sample_rows
from flexinfer.engine.steps.state import SlotState
from flexinfer.kernels.fast.sampler import CHUNK, sample_and_feed
from flexinfer.kernels.sampler import SamplerKind
from tests.support.triton_interpreter import DTYPES, close, normal

SLOTS = torch.tensor([4, 0, 2, 1, 5])
"""The pad slot is 5, the last one."""
POSITIONS = torch.tensor([11, 0, 3, 700, 0])
TEMPERATURES = (0.0, 1.0, 0.6, 3.0, 0.01)
SEEDS = (0, 7, 2**63 - 1, 123_456_789_012, 5)
VOCABS = (40, CHUNK + 1, 2 * CHUNK)
vocabs = pytest.mark.parametrize("vocab", VOCABS)
kinds = pytest.mark.parametrize("kind", [SamplerKind.GREEDY, SamplerKind.RANDOM])


def state(vocab: int, temperatures: tuple[float, ...] = TEMPERATURES) -> SlotState:
    """Return five slots and the pad slot, each sampled in its own way."""
    held = SlotState(5, vocab, torch.device("cpu"))
    held.admit(range(5), [SamplingParams(temperature=t) for t in temperatures], SEEDS)
    held.tensors.tokens.fill_(-7)
    held.tensors.positions.fill_(-7)
    held.tensors.positions[5] = 0
    return held


def check(
    logits: Tensor, kind: SamplerKind, temperatures: tuple[float, ...] = TEMPERATURES
) -> Tensor:
    """Fail unless both samplers leave the same behind; return the tokens."""
    found, expected = (state(logits.shape[1], temperatures) for _ in range(2))
    packed = sample_and_feed(logits, SLOTS, POSITIONS, found.tensors, kind)
    plain = sample_rows(logits, expected.tensors, None, SLOTS, POSITIONS + 1, kind)
    assert packed.dtype == torch.int32
    assert torch.equal(packed[0], plain[0])
    close(packed[1:].view(torch.float32), plain[1:].view(torch.float32), 1e-4)
    for a, b in zip(found.tensors, expected.tensors, strict=True):
        assert torch.equal(a, b)
    assert found.tensors.positions[5] == 0
    return packed[0]


@vocabs
@kinds
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_tokens(dtype: torch.dtype, kind: SamplerKind, vocab: int) -> None:
    rows = [check(normal(5, vocab, seed=s, dtype=dtype) * 3, kind) for s in range(2)]
    assert len(torch.stack(rows).unique()) > 7


@vocabs
@kinds
def test_the_bounds_of_temperature_keep_everything_finite(kind: SamplerKind, vocab: int) -> None:
    logits = normal(5, vocab).clamp(-1, 1) * 1e4
    low, high = SCALES
    held = state(vocab, (low, high, 0.0, high, low))
    packed = sample_and_feed(logits, SLOTS, POSITIONS, held.tensors, kind)
    assert packed[1:].view(torch.float32).isfinite().all()
    plain = sample_rows(logits, held.tensors, None, SLOTS, POSITIONS + 1, kind)
    assert torch.equal(packed[0], plain[0])


@vocabs
def test_ties_go_to_the_first(vocab: int) -> None:
    logits = normal(5, vocab).round().clamp(max=1)
    tokens = check(logits, SamplerKind.GREEDY)
    assert torch.equal(tokens.long(), (logits == 1).long().argmax(1))
    last = torch.zeros(5, vocab)
    last[:, -1] = last[:, -2] = 5.0
    assert check(last, SamplerKind.GREEDY).tolist() == [vocab - 2] * 5


@vocabs
@kinds
def test_one_token_certain(kind: SamplerKind, vocab: int) -> None:
    """Everything else is impossible, whole chunks of the vocabulary too."""
    logits = torch.full((5, vocab), -torch.inf)
    logits[:, vocab - 3] = 2.0
    assert check(logits, kind).tolist() == [vocab - 3] * 5


@vocabs
@kinds
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_show(value: float, kind: SamplerKind, vocab: int) -> None:
    """By a log-probability that is none; the other rows are as if alone."""
    logits = normal(5, vocab)
    expected = sample_and_feed(logits, SLOTS, POSITIONS, state(vocab).tensors, kind)
    logits[1, vocab // 2] = value
    logits[3] = -torch.inf
    found = sample_and_feed(logits, SLOTS, POSITIONS, state(vocab).tensors, kind)
    kept = torch.tensor([0, 2, 4])
    assert torch.equal(found[:, kept], expected[:, kept])
    assert not found[1:].view(torch.float32)[:, [1, 3]].isfinite().any()
    assert ((found[0] >= 0) & (found[0] < vocab)).all()
