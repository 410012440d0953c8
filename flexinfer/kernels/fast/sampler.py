"""Sampling in two kernels: chunks of the vocabulary in parallel, then one block a row.

The first reads the logits once, at the speed of memory; the second chooses a chunk by its log-sum
and a token in it (kernels/sampler.py), by the same function of (seed, position, index) as the plain
form, so both draw the same samples; truncated sampling stays with the plain form. The second kernel
feeds the token back to its slot, so nothing else runs between two decode steps.
Shape letters: B rows, V vocabulary, C chunks, S slots.
"""

from __future__ import annotations

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next
from flexinfer.kernels.sampler import CHUNK, SamplerKind


class SlotState(Protocol):
    """What is kept for each slot (the pad slot last): int64 and, for `temperature`, fp32 [S]."""

    @property
    def tokens(self) -> Tensor:
        """Token to be fed next."""
        ...

    @property
    def positions(self) -> Tensor:
        """Position of that token."""
        ...

    @property
    def temperature(self) -> Tensor:
        """Temperature, 0 for greedy."""
        ...

    @property
    def seed(self) -> Tensor:
        """Seed of the sample."""
        ...


@triton.jit
def _mix(x):
    """The finaliser of MurmurHash3 on wrapping int32."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * -2048144789
    x = (x ^ ((x >> 13) & 0x7FFFF)) * -1028477387
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def _gumbel(seed, position, index):
    """Gumbel noise of one row at int32 `index`; log1p by its series where 1 - u would round."""
    state = seed * 6364136223846793005 + position * -7046029254386353131 + 1442695040888963407
    state = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    state = (state ^ ((state >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    state = state ^ ((state >> 31) & 0x1FFFFFFFF)
    low = (state & 0xFFFFFFFF).to(tl.int32)
    high = ((state >> 32) & 0xFFFFFFFF).to(tl.int32)
    bits = _mix(_mix((index * -1640531527) ^ low) ^ high)
    u = (bits & 0x7FFFFFFF).to(tl.float32) * 4.656612873077393e-10 + 2.3283064365386963e-10
    u = tl.minimum(u, 0.999999940395355)
    exponential = tl.where(u < 0.000244140625, u + 0.5 * u * u, -tl.log(1.0 - u))
    return -tl.log(exponential)


@triton.jit
def _scores(logits, b, index, heat, V: tl.constexpr):
    """Return the fp32 scores of a row at `index`, over the temperature; -inf beyond the end."""
    score = tl.load(logits + b * V + index, mask=index < V, other=-float("inf")).to(tl.float32)
    return score * (1.0 / tl.where(heat > 0, heat, 1.0))


@triton.jit
def chunk_kernel(
    logits, slots, temperature, tops, sums,
    V: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Reduce one chunk of one row to its maximum and its sum of exponentials; grid (C, B)."""
    c = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    await_inputs(PDL)
    release_next(PDL)
    heat = tl.load(temperature + tl.load(slots + b))
    score = _scores(logits, b, c * BLOCK + tl.arange(0, BLOCK), heat, V)
    top = tl.max(score, 0)
    tl.store(tops + b * C + c, top)
    # a chunk may consist of impossible tokens, and -inf - -inf is NaN
    total = tl.sum(tl.exp(score - tl.where(top == -float("inf"), 0.0, top)), 0)
    tl.store(sums + b * C + c, total)


@triton.jit
def _first(ranked, index, valid, last):
    """Return the first index of the greatest value; `last` where nothing compares (NaN)."""
    best = tl.max(tl.where(valid, ranked, -float("inf")), 0)
    return tl.min(tl.where((ranked == best) & valid, index, last), 0)


@triton.jit(do_not_specialize=["rows", "pad_slot"])
def finish_kernel(
    logits, tops, sums, slots, positions, temperature, seed, slot_tokens, slot_positions, packed,
    rows, pad_slot,
    V: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, CS: tl.constexpr, NOISY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Choose the row's token, feed it back to its slot, pack what the host wants; grid (B,)."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CS)
    await_inputs(PDL)
    release_next(PDL)
    slot = tl.load(slots + b)
    position = tl.load(positions + b)
    heat = tl.load(temperature + slot)
    key = tl.load(seed + slot)
    top_of = tl.load(tops + b * C + c, mask=c < C, other=-float("inf"))
    sum_of = tl.load(sums + b * C + c, mask=c < C, other=0.0)
    top = tl.max(top_of, 0)
    total = tl.sum(sum_of * tl.exp(top_of - top), 0)
    ranked = top_of
    if NOISY:
        mass = top_of + tl.log(sum_of) + _gumbel(key, position + 1, -1 - c)
        ranked = tl.where(heat > 0, mass, top_of)
    index = _first(ranked, c, c < C, C - 1) * BLOCK + tl.arange(0, BLOCK)
    score = _scores(logits, b, index, heat, V)
    noisy = score
    if NOISY:
        noisy = tl.where(heat > 0, score + _gumbel(key, position + 1, index), score)
    token = _first(noisy, index, index < V, V - 1)
    plain = tl.max(tl.where(index == token, score, -float("inf")), 0)
    logprob = (plain - top - tl.log(total)).to(tl.int32, bitcast=True)
    tl.store(slot_tokens + slot, token.to(tl.int64))
    tl.store(slot_positions + slot, tl.where(slot == pad_slot, 0, position + 1))
    tl.store(packed + b, token)
    tl.store(packed + rows + b, logprob)
    tl.store(packed + 2 * rows + b, logprob)


def sample_and_feed(
    logits_BV: Tensor,
    slots_B: Tensor,
    positions_B: Tensor,
    state: SlotState,
    kind: SamplerKind,
) -> Tensor:
    """Sample the token after `positions` (int64 [B]) for each row and feed it back to its slot.

    Returns int32 [3, B]: tokens, then the bits of the fp32 log-probability, twice (nothing is
    truncated, so the sampled distribution is the policy's). `slots` are int64 [B].
    """
    B, V = logits_BV.shape
    assert logits_BV.is_contiguous()
    C, pdl = triton.cdiv(V, CHUNK), dependent(logits_BV, B)
    tops, sums = torch.empty(2, B, C, dtype=torch.float32, device=logits_BV.device)
    packed = torch.empty(3, B, dtype=torch.int32, device=logits_BV.device)
    chunk_kernel[(C, B)](
        logits_BV, slots_B, state.temperature, tops, sums, V, CHUNK, C, pdl, num_warps=4,
        launch_pdl=pdl,
    )  # fmt: skip
    finish_kernel[(B,)](
        logits_BV, tops, sums, slots_B, positions_B, state.temperature, state.seed, state.tokens,
        state.positions, packed, B, state.tokens.shape[0] - 1, V, CHUNK, C,
        triton.next_power_of_2(C), kind != SamplerKind.GREEDY, pdl, num_warps=8, launch_pdl=pdl,
    )  # fmt: skip
    return packed
