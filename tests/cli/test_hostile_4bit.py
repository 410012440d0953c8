"""Stored 4-bit checkpoints made to break or hang a reader: each is exit 2 and one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flexinfer.weights.adapters import patterns
from tests.weights.folders import edit_config
from tests.weights.nf4.models import Q, stored_folder

pytest.importorskip("bitsandbytes")

STATE = f"{Q}.quant_state.bitsandbytes__nf4"
WORDS = ("generate", "1+2=", "--device", "cpu", "--max-new-tokens", "2", "--quiet")
WORDS = (*WORDS, "--chat-template", "none")
HUGE = 10**400


@pytest.fixture(scope="module")
def sound(tmp_path_factory: Any) -> Path:
    return stored_folder(tmp_path_factory.mktemp("stored"))


def stored(name: str, make: Callable[[Tensor], Tensor], to: str | None = None) -> Any:
    """Return a change of the weights: what `make` does to the tensor `name`, kept as `to`."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[to or name] = make(tensors[name]).contiguous().clone()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def state(**changes: Any) -> Any:
    """Return a change of the state of a weight; None takes a fact away."""

    def make(old: Tensor) -> Tensor:
        facts = json.loads(bytes(old.tolist())) | changes
        return as_bytes(json.dumps({k: v for k, v in facts.items() if v is not None}).encode())

    return stored(STATE, make)


def as_bytes(content: bytes) -> Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)


def scheme(value: Any) -> Any:
    """Return a change of quantization_config: some of its keys, or the whole."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())["quantization_config"]
        whole = config | value if isinstance(value, dict) else value
        edit_config(folder, quantization_config=whole)

    return change


def said_of(command: Any, sound: Path, to: Path, change: Any, *words: str) -> str:
    """Return the one error line of `generate` over a changed copy."""
    shutil.copytree(sound, to)
    change(to)
    result = command(*WORDS, "--model", str(to), *words)
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    error, *hint = result.stderr.splitlines()
    assert len(hint) < 2
    return str(error)


@pytest.mark.parametrize(
    "change",
    [
        *(stored(STATE, lambda old, c=c: as_bytes(c)) for c in (b"5", b"\xff", b"[" * 5000, b"{}")),
        stored(STATE, lambda old: old.float()),
        stored(STATE, lambda old: old.int()),
        stored(STATE, lambda old: old[None]),
        *(state(blocksize=value) for value in (None, 0, -64, "x", [], 1.5, 10**30)),
        *(state(dtype=value) for value in (None, "x", 5, [], "int8")),
        *(state(quant_type=value) for value in (None, "fp4", 5)),
        *(state(shape=value) for value in (5, [64], [0, 64], [-64, 64], ["a", "b"], [HUGE, 64])),
        *(state(nested_blocksize=value) for value in (None, 0, -1, "x", 10**30)),
        *(state(nested_dtype=value) for value in (None, "x", 5)),
        *(state(nested_offset=value) for value in (None, "x", [], float("nan"), HUGE)),
        state(more=1),
    ],
)  # fmt: skip
def test_a_state_that_is_none(command: Any, sound: Path, tmp_path: Path, change: Any) -> None:
    said = said_of(command, sound, tmp_path / "odd", change)
    assert "holds no quantisation state of NF4" in said


@pytest.mark.parametrize("part", ["absmax", "quant_map", "nested_absmax", "nested_quant_map"])
@pytest.mark.parametrize(
    "make",
    [
        lambda old: old[:0],
        lambda old: old[:-1],
        lambda old: old[None],
        lambda old: old[0],
        lambda old: torch.cat([old, old]),
        lambda old: old.half(),
        lambda old: torch.full_like(old, float("nan"), dtype=torch.float64),
    ],
)  # fmt: skip
def test_statistics_that_misfit(
    command: Any, sound: Path, tmp_path: Path, part: str, make: Any
) -> None:
    said = said_of(command, sound, tmp_path / "odd", stored(f"{Q}.{part}", make))
    assert f"{Q}.{part} is " in said
    assert "its state wants" in said


@pytest.mark.parametrize(
    ("to", "said"),
    [
        (STATE.replace("nf4", "fp4"), "is stored as fp4"),
        (STATE.replace("nf4", ""), "is stored as ;"),
        ("x.weight.quant_state.bitsandbytes__nf4", "in 4 bits without absmax, "),
    ],
)
def test_states_under_odd_names(
    command: Any, sound: Path, tmp_path: Path, to: str, said: str
) -> None:
    change = stored(STATE, lambda old: old, to)
    assert said in said_of(command, sound, tmp_path / "odd", change)


@pytest.mark.parametrize("value", [5, "x", [1], True, []])
def test_a_scheme_that_is_no_object(command: Any, sound: Path, tmp_path: Path, value: Any) -> None:
    said = said_of(command, sound, tmp_path / "odd", scheme(value))
    assert "quantization_config in config.json is no object" in said


@pytest.mark.parametrize("form", ["auto", "dummy"])
@pytest.mark.parametrize("value", [5, "x", [5], ["("], [None], [[]], {"a": 1}])
def test_a_list_of_modules_that_is_none(
    command: Any, sound: Path, tmp_path: Path, value: Any, form: str
) -> None:
    change = scheme({"llm_int8_skip_modules": value})
    said = said_of(command, sound, tmp_path / "odd", change, "--load-format", form)
    assert "llm_int8_skip_modules in config.json is no list of module names" in said


def test_a_pattern_of_modules_that_never_ends(
    command: Any, sound: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(patterns, "SECONDS", 0.5)
    change = scheme({"llm_int8_skip_modules": ["(.*)*!"]})
    said = said_of(command, sound, tmp_path / "odd", change, "--load-format", "dummy")
    assert said.endswith("matching llm_int8_skip_modules '(.*)*!' takes too long")


def test_a_sound_one_is_read(command: Any, sound: Path) -> None:
    assert command(*WORDS, "--model", str(sound)).exit_code == 0
