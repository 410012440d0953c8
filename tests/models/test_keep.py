"""Kept rows: only they get logits, and only they run through Gemma's KV-shared layers."""

from __future__ import annotations

import pytest
import torch

from flexinfer.models.catalog import build_decoder
from flexinfer.models.decoder import Decoder
from tests.support.dense import DenseCache, run_packed
from tests.support.prompts import assert_same, prompts_of
from tests.support.tiny import FAMILIES, VOCAB, tiny_gemma4

PROMPTS = prompts_of(12, 5, 9)


@torch.inference_mode()
def kept_logits(decoder: Decoder, keep: list[int], cache: DenseCache) -> torch.Tensor:
    """Return the logits of rows `keep` of PROMPTS packed at once."""
    tokens = torch.tensor([token for prompt in PROMPTS for token in prompt])
    rows = torch.tensor(keep, dtype=torch.long)
    hole = cache.step([(s, len(p)) for s, p in enumerate(PROMPTS)], rows)
    return decoder(tokens, hole.positions_T, hole, rows)


@pytest.mark.parametrize("keep", [[11, 16, 25], [25, 3], [0], [11, 11]])
@pytest.mark.parametrize("family", FAMILIES)
def test_kept_rows_have_the_logits_of_the_whole_step(family: str, keep: list[int]) -> None:
    decoder = build_decoder(FAMILIES[family]())
    whole = torch.cat(run_packed(decoder, PROMPTS))
    assert_same([kept_logits(decoder, keep, DenseCache())], [whole[keep]])


@pytest.mark.parametrize("family", FAMILIES)
def test_no_kept_row_still_fills_the_caches(family: str) -> None:
    decoder, none, all_rows = build_decoder(FAMILIES[family]()), DenseCache(), DenseCache()
    empty = kept_logits(decoder, [], none)
    assert empty.shape == (0, VOCAB)
    assert empty.dtype == torch.float32
    run_packed(decoder, PROMPTS, cache=all_rows)
    assert none.store.keys() == all_rows.store.keys()
    assert all(
        torch.equal(a, b)
        for key in none.store
        for a, b in zip(none.store[key], all_rows.store[key], strict=True)
    )


@pytest.mark.parametrize("shared", [0, 2, 4])
def test_shared_layers_see_kept_rows_only(shared: int) -> None:
    decoder, cache = build_decoder(tiny_gemma4(num_kv_shared_layers=shared)), DenseCache()
    kept_logits(decoder, [11, 25], cache)
    assert cache.calls == [(i, 26 if i < 8 - shared else 2) for i in range(8)]
    cache.calls.clear()
    kept_logits(decoder, [], cache)
    assert cache.calls == [(i, 26) for i in range(8 - shared)]


def test_without_keep_every_layer_sees_every_row() -> None:
    cache = DenseCache()
    run_packed(build_decoder(tiny_gemma4()), PROMPTS, cache=cache)
    assert cache.calls == [(i, 26) for i in range(8)]
