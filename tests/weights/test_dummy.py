"""Dummy weights: real shapes, logits far from flat, rounding that does not grow, no side effect."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from flexinfer.config import ModelOptions
from flexinfer.weights import dummy, names, skeleton
from flexinfer.weights.digest import digest
from flexinfer.weights.families import text_config
from flexinfer.weights.load import load
from tests.support.tiny import FAMILIES
from tests.weights.folders import save_folder
from tests.weights.live import LiveBytes

VOCAB, DEPTH, SHARED = 2048, 14, 6
REDUCED = {"num_hidden_layers": DEPTH, "hidden_size": 512, "vocab_size": VOCAB}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024}
REAL = ("qwen3-4b", "llama-3.2-3b-instruct", "gemma-4-E2B-it")


def reduced(alias: str, dtype: torch.dtype) -> PreTrainedModel:
    """Draw the model of `alias` with fewer, narrower layers and a smaller vocabulary."""
    raw: dict[str, Any] = json.loads(names.config_file(alias).read_text())["config"] | REDUCED
    raw |= HEADS | {"bos_token_id": 1, "eos_token_id": 2}
    if "layer_types" in raw:
        few = {"layer_types": raw["layer_types"][:DEPTH], "num_kv_shared_layers": SHARED}
        raw |= few | {"vocab_size_per_layer_input": VOCAB}
        raw["layer_types"][-1] = "full_attention"
    model = skeleton.shell(text_config(raw, alias), {}, alias)
    skeleton.materialise(model, dtype, torch.device("cpu"))
    dummy.fill(model, seed=0)
    return model


@pytest.fixture(scope="module", params=REAL)
def logits(request: pytest.FixtureRequest) -> dict[str, torch.Tensor]:
    """Logits [48, V] of one prompt in fp32, in bf16 with the same weights, and after an edit.

    Beside them its ids and the residual stream [1, 48, hidden] before and after the layers.
    """
    coarse, fine = reduced(request.param, torch.bfloat16), reduced(request.param, torch.float32)
    fine.load_state_dict({name: t.float() for name, t in coarse.state_dict().items()})
    ids = torch.randint(VOCAB, (1, 48), generator=torch.Generator().manual_seed(0))
    other = torch.cat([(ids[:, :1] + 1) % VOCAB, ids[:, 1:]], -1)
    with torch.no_grad():
        whole = fine(ids, output_hidden_states=True)
        found = {"fine": whole, "coarse": coarse(ids), "other": fine(other)}
    stream = {"first": whole.hidden_states[0], "last": whole.hidden_states[-2]}
    return {"ids": ids[0]} | stream | {key: out.logits[0].float() for key, out in found.items()}


def test_logits_are_far_from_flat(logits: dict[str, torch.Tensor]) -> None:
    assert 2.0 < float(logits["fine"].std()) < 3.0


def test_all_branches_together_weigh_about_as_much_as_the_embedding(
    logits: dict[str, torch.Tensor],
) -> None:
    added = (logits["last"] - logits["first"]).norm() / logits["first"].norm()
    assert 0.4 < float(added) < 1.5


def test_bfloat16_stays_within_a_few_percent(logits: dict[str, torch.Tensor]) -> None:
    fine, coarse = logits["fine"], logits["coarse"]
    assert float((fine - coarse).norm() / fine.norm()) < 0.03
    assert float((fine.argmax(-1) == coarse.argmax(-1)).float().mean()) > 0.85


def test_greedy_does_not_repeat_its_last_token(logits: dict[str, torch.Tensor]) -> None:
    best = logits["fine"].argmax(-1)
    assert int((best == logits["ids"]).sum()) <= 2
    assert best.unique().numel() > 40


def test_the_first_token_is_still_felt_at_the_last(logits: dict[str, torch.Tensor]) -> None:
    moved = (logits["fine"] - logits["other"])[-1].norm() / logits["fine"][-1].norm()
    assert float(moved) > 0.01


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folders_config_is_enough(family: str, tmp_path: Path) -> None:
    folder = save_folder(family, tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").unlink()
    loaded = load(ModelOptions(model=str(folder), load_format="dummy"))
    assert loaded.module.config.hidden_size == 64
    assert any("random, seed 0" in notice for notice in loaded.notices)
    assert loaded.tokenizer.decode(loaded.tokenizer("añ").input_ids).endswith("añ")


def test_the_seed_and_nothing_else_decides(tmp_path: Path) -> None:
    folder = str(save_folder("gemma4", tmp_path))
    before = torch.get_rng_state(), random.getstate()
    first = load(ModelOptions(model=folder, load_format="dummy", seed=3)).module
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    torch.rand(5)
    again = load(ModelOptions(model=folder, load_format="dummy", seed=3)).module
    other = load(ModelOptions(model=folder, load_format="dummy", seed=4)).module
    assert digest(first) == digest(again) != digest(other)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split every matrix of a tiny model."""
    monkeypatch.setattr(dummy, "BLOCK", 512)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("small_blocks", "two_threads")
def test_a_cpu_draws_on_all_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, both = dummy._draw, threading.Barrier(2, timeout=30)
    met: list[int] = []

    def meeting(*words: Any) -> None:
        if not met:
            met.append(both.wait())
        draw(*words)

    monkeypatch.setattr(dummy, "_draw", meeting)
    dummy.fill(FAMILIES["llama"](), seed=0)
    assert met


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_number_of_threads_changes_no_value(family: str) -> None:
    found, before = [], torch.get_num_threads()
    for number in (1, 3):
        torch.set_num_threads(number)
        model = FAMILIES[family]()
        dummy.fill(model, seed=0)
        found.append(digest(model))
    torch.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.usefixtures("small_blocks")
def test_no_block_of_a_matrix_repeats_another() -> None:
    model = FAMILIES["llama"]()
    dummy.fill(model, seed=0)
    rows = torch.cat([p for name, p in model.named_parameters() if name.endswith("q_proj.weight")])
    assert rows.shape[0] > 2 * 512 // rows.shape[1]
    assert rows.unique(dim=0).shape == rows.shape


def test_nothing_is_drawn_twice_in_memory(tmp_path: Path) -> None:
    folder = str(save_folder("qwen3", tmp_path))
    with LiveBytes() as live:
        module = load(ModelOptions(model=folder, load_format="dummy")).module
    size = sum(parameter.numel() * 4 for parameter in module.parameters())
    assert size <= live.peak < 1.02 * size


def test_every_tensor_has_been_given_a_value(tmp_path: Path, monkeypatch: Any) -> None:
    folder, empty = str(save_folder("gemma4", tmp_path)), torch.empty

    def poisoned(*shape: Any, **options: Any) -> torch.Tensor:
        tensor = empty(*shape, **options)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
    module = load(ModelOptions(model=folder, load_format="dummy")).module
    assert all(bool(t.isfinite().all()) for t in module.state_dict().values())


def test_dummy_needs_a_config() -> None:
    from flexinfer.errors import UsageError

    with pytest.raises(UsageError, match="no config of some/model"):
        load(ModelOptions(model="some/model", load_format="dummy"))
