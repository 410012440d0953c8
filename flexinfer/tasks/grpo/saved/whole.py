"""Whether a checkpoint is whole: what is missing of it, and which of its files is damaged.

HF would go on without a missing part and say nothing, and ends in a traceback over a damaged one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import Any
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError

from flexinfer.errors import one_line
from flexinfer.tasks.grpo import processes

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
STATE = "trainer_state.json"


def step_of(checkpoint: Path) -> int:
    """Return the optimizer steps that a checkpoint has taken."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def parts_of(checkpoint: Path) -> tuple[Path, ...]:
    """Return the files that a resumed run reads, in the order in which they are written."""
    one = processes.count() == 1
    generators = "rng_state.pth" if one else f"rng_state_{processes.rank()}.pth"
    names = (ADAPTER_CONFIG, ADAPTER, "optimizer.pt", "scheduler.pt", generators, STATE)
    return tuple(checkpoint / name for name in names)


def unfinished(checkpoint: Path) -> str | None:
    """Return why the writing of a checkpoint was not brought to its end, None where it was.

    Its state is written last, and is cut short where that was broken off.
    """
    for part in parts_of(checkpoint):
        if not part.is_file():
            return f"it lacks {part.name}"
    try:
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        same = state["global_step"] == step_of(checkpoint)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{STATE} cannot be read: {one_line(error)}"
    return None if same else f"{STATE} is of step {state['global_step']}"


def damaged(checkpoint: Path) -> tuple[Path, str] | None:
    """Return the first file of a finished checkpoint that cannot be read, and why; None for none.

    All of it is read, with its check sums where it has any.
    """
    optional = [path for path in (checkpoint / "scaler.pt",) if path.is_file()]
    for part in (*parts_of(checkpoint), *optional):
        try:
            held = _READERS[part.suffix](part)
            if lacking := [key for key in _KEYS.get(part.name, ()) if key not in held]:
                raise ValueError(f"it has no {lacking[0]}")
        except _UNREADABLE as error:
            said = one_line(error).partition(". ")[0]
            return part, said
    return None


def _read_json(path: Path) -> Mapping[str, Any]:
    """Return a JSON object."""
    held = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(held, dict):
        raise ValueError("it is no JSON object")
    return held


def _read_torch(path: Path) -> Mapping[str, Any]:
    """Return what torch.save wrote: a zip file, whose check sums torch.load leaves aside."""
    import torch
    from transformers.trainer_pt_utils import safe_globals

    with ZipFile(path) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise ValueError(f"the check sum of {wrong} is wrong")
    with safe_globals():
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(held, dict):
        raise ValueError(f"it holds a {type(held).__name__}")
    return held


def _read_tensors(path: Path) -> Mapping[str, Any]:
    """Read the table of a safetensors file, which says how long the file is; return nothing."""
    from safetensors import safe_open

    with safe_open(path, "pt"):
        return {}


_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "optimizer.pt": ("state", "param_groups"),
        "scheduler.pt": ("last_epoch",),
        STATE: ("global_step", "max_steps", "num_train_epochs", "save_steps", "log_history"),
    }
)
"""What must stand in a file for it to be one of a checkpoint."""

_READERS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = MappingProxyType(
    {".json": _read_json, ".pt": _read_torch, ".pth": _read_torch, ".safetensors": _read_tensors}
)
_UNREADABLE = (
    *(OSError, ValueError, EOFError, RuntimeError, KeyError),
    *(BadZipFile, UnpicklingError, SafetensorError),
)
