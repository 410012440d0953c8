"""Adapter folders made to break or hang a reader: each is exit 2 and one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from flexinfer.weights.adapters import patterns
from tests.cli.test_adapters import FILE, PROMPT, WORDS, trained

CONFIG = "adapter_config.json"
HUGE = 10**400
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("adapter")
    trained().save_pretrained(folder)
    return folder


def options(**changes: Any) -> Change:
    """Change options of the config."""

    def change(folder: Path) -> None:
        path = folder / CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def raw(content: bytes) -> Change:
    """Write a config of these bytes."""
    return lambda folder: (folder / CONFIG).write_bytes(content)


def pickled(make: Callable[[dict[str, Tensor]], Mapping[Any, Any]]) -> Change:
    """Keep what `make` does with the tensors as adapter_model.bin."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / FILE)
        (folder / FILE).unlink()
        torch.save(make(tensors), folder / FILE.replace(".safetensors", ".bin"))

    return change


def first(do: Callable[[Tensor], Tensor]) -> Change:
    """Change the first tensor of an adapter_model.bin."""
    return pickled(lambda tensors: tensors | {min(tensors): do(tensors[min(tensors)])})


def said_of(command: Any, sound: Path, to: Path, change: Change) -> str:
    """Return the one error line of `generate` over a changed copy."""
    shutil.copytree(sound, to)
    change(to)
    result = command(*WORDS, *PROMPT, "--adapter", str(to), "--quiet")
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    error, *hint = result.stderr.splitlines()
    assert len(hint) < 2
    assert len(error) < 500
    said: str = error
    return said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (raw(b"[" * 100_000), "cannot be read"),
        (raw(b'{"a":' * 100_000), "cannot be read"),
        (raw(b'{"r":' + b"9" * 5000 + b"}"), "cannot be read"),
        (options(r=HUGE), "r of "),
        (options(lora_alpha=HUGE), "lora_alpha of "),
        (options(lora_alpha=1e308), "lora_alpha of "),
        (options(rank_pattern={"q_proj": HUGE}), "rank_pattern of "),
        (options(alpha_pattern={"q_proj": -HUGE}), "alpha_pattern of "),
        (pickled(lambda tensors: {1: torch.ones(2)}), "no table of plain tensors"),
        (pickled(lambda tensors: tensors | {None: torch.ones(2)}), "no table of plain tensors"),
        (first(Tensor.to_sparse), "no table of plain tensors"),
        (first(Tensor.to_sparse_csr), "no table of plain tensors"),
        (first(lambda t: torch.nested.nested_tensor([t, t[:1]])), "no table of plain tensors"),
    ],
)
def test_odd_contents(command: Any, sound: Path, tmp_path: Path, change: Change, said: str) -> None:
    assert said in said_of(command, sound, tmp_path / "odd", change)


def test_an_expanded_tensor_is_read(command: Any, sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "odd")
    first(lambda t: torch.full((1, 1), 0.1).expand(t.shape))(tmp_path / "odd")
    result = command(*WORDS, *PROMPT, "--adapter", str(tmp_path / "odd"))
    assert result.exit_code == 0, result.stderr


ENDLESS = "(.*)*!"


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ENDLESS},
        {"target_modules": r"(?i)([a-z_.0-9]+)+!"},
        {"target_modules": ".*" * 12 + "!"},
        {"exclude_modules": ENDLESS},
        {"rank_pattern": {ENDLESS: 4}},
        {"alpha_pattern": {"q_proj": 4, ENDLESS: 4}},
        {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": ENDLESS},
    ],
)
def test_patterns_that_never_end(
    command: Any, sound: Path, tmp_path: Path, monkeypatch: Any, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(patterns, "SECONDS", 0.5)
    said = said_of(command, sound, tmp_path / "odd", options(**changes))
    assert "matching the pattern " in said
    assert said.endswith(" takes too long")


def test_a_busy_but_sensible_pattern_is_used(command: Any, sound: Path, tmp_path: Path) -> None:
    many = (
        r"(?:.*?(?:language|text|model).*?(?:self_attn|mlp).*?(?:[a-z]+_proj).*?)|(?:x\.\d{1,}\.y)"
    )
    shutil.copytree(sound, tmp_path / "busy")
    options(target_modules=many, rank_pattern={r"layers\.\d+\.mlp\..*": 4})(tmp_path / "busy")
    result = command(*WORDS, *PROMPT, "--adapter", str(tmp_path / "busy"))
    assert result.exit_code == 0, result.stderr


def test_a_folder_whose_name_is_not_utf8(command: Any, sound: Path, tmp_path: Path) -> None:
    name = tmp_path / os.fsdecode(b"\xff\xfe")
    assert "is not UTF-8" in said_of(command, sound, name, lambda folder: None)
