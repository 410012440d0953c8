"""The embedded configs: real shapes, real end ids, and a name for each alias."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer.weights import families, names, skeleton
from flexinfer.weights.checkpoint import read_json
from flexinfer.weights.families import text_config

PARAMETERS = {
    "gemma-4-E2B-it": 4_628_569_344,
    "gemma-4-E4B-it": 7_463_013_376,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-4b-base": 4_022_468_096,
    "llama-3.2-1b-instruct": 1_235_814_400,
    "llama-3.2-3b-instruct": 3_212_749_824,
    "smollm2-135m-instruct": 134_515_008,
}
"""Published sizes, tied weights counted once."""
END = {
    "gemma": {1, 106, 50},
    "qwen3-4b-base": {151643},
    "qwen": {151645, 151643},
    "llama": {128001, 128008, 128009},
    "smollm2": {2},
}


def embedded(alias: str) -> dict[str, Any]:
    return read_json(names.config_file(alias))


@pytest.mark.parametrize("alias", PARAMETERS)
def test_the_size_is_the_published_one(alias: str) -> None:
    model = skeleton.shell(text_config(embedded(alias)["config"], alias), {}, alias)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[alias]


@pytest.mark.parametrize("alias", PARAMETERS)
def test_the_end_ids_are_the_published_set(alias: str) -> None:
    ids = embedded(alias)["generation_config"]["eos_token_id"]
    wanted = next(ids for prefix, ids in END.items() if alias.startswith(prefix))
    assert {ids} | wanted == wanted if isinstance(ids, int) else set(ids) == wanted


def test_every_alias_but_the_embedded_model_has_a_config() -> None:
    assert set(PARAMETERS) == set(names.ALIASES) - {names.TINY}


@pytest.mark.parametrize("broken", ["Gemma4TextConfig", "Gemma4ForCausalLM"])
def test_a_broken_transformers_is_not_laid_to_the_config(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> Any:
        if name == broken:
            raise ImportError("libtorch.so is gone")
        return whole(name)

    whole = families._class
    monkeypatch.setattr(families, "_class", find)
    with pytest.raises(ImportError, match="libtorch"):
        skeleton.shell(text_config(embedded("gemma-4-E2B-it")["config"], "x"), {}, "x")


def test_gemma_shares_keys_as_published() -> None:
    small = text_config(embedded("gemma-4-E2B-it")["config"], "")
    assert [i for i, t in enumerate(small.layer_types) if t == "full_attention"] == [
        4, 9, 14, 19, 24, 29, 34,
    ]  # fmt: skip
    assert (small.num_kv_shared_layers, small.sliding_window) == (20, 512)
    large = text_config(embedded("gemma-4-E4B-it")["config"], "")
    assert (large.num_hidden_layers, large.num_kv_shared_layers) == (42, 18)
