"""What the device knows of each slot: its last token, where it stands and how it is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flexinfer.attention.tables import upload
from flexinfer.config import SamplingParams
from flexinfer.kernels.sampler import SamplerKind, SamplerRows


class SlotTensors(NamedTuple):
    """Fixed-address tensors over slots (S, the pad slot last).

    int64 [S]: `tokens` to be fed next, their `positions`, `top_k`, `seed`; fp32 [S]: the rest.
    """

    tokens: Tensor
    positions: Tensor
    top_k: Tensor
    seed: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor

    def sampler_rows(self, slots_B: Tensor, position_B: Tensor) -> SamplerRows:
        """Return the parameters of rows; `position` is that of the tokens to be sampled."""
        return SamplerRows(
            temperature=self.temperature[slots_B],
            top_k=self.top_k[slots_B],
            top_p=self.top_p[slots_B],
            min_p=self.min_p[slots_B],
            penalty=self.penalty[slots_B],
            seed=self.seed[slots_B],
            position=position_B,
        )


class SlotState:
    """The slots of an engine on the device; `seen` is bool [S, V] from `track_seen` on."""

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        """Allocate `slots` and one pad slot, all zeros (greedy)."""
        size = (slots + 1,)
        ints = [torch.zeros(size, dtype=torch.int64, device=device) for _ in range(4)]
        floats = [torch.ones(size, dtype=torch.float32, device=device) for _ in range(4)]
        self.tensors = SlotTensors(*ints, *floats)
        self.tensors.temperature.zero_()
        self.tensors.min_p.zero_()
        self.pad_slot = slots
        self.seen: Tensor | None = None
        self._vocab, self._device = vocab, device

    def admit(
        self, slots: Sequence[int], params: Sequence[SamplingParams], seeds: Sequence[int]
    ) -> None:
        """Set how slots are sampled, in stream order."""
        where = upload(np.array(slots, dtype=np.int64), self._device)
        ints = np.array([[p.top_k for p in params], seeds], dtype=np.int64)
        floats = [[p.temperature, p.top_p, p.min_p, p.repetition_penalty] for p in params]
        top_k, seed = upload(ints, self._device)
        values = upload(np.array(floats, dtype=np.float32).T, self._device)
        tensors = self.tensors
        tensors.top_k[where], tensors.seed[where] = top_k, seed
        fields = (tensors.temperature, tensors.top_p, tensors.min_p, tensors.penalty)
        for field, value in zip(fields, values, strict=True):
            field[where] = value

    def enter(self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Set what slots are to be fed next, in stream order."""
        rows = np.array((slots, tokens, positions), dtype=np.int64)
        where, token, position = upload(rows, self._device)
        self.tensors.tokens[where], self.tensors.positions[where] = token, position

    def track_seen(self) -> None:
        """Allocate `seen` at its final address; before a graph is captured that may penalise."""
        if self.seen is None:
            shape = (self.pad_slot + 1, self._vocab)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=self._device)

    def remember(self, slot: int, token_ids: Sequence[int]) -> None:
        """Mark the tokens that a repetition penalty applies to in a slot, and no others."""
        assert self.seen is not None, "a penalty without track_seen"
        unique = upload(np.array(sorted(set(token_ids))), self._device)
        self.seen[slot] = False
        self.seen[slot, unique] = torch.ones_like(unique, dtype=torch.bool)


def kind_of(params: SamplingParams) -> SamplerKind:
    """Return the least sampler that serves these parameters."""
    truncated = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
    if params.repetition_penalty != 1.0 or (truncated and params.temperature > 0):
        return SamplerKind.TRUNCATED
    return SamplerKind.RANDOM if params.temperature > 0 else SamplerKind.GREEDY
