"""What `--model` and `--adapter` may say, told apart without torch."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from flexinfer.core.imports import large_imports
from flexinfer.errors import UsageError

TINY = "tiny-gemma4"
LARGE = "gemma-4-E2B-it"
RANDOM_RANK, LARGEST_RANK = 32, 1024
"""Of `--adapter random`: what the peers were measured with."""
SIMILAR = 0.45
"""From this ratio of difflib on a name is a slip of an alias; below it any would be a guess."""
SIMILAR_START = 0.8
"""The same for the beginning of an alias, of which a few letters say less."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        LARGE: ("unsloth/gemma-4-E2B-it", "google/gemma-4-E2B-it"),
        "gemma-4-E4B-it": ("unsloth/gemma-4-E4B-it", "google/gemma-4-E4B-it"),
        "qwen3-0.6b": ("Qwen/Qwen3-0.6B", "unsloth/Qwen3-0.6B"),
        "qwen3-4b": ("Qwen/Qwen3-4B", "unsloth/Qwen3-4B"),
        "qwen3-4b-base": ("Qwen/Qwen3-4B-Base", "unsloth/Qwen3-4B-Base"),
        "llama-3.2-1b-instruct": (
            "unsloth/Llama-3.2-1B-Instruct",
            "meta-llama/Llama-3.2-1B-Instruct",
        ),
        "llama-3.2-3b-instruct": (
            "unsloth/Llama-3.2-3B-Instruct",
            "meta-llama/Llama-3.2-3B-Instruct",
        ),
        "smollm2-135m-instruct": ("HuggingFaceTB/SmolLM2-135M-Instruct",),
        TINY: (),
    }
)
"""Alias -> hub ids in order of preference; assets/configs/ALIAS.json is there for all but TINY."""


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """Where a model comes from: exactly one of `hub_ids`, `folder` and `gguf` is set.

    `config` names the embedded config in assets/configs/, where there is one.
    """

    name: str
    hub_ids: tuple[str, ...] = ()
    folder: Path | None = None
    gguf: Path | None = None
    config: str | None = None


def resolve(model: str) -> ModelName:
    """Tell an alias, a hub id, a folder and a `.gguf` file apart; raises UsageError, no network.

    An alias goes before a folder of that name (write ./NAME for it), a folder before a hub id.
    """
    if alias := _alias(model):
        return alias
    path = Path(os.path.expanduser(model))  # it and os.path.is... raise nothing for an odd name
    if os.path.isdir(path):
        return ModelName(name=model, folder=path)
    if os.path.isfile(path):
        return _file(model, path)
    if _is_hub_id(model) and path.suffix.lower() != ".gguf":
        return ModelName(name=model, hub_ids=(model,))
    if "/" in model or "\\" in model or path.suffix.lower() == ".gguf":
        raise UsageError(f"--model {model}: there is no such file or folder")
    if is_cached(model):
        return ModelName(name=model, hub_ids=(model,))
    near, every = nearest(model), ", ".join(ALIASES)
    raise UsageError(
        f"--model {model!r} is no alias, folder or cached hub id",
        hint=f"aliases: {every}" if near is None else f"nearest alias: {near}; all: {every}",
    )


def nearest(model: str) -> str | None:
    """Return the alias that `model`, or a beginning that is spelled like it, means; else None."""
    typed, by_lower = model.lower(), {alias.lower(): alias for alias in ALIASES}
    begun = next((alias for alias in by_lower if typed and alias.startswith(typed)), None)
    close = difflib.get_close_matches(typed, by_lower, n=1, cutoff=SIMILAR)
    if begun is None and (name := _nearly_begun(typed, by_lower)):
        return name
    return by_lower.get(begun or next(iter(close), ""))


def _nearly_begun(typed: str, by_lower: Mapping[str, str]) -> str | None:
    """Return the first alias that begins almost as `typed`: a letter more, less or other."""
    lengths = range(len(typed) - 1, len(typed) + 2) if len(typed) > 3 else ()
    begins = {alias[:n]: name for alias, name in reversed([*by_lower.items()]) for n in lengths}
    close = difflib.get_close_matches(typed, begins, n=1, cutoff=SIMILAR_START)
    return begins[close[0]] if close else None


def random_rank(adapter: str) -> int | None:
    """Return the rank of `random[:RANK]`, None for the name of a folder.

    A rank of more digits than LARGEST_RANK has is not read: it is LARGEST_RANK + 1.
    """
    found = re.fullmatch(r"random(?::(\d+))?", adapter)
    if found is None:
        return None
    digits = (found[1] or str(RANDOM_RANK)).lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(LARGEST_RANK)) else LARGEST_RANK + 1


def check_adapter(adapter: str) -> None:
    """Raise UsageError unless `adapter` is the folder of a PEFT adapter or random[:RANK]."""
    hint = "give the folder of a PEFT adapter, or random[:RANK]"
    if not adapter.strip():
        raise UsageError("--adapter is empty", hint=hint)
    if (rank := random_rank(adapter)) is not None:
        if not 1 <= rank <= LARGEST_RANK:
            raise UsageError(
                f"--adapter {adapter}: the rank must be 1 or more, at most {LARGEST_RANK}",
                hint=hint,
            )
        return
    folder = Path(os.path.expanduser(adapter))
    if not os.path.isdir(folder):
        raise UsageError(f"--adapter {adapter}: there is no such folder", hint=hint)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not any(
            (folder / name).is_file() for name in (file, file.replace(".safetensors", ".bin"))
        ):
            raise UsageError(f"--adapter {adapter}: the folder holds no {file}", hint=hint)


def tiny_folder() -> Path:
    """Return the folder of the embedded model and its byte tokenizer."""
    return Path(str(files("flexinfer") / "assets" / "tiny_gemma4"))


def config_file(config: str) -> Path:
    """Return the path of the embedded config `config`."""
    return Path(str(files("flexinfer") / "assets" / "configs" / f"{config}.json"))


def choose_default(cuda: bool) -> tuple[str, str]:
    """Return (alias, one-line reason) of the model that runs where `--model` is not given."""
    if cuda:
        return LARGE, f"--model not given: {LARGE}, since a CUDA device is present"
    return TINY, f"--model not given: {TINY} (embedded), since there is no CUDA device"


def default_model() -> tuple[str, str]:
    """Return (alias, one-line reason) for this machine; imports torch."""
    with large_imports():
        import torch

    return choose_default(torch.cuda.is_available())


def _is_hub_id(text: str) -> bool:
    """Tell whether the hub could have a checkpoint of this name; no network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        try_to_load_from_cache(text, "config.json")
    except HFValidationError:
        return False
    return bool(_HUB_ID.fullmatch(text))


def is_cached(hub_id: str) -> bool:
    """Tell whether the hub cache holds a config.json of `hub_id`; no network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)
    except HFValidationError:
        return False


def _alias(model: str) -> ModelName | None:
    """Find `model` among aliases and their hub ids, whatever its case."""
    for alias, hub_ids in ALIASES.items():
        if model.lower() == TINY and alias == TINY:
            return ModelName(name=TINY, folder=tiny_folder())
        if model.lower() == alias.lower():
            return ModelName(name=alias, hub_ids=hub_ids, config=alias)
        named = tuple(hub_id for hub_id in hub_ids if hub_id.lower() == model.lower())
        if named and not os.path.exists(model):
            return ModelName(name=named[0], hub_ids=named, config=alias)
    return None


def _file(model: str, path: Path) -> ModelName:
    """Accept a `.gguf` file; say what to give instead for any other."""
    if path.suffix.lower() == ".gguf":
        return ModelName(name=path.stem, gguf=path)
    raise UsageError(
        f"--model {model} is a file, but not a .gguf one",
        hint=f"give the folder that holds config.json: --model {path.parent}",
    )
