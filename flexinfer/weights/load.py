"""From `--model` to a model that the engine can borrow: weights, tokenizer, generation config."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flexinfer.config import ModelOptions, Report, quiet
from flexinfer.core.imports import large_imports
from flexinfer.errors import NotEnoughMemory, UsageError
from flexinfer.weights import names
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.families import check_transformers, text_config

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerFast

    from flexinfer.weights.sources import Source


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A text model that flexinfer itself loaded, in eval mode on its device.

    `module` is a Hugging Face *ForCausalLM; `packed` says that q,k,v and gate,up are row views of
    shared buffers; `notices` are lines for the user; `load_s` is in seconds of wall clock.
    `adapter` is read when an engine is built.
    """

    name: str
    module: nn.Module
    tokenizer: PreTrainedTokenizerFast
    generation_config: Mapping[str, Any]
    eos_ids: frozenset[int]
    notices: tuple[str, ...]
    packed: bool
    load_s: float
    adapter: AdapterChoice | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for an adapter that no choice was made of."""
        if self.adapter is not None and not isinstance(self.adapter, AdapterChoice):
            raise UsageError(
                f"a LoadedModel takes an AdapterChoice, not a {type(self.adapter).__name__}",
                hint=f"write adapter=AdapterChoice({self.adapter!r})",
            )


def load(options: ModelOptions, report: Report = quiet) -> LoadedModel:
    """Load what `options` ask for; raises UsageError, EnvironmentUnfit or NotEnoughMemory.

    The random state of torch, on every device, is as before.
    """
    start = time.perf_counter()
    check_transformers()
    _check_adapter_options(options)
    with large_imports():
        from flexinfer.weights import sources

    source = sources.choose(options, names.resolve(options.model), report)
    module, notices = _build(source, options, report)
    tokenizer = source.tokenizer()
    return LoadedModel(
        name=source.name,
        module=module,
        tokenizer=tokenizer,
        generation_config=source.generation,
        eos_ids=_eos_ids(source.generation, module.config.eos_token_id, tokenizer.eos_token_id),
        notices=notices,
        packed=True,
        load_s=time.perf_counter() - start,
        adapter=_adapter(options),
    )


def adopt(module: Any, tokenizer: PreTrainedTokenizerFast, name: str | None = None) -> LoadedModel:
    """Return a *ForCausalLM that somebody else loaded as a model that engines can borrow.

    It is never re-pointed: q,k,v and gate,up stay tensors of their own, which engines copy or
    multiply one by one, and say so.
    """
    held = module.generation_config
    generation: dict[str, Any] = {} if held is None else held.to_diff_dict()
    ends = (module.config.eos_token_id, tokenizer.eos_token_id)
    return LoadedModel(
        name=name or module.config.name_or_path or type(module).__name__,
        module=module,
        tokenizer=tokenizer,
        generation_config=generation,
        eos_ids=_eos_ids(generation, *ends),
        notices=(f"device: {module.device}", f"dtype: {str(module.dtype).removeprefix('torch.')}"),
        packed=False,
        load_s=0.0,
    )


def _adapter(options: ModelOptions) -> AdapterChoice | None:
    """Return the adapter that was asked for."""
    if options.adapter is None:
        return None
    return AdapterChoice(options.adapter, options.lora_mode, options.seed)


def _build(source: Source, options: ModelOptions, report: Report) -> tuple[Any, tuple[str, ...]]:
    """Return the filled module and the notices on device, dtype and weights."""
    import torch

    from flexinfer.weights import place, skeleton
    from flexinfer.weights.nf4.model import prepare

    device, device_notice = place.choose_device(options.device)
    config = text_config(source.config, source.name)
    dtype, dtype_notice = place.choose_dtype(options.dtype, device, config.dtype)
    model = skeleton.shell(config, source.generation, source.origin)
    check = (*prepare(model, source, options.load_in_4bit, dtype), *source.check(model))
    place.require_memory(
        skeleton.weight_bytes(model, dtype), device, f"the weights of {source.name}"
    )
    try:
        skeleton.materialise(model, dtype, device)
        source.fill(model, report)
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory(
            f"the weights of {source.name} do not fit on {device}",
            hint="choose a smaller --model or a narrower --dtype",
        ) from error
    return model, (device_notice, dtype_notice, *check)


def _check_adapter_options(options: ModelOptions) -> None:
    """Raise UsageError for an adapter mode without an adapter, or an adapter that is none."""
    if options.lora_mode is not None and options.adapter is None:
        raise UsageError(
            f"--lora-mode {options.lora_mode} has no adapter to run", hint="give --adapter DIR"
        )
    if options.adapter is not None:
        names.check_adapter(options.adapter)


def _eos_ids(generation: Mapping[str, Any], *further: Any) -> frozenset[int]:
    """Return the set of end ids: the generation config's, else the first of `further`."""
    for ids in (generation.get("eos_token_id"), *further):
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
