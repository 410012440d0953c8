"""A dense Attend: no pages, one K/V list for each sequence, rounded where the oracle rounds.

Shape letters: T tokens, H query heads, G kv heads, D head dim, S cached tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flexinfer.attention.spec import LayerSpec
from flexinfer.models.decoder import Decoder

Chunk = tuple[int, int]
"""(sequence, number of tokens) of one run of rows in a packed step."""


@dataclass
class DenseCache:
    """Keys and values of every (kv layer, sequence), grown chunk by chunk."""

    store: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    calls: list[tuple[int, int]] = field(default_factory=list)
    """(layer index, query rows) of every attention call."""

    def step(self, chunks: Sequence[Chunk], keep_K: Tensor | None = None) -> DenseAttend:
        """Return the hole of a step that appends `chunks`, and count them as cached."""
        rows = [(s, self.lengths.get(s, 0) + i) for s, count in chunks for i in range(count)]
        for sequence, count in chunks:
            self.lengths[sequence] = self.lengths.get(sequence, 0) + count
        sequences, positions = torch.tensor(rows, dtype=torch.long).reshape(-1, 2).unbind(1)
        return DenseAttend(self, sequences, positions, keep_K)


@dataclass
class DenseAttend:
    """Attend of one packed step; each row knows its sequence and position."""

    cache: DenseCache
    sequences_T: Tensor
    positions_T: Tensor
    keep_K: Tensor | None = None

    def kept(self) -> DenseAttend:
        """Narrow to the kept rows."""
        assert self.keep_K is not None
        return replace(
            self,
            sequences_T=self.sequences_T[self.keep_K],
            positions_T=self.positions_T[self.keep_K],
            keep_K=None,
        )

    def __call__(self, spec: LayerSpec) -> DenseLayer:
        """Bind a layer."""
        return DenseLayer(self, spec)


@dataclass
class DenseLayer:
    """The hole of one layer."""

    step: DenseAttend
    spec: LayerSpec

    stored: bool = False

    def paged(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Refuse: there are no pages here."""
        raise AssertionError("a dense cache has no pages")

    def store(self, k_TGD: Tensor, v_TGD: Tensor) -> None:
        """Append keys and values, sequence by sequence."""
        assert self.spec.owns_kv
        assert k_TGD.shape[1:] == v_TGD.shape[1:] == (self.spec.kv_heads, self.spec.head_dim)
        self.stored = True
        for sequence in self.step.sequences_T.unique().tolist():
            rows = (self.step.sequences_T == sequence).nonzero()[:, 0]
            self._append(sequence, k_TGD[rows], v_TGD[rows])

    def __call__(self, q_THD: Tensor) -> Tensor:
        """Attend sequence by sequence."""
        step, spec = self.step, self.spec
        step.cache.calls.append((spec.index, q_THD.shape[0]))
        assert q_THD.shape[1:] == (spec.heads, spec.head_dim)
        assert self.stored == spec.owns_kv
        out = torch.empty_like(q_THD)
        for sequence in step.sequences_T.unique().tolist():
            rows = (step.sequences_T == sequence).nonzero()[:, 0]
            out[rows] = self._attend(sequence, q_THD[rows], step.positions_T[rows])
        return out

    def _append(self, sequence: int, k: Tensor, v: Tensor) -> None:
        """Grow this layer's cache of one sequence."""
        key = (self.spec.index, sequence)
        old = self.step.cache.store.get(key, (k[:0], v[:0]))
        self.step.cache.store[key] = (torch.cat((old[0], k)), torch.cat((old[1], v)))

    def _attend(self, sequence: int, q_THD: Tensor, positions_T: Tensor) -> Tensor:
        """Attend the rows of one sequence to its cache, operation by operation as the oracle."""
        ratio = self.spec.heads // self.spec.kv_heads
        k, v = self.step.cache.store[(self.spec.kv_layer, sequence)]
        k_HSD, v_HSD = (x.transpose(0, 1).repeat_interleave(ratio, 0) for x in (k, v))
        distance_TS = positions_T[:, None] - torch.arange(k.shape[0])
        hidden_TS = distance_TS < 0
        if self.spec.window is not None:
            hidden_TS |= distance_TS >= self.spec.window
        scores = q_THD.transpose(0, 1) @ k_HSD.transpose(1, 2) * self.spec.scale
        scores = scores.masked_fill(hidden_TS, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(q_THD.dtype)
        return (weights @ v_HSD).transpose(0, 1)


@torch.no_grad()
def run_packed(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    chunk: int | None = None,
    cache: DenseCache | None = None,
    last_only: bool = False,
) -> list[Tensor]:
    """Run packed prompts in steps of `chunk` tokens each (None: at once); return their logits.

    The logits are [length, V] for each prompt, or of its last token only, [1, V].
    """
    cache = cache or DenseCache()
    size = chunk or max(map(len, prompts))
    pieces: list[list[Tensor]] = [[] for _ in prompts]
    for start in range(0, max(map(len, prompts)), size):
        parts = [(s, p[start : start + size]) for s, p in enumerate(prompts) if len(p) > start]
        ends = torch.tensor([len(part) for _, part in parts]).cumsum(0) - 1
        done = [start + len(part) == len(prompts[s]) for s, part in parts]
        keep = ends[torch.tensor(done)] if last_only else None
        tokens = torch.tensor([t for _, part in parts for t in part])
        hole = cache.step([(s, len(part)) for s, part in parts], keep)
        logits = decoder(tokens, hole.positions_T, hole, keep)
        owners = hole.sequences_T if keep is None else hole.sequences_T[keep]
        for sequence, row in zip(owners.tolist(), logits, strict=True):
            pieces[sequence].append(row)
    return [torch.stack(rows) for rows in pieces]
