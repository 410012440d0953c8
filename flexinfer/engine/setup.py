"""Builds what an engine runs on (decoder, cache, back end, programs) and says what it chose."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flexinfer.attention.cache import PagedKVCache, bytes_per_page
from flexinfer.attention.choose import (
    Choice,
    choose_attention,
    decode_options,
    prefill_options,
)
from flexinfer.attention.dense import DenseKernels
from flexinfer.attention.flex import FlexKernels
from flexinfer.attention.kernel import AttentionKernels
from flexinfer.attention.options import check_options, idle_options
from flexinfer.attention.tables import PageTables
from flexinfer.config import EngineConfig
from flexinfer.core.pages import PagePool
from flexinfer.core.scheduler import Scheduler
from flexinfer.engine.fa4 import Work, fa4_prefill
from flexinfer.engine.forms import Forms, forms_of, merge_of, obstacle_of
from flexinfer.engine.invariant import check_invariant
from flexinfer.engine.memory import PagePlan, plan_pages
from flexinfer.engine.notices import notices_of, sight
from flexinfer.engine.requests.limits import Limits, known_positions, limits
from flexinfer.engine.steps.prefill import most_tiles
from flexinfer.engine.steps.programs import Programs
from flexinfer.engine.steps.state import SlotState
from flexinfer.errors import EnvironmentUnfit
from flexinfer.kernels.compiled import CompiledOps
from flexinfer.models.decoder import Decoder, unchanged
from flexinfer.weights.inference import InferenceWeights
from flexinfer.weights.load import LoadedModel
from flexinfer.weights.place import available_bytes

PAGE_SIZE = {"cuda": 32, "cpu": 16}
TILE = {"cuda": 128, "cpu": 32}
"""Queries of a prefill tile; on a CPU short prompts are the rule."""


COMPILES = (
    "flex_attention is compiled before the first prefill and the first decode step, which takes "
    "half a minute or more where nothing of it is cached"
)
"""Said on a CPU, where nothing else is compiled and nobody expects the wait."""


@dataclass(frozen=True)
class Setup:
    """Everything a loop needs, and the lines that say what was chosen and why."""

    scheduler: Scheduler
    programs: Programs
    weights: InferenceWeights
    max_seq_length: int
    graphs: bool
    prefill_graphs: bool
    notices: tuple[str, ...]


def set_up(loaded: LoadedModel, config: EngineConfig) -> Setup:
    """Plan memory and build; raises EnvironmentUnfit or NotEnoughMemory."""
    _check_options(config)
    weight = next(loaded.module.parameters())
    device, on_cuda = weight.device, weight.device.type == "cuda"
    graphs = _graphs(config.cuda_graphs, on_cuda)
    weights = InferenceWeights(loaded.module, loaded.adapter, merge_of(device))
    decoder = weights.decoder
    choice = _choice(config, decoder, weight)
    forms = forms_of(choice, device, config.batch_invariant)
    decoder = decoder if forms.ops is None else decoder.with_ops(forms.ops)
    longest, page, cut = _limits(config, loaded, PAGE_SIZE[device.type])
    plan = _plan(decoder, config, page, longest, weight)
    if config.batch_invariant:
        check_invariant(plan, weights, on_cuda)
    pool = PagePool(plan.n_pages, page)
    tile = TILE[device.type]
    scheduler = Scheduler(
        pool, config.max_batch_size, longest, config.prefill_tokens,
        fixed_tile=tile if config.batch_invariant else None,
    )  # fmt: skip
    compiled = choice.name == "flex" and on_cuda
    kernels = _kernels(choice, page, plan.n_pages, on_cuda, config, forms)
    work = Work(page, longest, most_tiles(config.prefill_tokens, config.max_batch_size, tile))
    kernels, prefill = fa4_prefill(kernels, decoder, config, weight, work)
    programs = Programs(
        prefill_decoder=decoder.with_ops(CompiledOps()) if compiled else decoder,
        decode_decoder=decoder.transformed(_compiler(compiled)),
        cache=PagedKVCache(decoder.specs, plan.n_pages, page, weight.dtype, device),
        tables=PageTables(config.max_batch_size, pool.pages_for(longest), plan.n_pages, device),
        kernels=kernels,
        state=SlotState(config.max_batch_size, decoder.vocab_size, device),
        tile=tile,
        transform=_compiler(compiled),
        feed=forms.feed,
        lookup=forms.lookup,
    )
    attention = f"attention: {choice.name} ({choice.reason}), {sight(programs.windows)}"
    said = (*cut, *notices_of(graphs, plan, page, longest, config), *_idle(config, on_cuda))
    if choice.name == "flex" and not on_cuda:
        said = (*said, COMPILES)
    notices = (attention, *prefill, *said, *forms.notices)
    # dense tiles read page counts on the host, which no graph can
    prefill_graphs = graphs and choice.name != "dense"
    return Setup(scheduler, programs, weights, longest, graphs, prefill_graphs, notices)


def _check_options(config: EngineConfig) -> None:
    """Refuse kernel options that nobody knows; none is ignored."""
    check_options("--prefill-kernel-options", config.prefill_kernel_options)
    check_options("--decode-kernel-options", config.decode_kernel_options)


def _idle(config: EngineConfig, on_cuda: bool) -> tuple[str, ...]:
    """Return a notice for each option whose value, or a part of it, has no effect."""
    return (
        *idle_options("--prefill-kernel-options", config.prefill_kernel_options, on_cuda),
        *idle_options("--decode-kernel-options", config.decode_kernel_options, on_cuda),
    )


def _graphs(wanted: bool | None, on_cuda: bool) -> bool:
    """Return whether decode steps are captured: wherever there is CUDA, unless switched off."""
    if wanted and not on_cuda:
        raise EnvironmentUnfit("--cuda-graphs needs a CUDA device", hint="use --no-cuda-graphs")
    return on_cuda if wanted is None else wanted


def _limits(config: EngineConfig, loaded: LoadedModel, usual_page: int) -> Limits:
    """Return the longest sequence and the page size; raises UsageError beyond the model's own."""
    model_config: Any = loaded.module.config
    known = known_positions(model_config.to_dict())
    return limits(config.max_seq_length, config.page_size, usual_page, known, loaded.name)


def _plan(
    decoder: Decoder, config: EngineConfig, page: int, longest: int, weight: Tensor
) -> PagePlan:
    """Decide how many pages the cache has."""
    columns = -(-longest // page)
    hidden = weight.shape[-1]
    per_token = 64 * hidden * weight.dtype.itemsize
    logits = config.max_batch_size * decoder.vocab_size * 4 * 8
    return plan_pages(
        wanted=config.max_batch_size * columns + 1,
        least=columns + 1,
        page_bytes=bytes_per_page(decoder.specs, page, weight.dtype),
        granted=config.kv_memory,
        available=available_bytes(weight.device),
        reserve=config.prefill_tokens * per_token + logits,
    )


def _choice(config: EngineConfig, decoder: Decoder, weight: Tensor) -> Choice:
    """Choose the back end for a model on the device of its weights; kernel options ask for flex."""
    wanted, on = config.attention, weight.device.type
    tuned = bool(config.decode_kernel_options or config.prefill_kernel_options)
    obstacle = obstacle_of(decoder, weight)
    return choose_attention(wanted, on, shutil.which("g++"), obstacle, tuned)


def _kernels(
    choice: Choice, page: int, n_pages: int, on_cuda: bool, config: EngineConfig, forms: Forms
) -> AttentionKernels:
    """Build the chosen back end."""
    if choice.name == "dense":
        return DenseKernels(page, alone=config.batch_invariant)
    if choice.name == "triton":
        from flexinfer.attention.paged_triton import TritonKernels

        return TritonKernels(page, forms.tiles)
    return FlexKernels(
        page,
        n_pages,
        on_cuda,
        _options(decode_options, page, on_cuda, config.decode_kernel_options),
        _options(prefill_options, page, on_cuda, config.prefill_kernel_options),
    )


def _options(
    choose: Callable[[int, int, bool, Mapping[str, Any]], dict[str, Any]],
    page: int,
    on_cuda: bool,
    given: Mapping[str, Any],
) -> Callable[[int], Mapping[str, Any]]:
    """Return kernel options as a function of head_dim alone."""
    return lambda head_dim: choose(head_dim, page, on_cuda, given)


def _compiler(compiled: bool) -> Any:
    """Return how decode's pure functions are wrapped."""
    return partial(torch.compile, fullgraph=True, dynamic=False) if compiled else unchanged
