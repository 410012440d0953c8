"""FlashAttention 4 for prefill: what is there, whether it is taken, and what is said of it."""

from __future__ import annotations

import os
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from importlib import import_module, metadata
from itertools import product
from tempfile import TemporaryFile
from typing import NamedTuple, cast

import torch
from torch import Tensor

from flexinfer.attention.choose_fa4 import (
    CANNOT,
    INSTALL,
    Fa4Choice,
    HeadShape,
    architecture,
    choose_for,
)
from flexinfer.attention.fa4 import MANY, Fa4Kernels, Varlen
from flexinfer.attention.fa4_trial import ERROR_LIMIT, trial
from flexinfer.attention.kernel import AttentionKernels
from flexinfer.attention.spec import LayerSpec
from flexinfer.config import EngineConfig
from flexinfer.core.cache_folder import cache_folder
from flexinfer.errors import EnvironmentUnfit, UsageError, one_line
from flexinfer.models.decoder import Decoder

CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE_"
"""FA4's variables: ..ENABLED=1 keeps what it compiles on disk, in ..DIR."""


class Work(NamedTuple):
    """What prefill will be asked for.

    Tokens of a page, the limit of a sequence in tokens, and tiles of a step at most: each is an
    entry of FA4's.
    """

    page: int
    longest: int
    tiles: int


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
    work: Work,
) -> tuple[AttentionKernels, tuple[str, ...]]:
    """Return the back end, with FA4's prefill where it is taken, and notices.

    Raises EnvironmentUnfit where it is forced and cannot be had (but see `choose_fa4`) or broke the
    device, UsageError beside options that are another prefill's.
    """
    facts = facts_of(weight)
    choice = _choice(config, decoder, facts, work.longest)
    if choice.use:
        assert facts.capability is not None, "without a CUDA device it is not taken"
        _keep_compiled(facts.capability)
        try:
            varlen = _tried(decoder, weight, work.page, (0, MANY) if work.tiles > MANY else (0,))
        except EnvironmentUnfit as error:
            _check_alive(weight.device, error)
            if config.fa4_prefill:
                raise
            why = error.message.removeprefix(CANNOT)
            return kernels, (f"FA4 prefill: off ({why})",)
        said = f"FA4 prefill: on, flash-attn-4 {facts.fa4} ({choice.reason})"
        return Fa4Kernels(kernels, varlen, work.page), (said,)
    if choice.warning:
        return kernels, (f"warning: --fa4-prefill is not in effect: {choice.reason}",)
    quiet = facts.capability is None or (facts.fa4 is None and config.fa4_prefill is None)
    return kernels, () if quiet else (f"FA4 prefill: off ({choice.reason})",)


def _choice(config: EngineConfig, decoder: Decoder, facts: Facts, longest: int) -> Fa4Choice:
    """Decide, other settings considered."""
    wanted, specs = config.fa4_prefill, decoder.specs
    heads = dict.fromkeys(HeadShape(s.head_dim, s.heads // s.kv_heads) for s in specs)
    windows = any(spec.window is not None for spec in specs)
    choice = choose_for(wanted, facts.capability, heads, facts.fa4, facts.torch, longest, windows)
    if not choice.use:
        return choice
    if wanted and config.prefill_kernel_options:
        raise UsageError(
            "--prefill-kernel-options are flex_attention's and do not go with --fa4-prefill",
            hint="leave one of them out",
        )
    against = {
        "it needs bfloat16 or float16": not facts.half,
        "it has not been tested with --batch-invariant": config.batch_invariant,
        "--prefill-kernel-options are flex_attention's": bool(config.prefill_kernel_options),
    }
    if wanted is None:
        other = config.attention not in ("auto", "triton")
        against[f"--attention {config.attention} was asked for"] = other
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
    try:
        varlen = cast("Varlen", import_module("flash_attn.cute").flash_attn_varlen_func)
        for spec, more in product(_kinds(decoder.specs), idle):
            error = trial(varlen, spec, page, weight.dtype, weight.device, more)
            if error > ERROR_LIMIT:
                raise ArithmeticError(f"wrong by {error:.2g} at head dim {spec.head_dim}")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise EnvironmentUnfit(
            f"{CANNOT}flash-attn-4 does not work here: {type(error).__name__}: {one_line(error)}",
            hint=f"{INSTALL}, or leave it out",
        ) from error
    return varlen


def _check_alive(device: torch.device, cause: EnvironmentUnfit) -> None:
    """Raise EnvironmentUnfit where a kernel of the trial has left the device unusable."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except Exception as error:
        raise EnvironmentUnfit(cause.message, hint="--no-fa4-prefill leaves it out") from error


def _keep_compiled(capability: tuple[int, int]) -> None:
    """Have FA4 keep what it compiles beside the tiles, unless its variables say otherwise.

    It tells neither devices nor CUDA apart in all it keeps, so each kind has a folder (a process
    has one: its first engine's). Files in it are run, so it has to be its owner's alone. Where it
    is not, or cannot be written or locked, nothing is kept.
    """
    if f"{CACHE}ENABLED" in os.environ:
        return
    with suppress(OSError, RuntimeError):
        if f"{CACHE}DIR" not in os.environ:
            made_for = f"{architecture(capability)}-cuda-{torch.version.cuda}"
            folder = cache_folder() / "flash-attn-4" / made_for
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = folder.stat()
            if held.st_uid != os.getuid() or held.st_mode & 0o022:
                return
            with TemporaryFile(dir=folder) as file:
                flock(file, LOCK_EX | LOCK_NB)
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
