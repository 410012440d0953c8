"""The floor's bytes against the published figures of three models, from shapes alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import flexinfer.assets
from flexinfer.models.catalog import build_decoder
from flexinfer.tasks.roofline import (
    LayerRead,
    StepCost,
    bandwidth_apart,
    copy_bandwidth,
    decode_bytes,
    step_cost,
)
from flexinfer.tasks.workload import workload
from tests.support.tiny import FAMILIES, VOCAB

CONFIGS = Path(flexinfer.assets.__file__).parent / "configs"
PUBLISHED = {
    "qwen3-4b": (8.04, 147_456, 2.86, 2.39),
    "llama-3.2-3b-instruct": (6.43, 114_688, 2.26, 1.90),
    "gemma-4-E2B-it": (4.56, 18_432, 1.35, 1.22),
}
"""Weight GB a step, KV bytes a token, floor of a step in ms at 4.2 TB/s for 64 and 32 prompts."""


def published_cost(name: str) -> StepCost:
    """Build the model of an embedded config on the meta device and take its cost."""
    raw: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())["config"]
    raw = raw.get("text_config", raw)
    config = AutoConfig.for_model(**raw)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return step_cost(module, build_decoder(module).specs)


@pytest.fixture(scope="module")
def costs() -> dict[str, StepCost]:
    return {name: published_cost(name) for name in PUBLISHED}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_bytes(costs: dict[str, StepCost], name: str) -> None:
    weight_gb, kv_bytes, _, _ = PUBLISHED[name]
    assert round(costs[name].weight_bytes / 1e9, 2) == weight_gb
    assert costs[name].kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize(("prompts", "column"), [(64, 2), (32, 3)])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_floor_of_the_seed_workload(
    costs: dict[str, StepCost], name: str, prompts: int, column: int
) -> None:
    lengths = [len(prompt) for prompt in workload(prompts, 151_936, (64, 256))]
    read = decode_bytes(costs[name], lengths, [512] * prompts, prompts)
    assert read / 511 / 4.2e12 * 1e3 == pytest.approx(PUBLISHED[name][column], abs=0.01)


def test_an_untied_embedding_is_only_gathered() -> None:
    tied, untied = (FAMILIES["qwen3"](tie_word_embeddings=tie) for tie in (True, False))
    costs = [step_cost(module, build_decoder(module).specs) for module in (tied, untied)]
    assert costs[0].weight_bytes == costs[1].weight_bytes
    assert costs[0].weight_bytes == sum(p.numel() * 4 for p in tied.parameters())


def test_a_shared_layer_reads_a_cache_it_does_not_own() -> None:
    module = FAMILIES["gemma4"]()
    cost = step_cost(module, build_decoder(module).specs)
    owned = [layer for layer in cost.layers if layer.owned]
    assert (len(cost.layers), len(owned)) == (8, 4)
    assert [layer.bytes_per_token for layer in cost.layers[2:4]] == [512, 256]
    assert cost.kv_bytes_per_token == 3 * 256 + 512
    assert cost.kv_read(20, 21) == 5 * 8 * 256 + 3 * 20 * 512


def test_weights_of_shared_layers_are_not_read_where_a_release_defines_them() -> None:
    module = FAMILIES["gemma4"]()
    specs = build_decoder(module).specs
    without = step_cost(module, specs).weight_bytes
    for name in ("k_proj", "v_proj", "k_norm"):
        module.model.layers[4].self_attn.register_module(name, torch.nn.Linear(64, 32, bias=False))
    assert step_cost(module, specs).weight_bytes == without
    module.model.layers[0].self_attn.register_module("k_extra", torch.nn.Linear(64, 32, bias=False))
    assert step_cost(module, specs).weight_bytes == without + 64 * 32 * 4


def test_the_per_layer_table_is_only_gathered() -> None:
    module = FAMILIES["gemma4"]()
    table = VOCAB * 8 * 8 * 4
    whole = sum(p.numel() * 4 for p in module.parameters())
    assert step_cost(module, build_decoder(module).specs).weight_bytes == whole - table


@pytest.mark.parametrize("window", [None, 1, 4, 9, 12, 50])
@pytest.mark.parametrize(("first", "last"), [(1, 1), (3, 9), (9, 15)])
def test_kv_read_is_the_sum_over_contexts(window: int | None, first: int, last: int) -> None:
    cost = StepCost(0, (LayerRead(3, window, True),))
    capped = [c if window is None else min(c, window) for c in range(first, last)]
    assert cost.kv_read(first, last) == 3 * sum(capped)


@pytest.mark.parametrize(
    ("news", "batch", "steps"),
    [([5, 5, 5], 3, 4), ([5, 5, 5], 64, 4), ([5, 5, 5], 2, 6), ([9, 2], 2, 8), ([1, 1], 2, 0)],
)
def test_steps_are_at_least_the_longest_and_the_full_batches(
    news: list[int], batch: int, steps: int
) -> None:
    assert decode_bytes(StepCost(7, ()), [10] * len(news), news, batch) == 7 * steps


def test_a_step_reads_its_context_with_the_token_it_computes() -> None:
    cost = StepCost(0, (LayerRead(1, None, True),))
    assert decode_bytes(cost, [10, 3], [4, 1], 2) == 11 + 12 + 13


def test_no_bandwidth_without_cuda() -> None:
    assert copy_bandwidth("cpu") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it is measured")
def test_nor_in_a_process_of_its_own() -> None:
    assert bandwidth_apart() is None


def test_a_packed_weight_without_memory_counts_half_a_byte() -> None:
    class Params4bit(torch.nn.Parameter):
        """As bitsandbytes names it."""

    with torch.device("meta"):
        module = FAMILIES["qwen3"]()
    specs = build_decoder(module).specs
    whole = step_cost(module, specs).weight_bytes
    old = module.model.layers[0].mlp.up_proj.weight
    module.model.layers[0].mlp.up_proj.weight = Params4bit(old.detach(), requires_grad=False)
    assert step_cost(module, specs).weight_bytes == whole - old.numel() * 4 + old.numel() // 2
