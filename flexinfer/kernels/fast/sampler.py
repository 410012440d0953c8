"""Sampling in two kernels: chunks of the vocabulary in parallel, then one block a row.

The same function of (seed, position, index) as the plain form (kernels/sampler.py), so both draw
the same samples; truncated sampling stays with the plain form. The second kernel feeds the token
back to its slot, so nothing else runs between two decode steps.
Shape letters: B rows, V vocabulary, C chunks, S slots.
"""

from __future__ import annotations

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next
from flexinfer.kernels.sampler import SamplerKind

CHUNK = 2048


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


FIELDS = 5
"""Of a chunk: best noisy score, its index, its plain score, maximum and sum of exponentials."""


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
def chunk_kernel(
    logits, slots, positions, temperature, seed, chunks,
    V: tl.constexpr, BLOCK: tl.constexpr, C: tl.constexpr, NOISY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Reduce one chunk of one row to FIELDS fp32 numbers; grid (C, B)."""
    c = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    await_inputs(PDL)
    release_next(PDL)
    slot = tl.load(slots + b)
    heat = tl.load(temperature + slot)
    index = c * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + b * V + index, mask=index < V, other=-float("inf")).to(tl.float32)
    score = score * (1.0 / tl.where(heat > 0, heat, 1.0))
    noisy = score
    if NOISY:
        noise = _gumbel(tl.load(seed + slot), tl.load(positions + b) + 1, index)
        noisy = tl.where(heat > 0, score + noise, score)
    best = tl.max(noisy, 0)
    chosen = tl.min(tl.where(noisy == best, index, 2147483647), 0)
    plain = tl.max(tl.where(index == chosen, score, -float("inf")), 0)
    top = tl.max(score, 0)
    out = chunks + (b * C + c) * 5
    tl.store(out, best)
    tl.store(out + 1, chosen.to(tl.float32, bitcast=True))
    tl.store(out + 2, plain)
    tl.store(out + 3, top)
    # a chunk may consist of impossible tokens, and -inf - -inf is NaN
    tl.store(out + 4, tl.sum(tl.exp(score - tl.where(top == -float("inf"), 0.0, top)), 0))


@triton.jit(do_not_specialize=["rows", "pad_slot"])
def finish_kernel(
    chunks, slots, positions, slot_tokens, slot_positions, packed, rows, pad_slot,
    C: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Choose the row's token, feed it back to its slot, pack what the host wants; grid (B,)."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    at = chunks + (b * C + c) * 5
    mask = c < C
    await_inputs(PDL)
    release_next(PDL)
    score = tl.load(at, mask=mask, other=-float("inf"))
    index = tl.load(at + 1, mask=mask, other=0.0).to(tl.int32, bitcast=True)
    best = tl.max(score, 0)
    token = tl.min(tl.where((score == best) & mask, index, V - 1), 0)
    hit = (index == token) & (score == best) & mask
    plain = tl.max(tl.where(hit, tl.load(at + 2, mask=mask, other=0.0), -float("inf")), 0)
    tops = tl.load(at + 3, mask=mask, other=-float("inf"))
    top = tl.max(tops, 0)
    total = tl.sum(tl.load(at + 4, mask=mask, other=0.0) * tl.exp(tops - top), 0)
    logprob = (plain - top - tl.log(total)).to(tl.int32, bitcast=True)
    slot = tl.load(slots + b)
    position = tl.load(positions + b)
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
    C, pdl = triton.cdiv(V, CHUNK), dependent(logits_BV, B)
    chunks = torch.empty(B, C, FIELDS, dtype=torch.float32, device=logits_BV.device)
    packed = torch.empty(3, B, dtype=torch.int32, device=logits_BV.device)
    chunk_kernel[(C, B)](
        logits_BV, slots_B, positions_B, state.temperature, state.seed, chunks, V, CHUNK, C,
        kind != SamplerKind.GREEDY, pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    finish_kernel[(B,)](
        chunks, slots_B, positions_B, state.tokens, state.positions, packed, B,
        state.tokens.shape[0] - 1, C, V, triton.next_power_of_2(C), pdl, num_warps=1,
        launch_pdl=pdl,
    )  # fmt: skip
    return packed
