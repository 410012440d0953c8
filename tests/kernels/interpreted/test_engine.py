"""The whole fast path against the oracle: prefill, decode and sampler of all three families."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from transformers import PreTrainedModel

from flexinfer.engine.engine import Engine
from flexinfer.kernels.fast.ops import TritonOps
from tests.support.engines import assert_greedy, assert_idle, complete, ids_of, machinery
from tests.support.engines import make_engine as build
from tests.support.packed import pack_projections
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES, FULL, SLIDING
from tests.support.triton_engine import SmallTiles, fast_path

PROMPTS = prompts_of(1, 7, 18)
"""With windows and pages of 8: one crosses both while it decodes, one in two tiles of prefill."""
SMALL: dict[str, dict[str, Any]] = {
    "qwen3": {"num_hidden_layers": 2},
    "llama": {"num_hidden_layers": 2},
    "gemma4": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "tie_word_embeddings": False,
        "layer_types": [SLIDING, FULL, SLIDING, FULL], "hidden_size_per_layer_input": 16,
    },
}  # fmt: skip
families = pytest.mark.parametrize("family", FAMILIES)


@cache
def small(family: str) -> PreTrainedModel:
    """Return a packed model of few layers, as interpreting is slow."""
    model = FAMILIES[family](**SMALL[family])
    pack_projections(model)
    return model


def fast_engine(family: str, tiles: SmallTiles, **config: Any) -> Engine:
    """Build an engine on the fast path, and make sure that it is."""
    with fast_path(tiles):
        engine = build(small(family), attention="triton", **config)
        programs = machinery(engine).programs
    assert isinstance(programs.decode_decoder.ops, TritonOps)
    return engine


@families
def test_greedy_ids_and_log_probabilities(family: str) -> None:
    with fast_engine(family, SmallTiles()) as engine:
        assert_greedy(small(family), PROMPTS, complete(engine, PROMPTS, max_new_tokens=3))
        assert_idle(engine)


def test_chunks_other_pages_and_random_tokens() -> None:
    """What differs from the test above: chunked prefill, pages, TMA, no splits, temperature."""
    family = "gemma4"
    sampling = {"max_new_tokens": 3, "temperature": 1.0, "seed": 3}
    with build(small(family), page_size=16) as engine:
        expected = ids_of(complete(engine, PROMPTS, **sampling))
    with fast_engine(family, SmallTiles(1, tma=1), page_size=16, prefill_tokens=11) as engine:
        assert ids_of(complete(engine, PROMPTS, **sampling)) == expected
