"""From `--model` to a model that the engine can borrow: weights, tokenizer, generation config."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexinfer.config import ModelOptions, Report, quiet
from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.weights import names
from flexinfer.weights.families import check_transformers, text_config

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A text model that flexinfer itself loaded, in eval mode on its device.

    `module` is a Hugging Face *ForCausalLM; `packed` says that q,k,v and gate,up are row views of
    shared buffers; `notices` are lines for the user; `load_s` is in seconds of wall clock.
    """

    name: str
    module: nn.Module
    tokenizer: PreTrainedTokenizerFast
    generation_config: Mapping[str, Any]
    eos_ids: frozenset[int]
    notices: tuple[str, ...]
    packed: bool
    load_s: float


def load(options: ModelOptions, report: Report = quiet) -> LoadedModel:
    """Load what `options` ask for; raises UsageError, EnvironmentUnfit or NotEnoughMemory."""
    start = time.perf_counter()
    check_transformers()
    _refuse_later(options)
    from flexinfer.weights import checkpoint, dummy, place, skeleton, tokenizer

    found = names.resolve(options.model)
    if options.load_format == "dummy":
        raw, generation = _dummy_config(found)
    else:
        folder = found.folder or _no_hub(found)
        raw, generation = _folder_config(folder)
    config = text_config(raw, found.name)
    device = place.device(options.device)
    dtype, dtype_notice = place.dtype(options.dtype, device, config.dtype)
    model = skeleton.shell(config)
    if options.load_format == "dummy":
        skeleton.materialise(model, dtype, device)
        dummy.fill(model, options.seed, report)
        token = tokenizer.embedded()
    else:
        plan = checkpoint.Plan(checkpoint.Checkpoint(folder), model)
        skeleton.materialise(model, dtype, device)
        plan.copy(model, report)
        token = tokenizer.from_folder(folder)
    return LoadedModel(
        name=found.name,
        module=model,
        tokenizer=token,
        generation_config=generation,
        eos_ids=_eos_ids(generation, config, token),
        notices=(f"device: {device}", dtype_notice),
        packed=True,
        load_s=time.perf_counter() - start,
    )


def _refuse_later(options: ModelOptions) -> None:
    """Refuse options that this version does not carry out; none is ever ignored."""
    if options.adapter is not None:
        if not options.adapter.startswith("random") and not Path(options.adapter).is_dir():
            raise UsageError(f"--adapter {options.adapter}: there is no such folder")
        raise EnvironmentUnfit("--adapter is not supported by this version")
    if options.load_in_4bit:
        raise EnvironmentUnfit("--load-in-4bit is not supported by this version")


def _dummy_config(found: names.ModelName) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (config, generation config) for random weights: embedded, or a folder's."""
    from flexinfer.weights.checkpoint import read_json

    if found.config is not None:
        whole = read_json(names.config_file(found.config))
        return whole["config"], whole["generation_config"]
    if found.folder is not None:
        return _folder_config(found.folder)
    raise UsageError(f"--load-format dummy: no config is embedded for {found.name}")


def _folder_config(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (config, generation config or {}) of a checkpoint folder."""
    from flexinfer.weights.checkpoint import read_json

    generation = folder / "generation_config.json"
    return read_json(folder / "config.json"), read_json(generation) if generation.is_file() else {}


def _no_hub(found: names.ModelName) -> Path:
    raise EnvironmentUnfit(f"{found.name} is neither cached nor reachable")


def _eos_ids(generation: Mapping[str, Any], config: Any, tokenizer: Any) -> frozenset[int]:
    """Return the set of end ids: the generation config's, else the config's, else the tokenizer's."""
    for ids in (generation.get("eos_token_id"), config.eos_token_id, tokenizer.eos_token_id):
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
