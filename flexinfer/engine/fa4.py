"""FlashAttention 4 for prefill: what is there, whether it is taken, and what is said of it."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module, metadata
from itertools import product
from typing import NamedTuple, cast

import torch
from torch import Tensor

from flexinfer.attention.choose_fa4 import CANNOT, INSTALL, Fa4Choice, HeadShape, choose_for
from flexinfer.attention.fa4 import ERROR_LIMIT, MANY, Fa4Kernels, Varlen, trial
from flexinfer.attention.kernel import AttentionKernels
from flexinfer.attention.spec import LayerSpec
from flexinfer.config import EngineConfig
from flexinfer.core.cache_folder import cache_folder
from flexinfer.errors import EnvironmentUnfit, UsageError, one_line
from flexinfer.models.decoder import Decoder

CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE_"
"""FA4's variables: ..ENABLED=1 keeps what it compiles on disk, in ..DIR."""

QUERIES = 128
"""Queries of a prefill tile on CUDA: a step has an entry a tile, and some more where it is padded.
"""


class Facts(NamedTuple):
    """What the decision hangs on: see `choose_fa4`; `half`: weights are bfloat16 or float16."""

    capability: tuple[int, int] | None
    fa4: str | None
    torch: str
    half: bool


def facts_of(weight: Tensor) -> Facts:
    """Ask the device of the weights and the installed packages; imports nothing."""
    on_cuda = weight.device.type == "cuda"
    capability = torch.cuda.get_device_capability(weight.device) if on_cuda else None
    half = weight.dtype in (torch.bfloat16, torch.float16)
    return Facts(capability, _installed(), torch.__version__, half)


def fa4_prefill(
    kernels: AttentionKernels,
    decoder: Decoder,
    config: EngineConfig,
    weight: Tensor,
    page: int,
    longest: int,
) -> tuple[AttentionKernels, tuple[str, ...]]:
    """Return the back end, with FA4's prefill where it is taken, and notices.

    `page` and `longest` (the limit of a sequence) are in tokens. Raises EnvironmentUnfit where it
    is forced and cannot be had (but see `choose_fa4`), UsageError beside options that are another
    prefill's.
    """
    facts = facts_of(weight)
    choice = _choice(config, decoder, facts, longest)
    if choice.use:
        try:
            most = config.prefill_tokens // QUERIES + config.max_batch_size + 2
            varlen = _tried(decoder, weight, page, (0, MANY) if most > MANY else (0,))
        except EnvironmentUnfit as error:
            if config.fa4_prefill:
                raise
            why = error.message.removeprefix(CANNOT)
            return kernels, (f"FA4 prefill: off ({why})",)
        said = f"FA4 prefill: on, flash-attn-4 {facts.fa4} ({choice.reason})"
        return Fa4Kernels(kernels, varlen, page), (said,)
    if choice.warning:
        return kernels, (f"warning: --fa4-prefill is not in effect: {choice.reason}",)
    quiet = facts.capability is None or (facts.fa4 is None and config.fa4_prefill is None)
    return kernels, () if quiet else (f"FA4 prefill: off ({choice.reason})",)


def _choice(config: EngineConfig, decoder: Decoder, facts: Facts, longest: int) -> Fa4Choice:
    """Decide, other settings considered."""
    wanted = config.fa4_prefill
    if wanted and config.prefill_kernel_options:
        raise UsageError(
            "--prefill-kernel-options are flex_attention's and do not go with --fa4-prefill",
            hint="leave one of them out",
        )
    heads = dict.fromkeys(HeadShape(s.head_dim, s.heads // s.kv_heads) for s in decoder.specs)
    choice = choose_for(wanted, facts.capability, heads, facts.fa4, facts.torch, longest)
    if not choice.use:
        return choice
    against = {
        "it needs bfloat16 or float16": not facts.half,
        "it has not been tested with --batch-invariant": config.batch_invariant,
        "--prefill-kernel-options are flex_attention's": bool(config.prefill_kernel_options),
    }
    obstacle = next((why for why, holds in against.items() if holds), None)
    if obstacle is None:
        return choice
    if wanted:
        raise EnvironmentUnfit(f"{CANNOT}{obstacle}", hint="leave it out")
    return Fa4Choice(False, obstacle)


def _tried(decoder: Decoder, weight: Tensor, page: int, idle: tuple[int, ...]) -> Varlen:
    """Import FA4 and run every kind of layer with each number of `idle` entries (see `trial`).

    Raises EnvironmentUnfit if one fails or is wrong. Versions of FA4, its compiler and torch fit or
    do not fit; running it is what tells.
    """
    _keep_compiled()
    try:
        varlen = cast("Varlen", import_module("flash_attn.cute").flash_attn_varlen_func)
        for spec, more in product(_kinds(decoder.specs), idle):
            error = trial(varlen, spec, page, weight.dtype, weight.device, more)
            if error > ERROR_LIMIT:
                raise ArithmeticError(f"wrong by {error:.2g} at head dim {spec.head_dim}")
    except Exception as error:
        raise EnvironmentUnfit(
            f"{CANNOT}flash-attn-4 does not work here: {type(error).__name__}: {one_line(error)}",
            hint=f"{INSTALL}, or leave it out",
        ) from error
    return varlen


def _keep_compiled() -> None:
    """Have FA4 keep what it compiles beside the tiles, unless its variables say otherwise."""
    if f"{CACHE}ENABLED" in os.environ:
        return
    with suppress(OSError, RuntimeError):  # nowhere to keep it: compiled in every process
        if f"{CACHE}DIR" not in os.environ:
            folder = cache_folder() / "flash-attn-4"
            folder.mkdir(parents=True, exist_ok=True)
            os.environ[f"{CACHE}DIR"] = str(folder)
        os.environ[f"{CACHE}ENABLED"] = "1"


def _kinds(specs: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Return one spec of each kind that FA4 compiles or is told apart."""
    return tuple({(s.heads, s.kv_heads, s.head_dim, s.window): s for s in specs}.values())


def _installed() -> str | None:
    """Return the version of flash-attn-4, None where it is not installed."""
    try:
        return metadata.version("flash-attn-4")
    except metadata.PackageNotFoundError:
        return None
