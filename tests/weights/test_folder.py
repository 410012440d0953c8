"""Folders: what is loaded is what Hugging Face's own loading gives, and what was done is said."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from flexinfer.config import ModelOptions
from flexinfer.weights.load import LoadedModel, load
from tests.support.oracle import hf_logits
from tests.support.tiny import FAMILIES
from tests.weights.folders import save_folder
from tests.weights.live import LiveBytes

PROMPT = [1, 17, 300, 4, 99, 12, 7, 256, 31, 88, 401, 5]


def load_folder(folder: Path, **options: object) -> LoadedModel:
    return load(ModelOptions(model=str(folder), device="cpu", **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_from_pretrained(family: str, tmp_path: Path) -> None:
    folder = save_folder(family, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    ours = load_folder(folder).module
    assert torch.equal(hf_logits(ours, PROMPT), hf_logits(theirs, PROMPT))
    assert not ours.training
    assert all(parameter.requires_grad for parameter in ours.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_and_every_buffer_is_that_of_from_pretrained(
    family: str, tmp_path: Path
) -> None:
    folder = save_folder(family, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    ours = load_folder(folder).module
    for named in ("named_parameters", "named_buffers"):
        wanted = dict(getattr(theirs, named)(remove_duplicate=False))
        found = dict(getattr(ours, named)(remove_duplicate=False))
        assert list(found) == list(wanted)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert ours.lm_head.weight is ours.get_input_embeddings().weight


def test_untied_head_keeps_its_own_weights(tmp_path: Path) -> None:
    folder = save_folder("qwen3", tmp_path, tie_word_embeddings=False)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    ours = load_folder(folder).module
    assert torch.equal(hf_logits(ours, PROMPT), hf_logits(theirs, PROMPT))
    assert ours.lm_head.weight is not ours.get_input_embeddings().weight


def test_attention_biases_are_loaded(tmp_path: Path) -> None:
    folder = save_folder("llama", tmp_path, attention_bias=True)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(hf_logits(load_folder(folder).module, PROMPT), hf_logits(theirs, PROMPT))


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    whole = AutoModelForCausalLM.from_pretrained(save_folder("llama", tmp_path / "one"))
    folder = save_folder("llama", tmp_path / "many")
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert torch.equal(hf_logits(load_folder(folder).module, PROMPT), hf_logits(whole, PROMPT))


def test_the_generation_config_counts_for_the_end_ids_and_for_generate(tmp_path: Path) -> None:
    folder = save_folder("llama", tmp_path, {"eos_token_id": [7, 9], "temperature": 0.6})
    loaded = load_folder(folder)
    assert loaded.eos_ids == {7, 9}
    assert loaded.generation_config == {"eos_token_id": [7, 9], "temperature": 0.6}
    assert loaded.module.generation_config.eos_token_id == [7, 9]


def test_without_a_generation_config_the_end_ids_are_those_of_the_config(tmp_path: Path) -> None:
    folder = save_folder("gemma4", tmp_path)
    (folder / "generation_config.json").unlink()
    assert load_folder(folder).eos_ids == {1, 2, 3}


def test_a_half_precision_checkpoint_runs_in_float32_on_the_cpu_and_says_so(
    tmp_path: Path,
) -> None:
    folder = save_folder("qwen3", tmp_path, dtype="bfloat16")
    AutoModelForCausalLM.from_pretrained(folder).bfloat16().save_pretrained(folder)
    loaded = load_folder(folder)
    assert loaded.module.dtype is loaded.module.config.dtype is torch.float32
    assert any("float32 (stored as bfloat16" in notice for notice in loaded.notices)
    assert load_folder(folder, dtype="bfloat16").module.dtype is torch.bfloat16


def test_loading_draws_no_random_number(tmp_path: Path) -> None:
    folder = save_folder("gemma4", tmp_path)
    before = torch.get_rng_state(), random.getstate(), torch.get_default_dtype()
    load_folder(folder)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), torch.get_default_dtype())


def test_no_weight_is_in_memory_twice(tmp_path: Path) -> None:
    folder = save_folder("gemma4", tmp_path)
    with LiveBytes() as live:
        module = load_folder(folder).module
    sizes = [parameter.numel() * 4 for parameter in module.parameters()]
    assert sum(sizes) <= live.peak < sum(sizes) + 2 * max(sizes)


def test_progress_is_reported_to_the_last_tensor(tmp_path: Path) -> None:
    folder = save_folder("llama", tmp_path)
    seen: list[tuple[str, int, int]] = []
    load(ModelOptions(model=str(folder)), lambda *step: seen.append(step))
    assert seen[-1][1] == seen[-1][2] == len(seen) > 10
