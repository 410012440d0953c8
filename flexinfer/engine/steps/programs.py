"""The two programs of the engine, prefill and decode: from slots to sampled tokens on the device.

A program reads and writes tensors at fixed addresses only, never waits for the device, and returns
a packed int32 [3, rows]: token ids, and the bits of the fp32 log-probability and policy
log-probability. So a decode program can be captured in a CUDA graph as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flexinfer.attention.cache import PagedKVCache
from flexinfer.attention.kernel import AttentionKernels
from flexinfer.attention.masks import Tiling
from flexinfer.attention.paged import (
    RowInputs,
    RowStep,
    TileStep,
    addresses,
    prefill_masks,
    row_inputs,
)
from flexinfer.attention.tables import PageTables
from flexinfer.engine.steps.batch import PrefillBatch
from flexinfer.engine.steps.state import SlotState, SlotTensors
from flexinfer.kernels.sampler import SamplerKind, sample
from flexinfer.models.decoder import Decoder, Transform


class RowFacts(NamedTuple):
    """What a decode step starts from: tokens and positions int64 [B], and attention's inputs."""

    tokens_B: Tensor
    positions_B: Tensor
    inputs: RowInputs


Lookup = Callable[[Tensor, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor, Tensor]]
"""lookup(table, slot tokens, slot positions, slots [B], page): see look_up."""


def look_up(
    table: Tensor, slot_tokens: Tensor, slot_positions: Tensor, slots_B: Tensor, page: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return tokens, positions, KV addresses (int64 [B]) and page-table rows of the slots."""
    positions, rows = slot_positions[slots_B], table[slots_B]
    return slot_tokens[slots_B], positions, addresses(rows, positions, page), rows


def gather_rows(
    lookup: Lookup,
    table: Tensor,
    state: SlotTensors,
    slots_B: Tensor,
    page: int,
    windows: tuple[int | None, ...],
    kernels: AttentionKernels,
) -> RowFacts:
    """Look up what the slots hold, and build the masks of their windows."""
    tokens, positions, address, rows = lookup(table, state.tokens, state.positions, slots_B, page)
    masks = tuple(kernels.row_mask(rows, positions, window) for window in windows)
    return RowFacts(tokens, positions, RowInputs(address, masks))


def sample_rows(
    logits_BV: Tensor,
    state: SlotTensors,
    seen: Tensor | None,
    slots_B: Tensor,
    position_B: Tensor,
    kind: SamplerKind,
) -> Tensor:
    """Sample a token for each row, feed it back to its slot and pack what the host wants.

    `position` is that of the sampled tokens. The pad slot, last in `state`, stays at position 0.
    """
    seen_BV = None if seen is None else seen[slots_B]
    out = sample(logits_BV, state.sampler_rows(slots_B, position_B), kind, seen_BV)
    pad_slot = state.tokens.shape[0] - 1
    state.tokens[slots_B] = out.tokens
    state.positions[slots_B] = torch.where(slots_B == pad_slot, 0, position_B)
    if seen is not None:
        seen[slots_B, out.tokens] = torch.ones_like(slots_B, dtype=torch.bool)
    bits = torch.stack((out.logprobs, out.policy_logprobs)).view(torch.int32)
    return torch.cat((out.tokens.int()[None], bits))


Feed = Callable[[Tensor, Tensor, Tensor, SlotTensors, SamplerKind], Tensor]
"""feed(logits [B, V], slots [B], positions [B] of the tokens fed, state, kind): see sample_rows."""


def plain_feed(
    logits_BV: Tensor, slots_B: Tensor, positions_B: Tensor, state: SlotTensors, kind: SamplerKind
) -> Tensor:
    """Sample without truncation: the oracle of the fast form."""
    return sample_rows(logits_BV, state, None, slots_B, positions_B + 1, kind)


@dataclass(frozen=True)
class Programs:
    """Both programs over one decoder, cache and set of slots; `tile` is the queries of a tile.

    `transform` compiles the small pure pieces around the decoder of the decode program (it is the
    identity where nothing is compiled). `feed` is a form of `plain_feed`, `lookup` of `look_up`.
    """

    prefill_decoder: Decoder
    decode_decoder: Decoder
    cache: PagedKVCache
    tables: PageTables
    kernels: AttentionKernels
    state: SlotState
    tile: int
    transform: Transform
    feed: Feed = plain_feed
    lookup: Lookup = look_up

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct windows of the model, in order of appearance."""
        return tuple(dict.fromkeys(spec.window for spec in self.decode_decoder.specs))

    def decode(self, slots_B: Tensor, kind: SamplerKind, columns: int) -> Tensor:
        """Advance slots (int64 [B]) by one token; only the first `columns` pages may be in use."""
        tables, state = self.tables, self.state
        facts = self.transform(gather_rows)(
            self.lookup, tables.table[:, :columns], state.tensors, slots_B, self.cache.page_size,
            self.windows, self.kernels,
        )  # fmt: skip
        attend = RowStep(self.cache, self.kernels, facts.inputs, self.windows)
        logits = self.decode_decoder(facts.tokens_B, facts.positions_B, attend, None)
        return self._sample(logits, slots_B, facts.positions_B, kind)

    def prefill(self, batch: PrefillBatch, kind: SamplerKind) -> Tensor:
        """Compute chunks and sample a first token for each kept row."""
        attend = self._prefill_attend(batch)
        if not batch.keep.shape[0]:
            self.prefill_decoder(batch.tokens, batch.positions, attend, batch.keep)
            return batch.keep.new_empty((3, 0), dtype=torch.int32)
        logits = self.prefill_decoder(batch.tokens, batch.positions, attend, batch.keep)
        return self._sample(logits, batch.keep_slots, batch.positions[batch.keep], kind)

    def _sample(
        self,
        logits_BV: Tensor,
        slots_B: Tensor,
        positions_B: Tensor,
        kind: SamplerKind,
    ) -> Tensor:
        """Sample the token after `positions` for each row."""
        state = self.state.tensors
        if kind != SamplerKind.TRUNCATED:
            return self.feed(logits_BV, slots_B, positions_B, state, kind)
        return sample_rows(logits_BV, state, self.state.seen, slots_B, positions_B + 1, kind)

    def _prefill_attend(self, batch: PrefillBatch) -> TileStep:
        """Fill the hole of a prefill step."""
        table, page = self.tables.table, self.cache.page_size
        masks = prefill_masks(
            table[batch.tile_slots], batch.tile_positions, self.tables.logical, self.windows,
            self.kernels,
        )  # fmt: skip
        kept_positions = batch.positions[batch.keep]
        kept = row_inputs(table[batch.keep_slots], kept_positions, page, self.windows, self.kernels)
        address = addresses(table[batch.slots], batch.positions, page)
        tiling = Tiling(batch.tile_index, batch.place)
        return TileStep(
            self.cache, self.kernels, address, tiling, masks,
            RowStep(self.cache, self.kernels, kept, self.windows),
        )  # fmt: skip
