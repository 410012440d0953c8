"""Broken folders: one line that names what is wrong, the right exit code, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flexinfer.config import ModelOptions
from flexinfer.errors import EnvironmentUnfit, FlexinferError, NotEnoughMemory, UsageError
from flexinfer.weights import place
from flexinfer.weights.load import LoadedModel, load
from tests.weights.folders import edit_config, save_folder

WEIGHTS = "model.safetensors"


def load_folder(folder: Path, **options: object) -> LoadedModel:
    return load(ModelOptions(model=str(folder), device="cpu", **options))


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def message_of(folder: Path, kind: type[FlexinferError] = UsageError, **options: object) -> str:
    with pytest.raises(kind) as caught:
        load_folder(folder, **options)
    assert type(caught.value) is kind
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder("qwen3", tmp_path)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert name in message_of(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", WEIGHTS])
@pytest.mark.parametrize("size", [0, 40])
def test_a_truncated_file_is_named(folder: Path, name: str, size: int) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:size])
    assert name in message_of(folder)


def test_a_family_that_is_not_run_is_said_before_missing_weights(folder: Path) -> None:
    edit_config(folder, model_type="gpt2")
    (folder / WEIGHTS).unlink()
    assert "is of the family gpt2" in message_of(folder)


def test_weights_that_end_early_are_refused(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-100])
    assert WEIGHTS in message_of(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", [0.9]),
        ("top_k", 3.5),
        ("min_p", "0.1"),
        ("repetition_penalty", {}),
        ("max_new_tokens", 1e3),
        ("do_sample", "yes"),
        ("eos_token_id", "x"),
        ("eos_token_id", [1, "x"]),
        ("eos_token_id", 2.0),
    ],
)
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_wrong_type_in_the_generation_config_is_named(
    folder: Path, key: str, value: object, load_format: str
) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({key: value}))
    message = message_of(folder, load_format=load_format)
    assert message.startswith(f"{path}: ")
    assert key in message


def test_a_generation_config_that_transformers_refuses_is_named(folder: Path) -> None:
    content = {"cache_implementation": "none such"}
    (folder / "generation_config.json").write_text(json.dumps(content))
    assert "generation_config.json: Invalid `cache_implementation`" in message_of(folder)


def test_a_generation_config_may_leave_things_open(folder: Path) -> None:
    content = {"do_sample": None, "top_k": None, "eos_token_id": [1, 2], "temperature": 1}
    (folder / "generation_config.json").write_text(json.dumps(content))
    assert load_folder(folder).eos_ids == {1, 2}


def test_a_broken_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer" in message_of(folder)


def test_a_lost_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001-of-00002.safetensors" in message_of(folder)


def test_missing_tensors_are_counted_and_named(folder: Path) -> None:
    lost = ["model.layers.2.mlp.up_proj.weight", "model.norm.weight"]
    edit_weights(folder, lambda tensors: [tensors.pop(name) for name in lost])
    message = message_of(folder)
    assert "lack 2 of" in message
    assert all(name in message for name in lost)


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    edit_config(folder, intermediate_size=96)
    message = message_of(folder)
    assert "mlp.down_proj.weight is stored as [64, 128]" in message
    assert "[64, 96]" in message


def test_unexpected_tensors_are_told(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.update({"model.extra.weight": torch.ones(3)}))
    notices = load_folder(folder).notices
    assert [notice for notice in notices if "model.extra.weight" in notice]
    assert "1 tensors" in notices[-1]


def test_old_rope_buffers_are_no_news(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    assert not [notice for notice in load_folder(folder).notices if "left out" in notice]


def test_a_second_copy_of_the_tied_head_must_be_equal(folder: Path) -> None:
    def add(factor: float) -> Callable[[dict[str, torch.Tensor]], None]:
        return lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] * factor})

    edit_weights(folder, add(1.0))
    assert not [notice for notice in load_folder(folder).notices if "left out" in notice]
    edit_weights(folder, add(2.0))
    assert "ties lm_head.weight to model.embed_tokens.weight" in message_of(folder)


def test_a_tied_weight_stored_under_the_heads_name_is_used(folder: Path) -> None:
    wanted = load_folder(folder).module.lm_head.weight.clone()

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    edit_weights(folder, rename)
    assert torch.equal(load_folder(folder).module.get_input_embeddings().weight, wanted)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model_type": "qwen3_moe"}, "mixture of experts (qwen3_moe)"),
        ({"num_experts": 128}, "mixture of experts"),
        ({"model_type": "mamba2"}, "family mamba2"),
        ({"model_type": "wombat", "num_experts": 4}, "family wombat"),
        ({"model_type": None}, "names no model_type"),
        ({"hidden_size": "wide"}, "describes no model"),
        ({"num_attention_heads": 0}, "describes no model"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    folder: Path, changes: dict[str, object], part: str
) -> None:
    edit_config(folder, **changes)
    assert part in message_of(folder)


def test_gemma_with_experts_is_refused(tmp_path: Path) -> None:
    folder = save_folder("gemma4", tmp_path)
    edit_config(folder, enable_moe_block=True)
    assert "mixture of experts" in message_of(folder)


def test_a_quantised_checkpoint_is_refused(folder: Path) -> None:
    edit_config(folder, quantization_config={"quant_method": "bitsandbytes"})
    assert "quantised (bitsandbytes)" in message_of(folder, EnvironmentUnfit)


def test_an_adapter_or_gguf_folder_gets_its_own_hint(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "x.gguf").touch()
    with pytest.raises(UsageError) as caught:
        load_folder(folder)
    assert str(folder / "x.gguf") in str(caught.value.hint)
    (folder / "adapter_config.json").touch()
    with pytest.raises(UsageError) as caught:
        load_folder(folder)
    assert "--adapter" in str(caught.value.hint)


def test_an_adapter_that_is_none(folder: Path) -> None:
    assert "no such folder" in message_of(folder, adapter=str(folder / "none"))
    for rank in (0, 1025, 99999999):
        assert "the rank must be 1 or more" in message_of(folder, adapter=f"random:{rank}")
    for mode in ("runtime", "merged"):
        assert f"--lora-mode {mode} has no adapter" in message_of(folder, lora_mode=mode)


def test_the_folder_of_an_adapter_names_its_option(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "adapter_config.json").touch()
    with pytest.raises(UsageError) as caught:
        load_folder(folder)
    assert str(caught.value.hint).endswith(f"and {folder} as --adapter")


def test_too_little_memory_is_told_before_any_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "available_bytes", lambda device: 2**10)
    message = message_of(folder, NotEnoughMemory)
    assert "GiB" in message
    assert "cpu" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_cuda_where_there_is_none_is_refused(folder: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match="--device cuda"):
        load(ModelOptions(model=str(folder), device="cuda"))
