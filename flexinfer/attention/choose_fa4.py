"""Whether prefill goes to FlashAttention 4 (flash-attn-4): pure functions of what is there.

Prefill reads keys and values from pages, so what counts is FA4's forward kernel with a page table.
What the limits below say was read in FA4's sources up to beta 36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from flexinfer.errors import EnvironmentUnfit

HOPPER = (9, 0)
PAGES_BETA = 5
"""The beta from which the kernel for sm_90 reads pages."""

GQA_BETA = 11
"""The beta that mended GQA ratios which do not divide 128 on sm_100."""

SIGNATURE_BETA = 17
"""The beta from which flex's BACKEND="FLASH" of torch 2.11 no longer fits."""

NARROW_BETA = 26
"""The beta that mended page reads where a turn has fewer than 128 keys (head dims over 128)."""

WIDE_BETA = 31
"""The beta from which the kernel of head dim 256 for sm_100 takes lengths of keys beside pages."""

FITTING_TORCH = (2, 12)
"""The torch whose flex fits betas from SIGNATURE_BETA on."""

MEASURED_FASTER: Mapping[tuple[tuple[int, int], int, int], int] = MappingProxyType(
    {((9, 0), 128, 4): 8192, ((9, 0), 128, 3): 8192}
)
"""(capability, head dim, query heads a kv head) -> the tokens of a sequence from which FA4 was
measured faster over whole prefills than the own kernels.

On an H200 (beta 36) Qwen3-4B and Llama-3.2-3B prefill 8 x 8192 tokens 12 and 9 % faster with it,
64 x 512 tokens no faster (0 and -1 %, rounds scatter by 7 %; its kernel alone takes 12 % longer).
"""

MEASURED_BETA = 36
"""The beta that was measured; later ones are taken to be no slower."""

CANNOT = "--fa4-prefill cannot be had: "
INSTALL = 'pip install "flash-attn-4[cu13]" (with CUDA 12: pip install flash-attn-4)'


class HeadShape(NamedTuple):
    """A layer's head dim and its query heads a kv head."""

    head_dim: int
    ratio: int


class Fa4Choice(NamedTuple):
    """Whether prefill goes to FA4, why, and whether a wish is not met, which is a warning."""

    use: bool
    reason: str
    warning: bool = False


def beta(version: str) -> int | None:
    """Return the number of a beta: "4.0.0b36" is 36, a final version None."""
    match = re.search(r"\d(?:\.)?b(?:eta)?(\d+)", version.partition("+")[0])
    return int(match.group(1)) if match else None


def choose_fa4(
    wanted: bool | None,
    capability: tuple[int, int] | None,
    head_dim: int,
    ratio: int,
    fa4: str | None,
    torch: str,
    longest: int,
) -> Fa4Choice:
    """Decide for layers of one head shape.

    `wanted` is True or False where it was asked for or forbidden, None for auto; `capability` is
    that of the device (None: no CUDA device), `ratio` the query heads a kv head, `fa4` the version
    of flash-attn-4 (None: not installed), `longest` the limit of a sequence in tokens. Raises
    EnvironmentUnfit where it is forced on Hopper or newer, or without a CUDA device, and cannot be
    had; an older device makes that a warning.
    """
    if wanted is False:
        return Fa4Choice(False, "--no-fa4-prefill")
    obstacle = fa4_obstacle(capability, head_dim, ratio, fa4)
    older = capability is not None and capability < HOPPER
    if wanted and obstacle is not None and not older:
        hint = f"{INSTALL}, or leave it out" if fa4 is None and capability else "leave it out"
        raise EnvironmentUnfit(f"{CANNOT}{obstacle}", hint=hint)
    if obstacle is not None:
        return Fa4Choice(False, obstacle, warning=bool(wanted))
    if wanted:
        return Fa4Choice(True, f"asked for; {how_called(fa4 or '', torch)}")
    least = MEASURED_FASTER.get((capability, head_dim, ratio)) if capability else None
    on = f"on {architecture(capability)} with head dim {head_dim} and {ratio} query heads a kv head"
    if least is None:
        return Fa4Choice(False, f"not measured faster {on}")
    if (beta(fa4 or "") or MEASURED_BETA) < MEASURED_BETA:
        return Fa4Choice(False, f"not measured before beta {MEASURED_BETA}")
    if longest < least:
        limit = f"the limit here is {longest} (--max-seq-length)"
        why = f"measured faster {on} from sequences of {least} tokens on, and {limit}"
        return Fa4Choice(False, why)
    where = f"{on} where sequences may have {least} tokens"
    return Fa4Choice(True, f"measured faster {where}; {how_called(fa4 or '', torch)}")


def choose_for(
    wanted: bool | None,
    capability: tuple[int, int] | None,
    heads: Iterable[HeadShape],
    fa4: str | None,
    torch: str,
    longest: int,
    windows: bool,
) -> Fa4Choice:
    """Decide for a model: for all of its head shapes or for none; raises as `choose_fa4`.

    `windows`: some layers see but a window, which was not measured. What FA4 cannot do is told
    before that.
    """
    shapes = tuple(heads)
    barred = [shape for shape in shapes if fa4_obstacle(capability, *shape, fa4) is not None]
    choices = [choose_fa4(wanted, capability, *s, fa4, torch, longest) for s in barred or shapes]
    choice = next((choice for choice in choices if not choice.use), choices[0])
    if choice.use and windows and wanted is None:
        return Fa4Choice(False, "not measured with windows")
    return choice


def fa4_obstacle(
    capability: tuple[int, int] | None, head_dim: int, ratio: int, fa4: str | None
) -> str | None:
    """Return why FA4 cannot prefill from pages, or None if it can; see `choose_fa4`."""
    if capability is None:
        return "it needs a CUDA device"
    if capability < HOPPER:
        return f"it needs Hopper or newer, this device is {architecture(capability)}"
    if capability[0] not in (9, 10, 11):
        return f"FlashAttention 4 reads no KV pages on {architecture(capability)}"
    if fa4 is None:
        return "the package flash-attn-4 is not installed"
    return _head_obstacle(capability, head_dim) or version_obstacle(
        capability, head_dim, ratio, fa4
    )


def version_obstacle(
    capability: tuple[int, int], head_dim: int, ratio: int, fa4: str
) -> str | None:
    """Return why this beta is too old for a head shape on a device, or None if it is not."""
    number = beta(fa4)
    if number is None:
        return None
    needs, there = {PAGES_BETA: "does not read KV pages on Hopper"}, architecture(capability)
    if capability[0] == 9 and head_dim > 128:
        needs[NARROW_BETA] = f"misreads KV pages at head dim {head_dim}"
    if capability[0] > 9 and head_dim > 128:
        needs[WIDE_BETA] = f"reads no KV pages at head dim {head_dim} on {there}"
    if capability[0] > 9 and 128 % ratio:
        needs[GQA_BETA] = (
            f"crashes with {ratio} query heads a kv head on {architecture(capability)}"
        )
    least = max(needs)
    return f"flash-attn-4 before beta {least} {needs[least]}" if number < least else None


def how_called(fa4: str, torch: str) -> str:
    """Say which way FA4 is called; it is the same with every torch."""
    number = beta(fa4)
    fits = _release(torch) >= FITTING_TORCH or (number is not None and number < SIGNATURE_BETA)
    if fits:
        return "its own varlen function is called directly"
    return "called directly: flex's FLASH back end of this torch does not fit it"


def _head_obstacle(capability: tuple[int, int], head_dim: int) -> str | None:
    """Return why FA4 has no page-reading kernel of this head dim.

    Up to 128 it takes multiples of 16. On Hopper those between 128 and 256 read rows of pages in
    waves that do not divide a turn's keys, but for 192.
    """
    wide = (192, 256) if capability[0] == 9 else (256,)
    if (head_dim % 16 == 0 and 16 <= head_dim <= 128) or head_dim in wide:
        return None
    return f"FlashAttention 4 reads no pages at head dim {head_dim} on {architecture(capability)}"


def architecture(capability: tuple[int, int] | None) -> str:
    """Return a device's architecture, such as sm_90."""
    return "a CPU" if capability is None else f"sm_{capability[0]}{capability[1]}"


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers: "2.11.0+cu130" is (2, 11)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:2])
