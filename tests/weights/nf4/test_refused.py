"""4-bit checkpoints that are refused: in one line that names what is wrong."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flexinfer.errors import EnvironmentUnfit, UsageError
from tests.support.tiny import tiny_llama
from tests.weights.folders import edit_config, save_folder
from tests.weights.nf4.models import Q, refusal, stored_folder
from tests.weights.tiny_gguf import write_gguf

pytest.importorskip("bitsandbytes")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A folder that transformers has stored in 4 bits."""
    return stored_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "awq"}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes fp4"),
    ],
)
def test_other_ways_of_quantising_are_named(
    config: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = save_folder("qwen3", tmp_path)
    edit_config(folder, quantization_config=config)
    for wanted in (False, True):
        assert f"({named})" in refusal(EnvironmentUnfit, folder, load_in_4bit=wanted)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, imports = save_folder("qwen3", tmp_path), builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "bitsandbytes":
            raise ModuleNotFoundError("No module named 'bitsandbytes'", name="bitsandbytes")
        return imports(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install -e '.[quant]'" in refusal(EnvironmentUnfit, folder, load_in_4bit=True)


def test_a_gguf_file_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tiny_llama(rope_parameters=None), tmp_path / "model.gguf")
    assert ".gguf" in refusal(UsageError, path, load_in_4bit=True)


def test_a_config_that_promises_what_is_not_stored(tmp_path: Path, stored: Path) -> None:
    config = json.loads((stored / "config.json").read_text())["quantization_config"]
    edit_config(tmp_path / "16", quantization_config=config)
    assert "no weight is stored so" in refusal(UsageError, tmp_path / "16")


@pytest.fixture
def tensors(stored: Path) -> dict[str, torch.Tensor]:
    """The stored tensors, to be changed; `broken` writes them back."""
    return load_file(stored / "model.safetensors")


def broken(folder: Path, tensors: dict[str, torch.Tensor]) -> str:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return refusal(UsageError, folder)


@pytest.mark.parametrize("lost", ["absmax", "nested_absmax", "quant_map"])
def test_a_missing_statistic_is_named(
    lost: str, stored: Path, tensors: dict[str, torch.Tensor]
) -> None:
    del tensors[f"{Q}.{lost}"]
    assert f"{Q} is stored in 4 bits without {lost}" in broken(stored, tensors)


def test_bytes_and_scales_that_do_not_fit_are_named(
    stored: Path, tensors: dict[str, torch.Tensor]
) -> None:
    tensors[Q] = tensors[Q][2:]
    assert Q in broken(stored, tensors)


def test_a_state_that_is_none_is_named(stored: Path, tensors: dict[str, torch.Tensor]) -> None:
    name = f"{Q}.quant_state.bitsandbytes__nf4"
    tensors[name] = tensors[name][:9]
    assert f"{name} holds no quantisation state" in broken(stored, tensors)


def test_fp4_in_a_shard_is_named(stored: Path, tensors: dict[str, torch.Tensor]) -> None:
    state = tensors.pop(f"{Q}.quant_state.bitsandbytes__nf4")
    tensors[f"{Q}.quant_state.bitsandbytes__fp4"] = state
    assert "fp4" in broken(stored, tensors)
