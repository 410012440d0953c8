"""Sampling, in plain PyTorch: penalty, temperature, truncation, Gumbel noise by counter, log-probs.

Shape letters: B rows, V vocabulary, C chunks of K tokens. All arithmetic is fp32.
A row's noise is a pure function of (seed, position of the new token, index), so a sample does not
depend on who shares the batch. Argmax of logits plus Gumbel noise is a sample of their softmax
(Gumbel 1954; Maddison et al. 2014, "A* Sampling"). It is drawn in two levels, first a chunk of the
vocabulary by the chunks' log-sums, then a token within it, so noise is needed for C + K of V tokens
only; both levels keep Gumbel's virtue that a rounding error seldom changes the sample.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 2048
"""Tokens of a chunk; the sample of a seed depends on it."""


class SamplerKind(IntEnum):
    """How much the sampler does; a larger kind gives the same result where a smaller one does."""

    GREEDY = 0
    RANDOM = 1
    TRUNCATED = 2


class SamplerRows(NamedTuple):
    """Parameters of each row: fp32 [B] but `top_k`, `seed` and `position` int64 [B].

    `position` is that of the token to be sampled. Off: temperature 0 (greedy), top_k 0, top_p 1,
    min_p 0, penalty 1.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor
    seed: Tensor
    position: Tensor


class Sampled(NamedTuple):
    """`tokens` int64 [B]; fp32 [B] natural log-probabilities.

    `logprobs` are of the distribution sampled from, `policy_logprobs` of softmax(logits /
    temperature) over the whole vocabulary without penalty; temperature 0 counts as 1 in both.
    """

    tokens: Tensor
    logprobs: Tensor
    policy_logprobs: Tensor


def sample(
    logits_BV: Tensor, rows: SamplerRows, kind: SamplerKind, seen_BV: Tensor | None
) -> Sampled:
    """Sample one token a row; `seen` is bool [B, V], the tokens that `penalty` applies to."""
    raw = logits_BV.float()
    greedy = (rows.temperature <= 0)[:, None]
    scale = torch.where(greedy[:, 0], 1.0, rows.temperature)[:, None]
    policy = raw / scale
    target = policy
    if kind == SamplerKind.TRUNCATED:
        target = _truncate(_penalise(raw, rows.penalty, seen_BV) / scale, rows)
    tokens = _draw(target, rows, greedy, kind != SamplerKind.GREEDY)
    policy_logprobs = _logprob(policy, tokens)
    same = kind != SamplerKind.TRUNCATED
    return Sampled(tokens, policy_logprobs if same else _logprob(target, tokens), policy_logprobs)


def _draw(scores_BV: Tensor, rows: SamplerRows, greedy_B1: Tensor, noisy: bool) -> Tensor:
    """Return a token [B] of each row: the first argmax where `greedy`, else a sample."""
    vocab = scores_BV.shape[1]
    width = min(CHUNK, vocab)
    padded = pad(scores_BV, (0, -vocab % width), value=-torch.inf)
    scores_BCK = padded.view(padded.shape[0], -1, width)
    chunks = torch.arange(scores_BCK.shape[1], dtype=torch.int32, device=scores_BV.device)
    ranked_BC = scores_BCK.amax(-1)
    if noisy:
        mass_BC = scores_BCK.logsumexp(-1) + gumbel(rows.seed, rows.position, ~chunks[None])
        ranked_BC = torch.where(greedy_B1, ranked_BC, mass_BC)
    first_B1 = ranked_BC.argmax(-1, keepdim=True)
    within_BK = scores_BCK.take_along_dim(first_B1[..., None], 1)[:, 0]
    if noisy:
        index = (first_B1 * width + torch.arange(width, device=scores_BV.device)).int()
        noise = gumbel(rows.seed, rows.position, index)
        within_BK = torch.where(greedy_B1, within_BK, within_BK + noise)
    return first_B1[:, 0] * width + within_BK.argmax(-1)


def _logprob(scores_BV: Tensor, tokens_B: Tensor) -> Tensor:
    """Return log softmax at `tokens`: [B]."""
    chosen = scores_BV.gather(1, tokens_B[:, None])[:, 0]
    return chosen - scores_BV.logsumexp(-1)


def _penalise(raw_BV: Tensor, penalty_B: Tensor, seen_BV: Tensor | None) -> Tensor:
    """Divide positive logits of seen tokens by the penalty, multiply negative ones (CTRL, 2019)."""
    if seen_BV is None:
        return raw_BV
    penalty = penalty_B[:, None]
    lowered = torch.where(raw_BV > 0, raw_BV / penalty, raw_BV * penalty)
    return torch.where(seen_BV, lowered, raw_BV)


def _truncate(scores_BV: Tensor, rows: SamplerRows) -> Tensor:
    """Set what top-k, then top-p, then min-p exclude to -inf; ties with the last kept one stay.

    Greedy rows keep everything: their log-probabilities are of the whole distribution.
    """
    vocab = scores_BV.shape[1]
    ordered = scores_BV.sort(-1, descending=True).values
    rank = torch.arange(vocab, device=scores_BV.device)
    limit = torch.where(rows.top_k > 0, rows.top_k, vocab)[:, None]
    within = ordered.masked_fill(rank >= limit, -torch.inf)
    probs = within.softmax(-1)
    mass = torch.where(rows.top_p < 1, rows.top_p, torch.inf)[:, None]
    kept = (probs.cumsum(-1) - probs < mass) & (rank < limit)
    kept &= within >= ordered[:, :1] + rows.min_p.log()[:, None]
    last = kept.sum(-1, keepdim=True).clamp(min=1) - 1
    threshold = ordered.gather(1, last)
    threshold = torch.where(rows.temperature[:, None] <= 0, -torch.inf, threshold)
    return scores_BV.masked_fill(scores_BV < threshold, -torch.inf)


def gumbel(seed_B: Tensor, position_B: Tensor, index_BN: Tensor) -> Tensor:
    """Return standard Gumbel noise [B, N], a hash of (seed, position, index [1 or B, N] int32).

    -log(E) with E = -log(1 - u) exponential: small u, hence large noise, keeps its full precision;
    u stays below 1, where the noise would be -inf.
    """
    low, high = _row_keys(seed_B, position_B)
    bits = _mix(_mix(index_BN * -1640531527 ^ low[:, None]) ^ high[:, None])
    uniform = ((bits & 0x7FFFFFFF).float() * 2.0**-31 + 2.0**-32).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-uniform))


def _row_keys(seed_B: Tensor, position_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return two int32 keys of (seed, position) by SplitMix64's finaliser (Steele et al. 2014)."""
    state = seed_B * 6364136223846793005 + position_B * -7046029254386353131 + 1442695040888963407
    state = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    state = (state ^ ((state >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    state = state ^ ((state >> 31) & 0x1FFFFFFFF)
    return (state & 0xFFFFFFFF).int(), ((state >> 32) & 0xFFFFFFFF).int()


def _mix(x: Tensor) -> Tensor:
    """Scramble int32 by the finaliser of MurmurHash3 (Appleby 2011), on wrapping arithmetic."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * -2048144789
    x = (x ^ ((x >> 13) & 0x7FFFF)) * -1028477387
    return x ^ ((x >> 16) & 0xFFFF)
