"""The kernel options of flex_attention: which there are, and which do something where it runs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from flexinfer.errors import OutOfRange, UsageError

BACKENDS = ("AUTO", "TRITON", "FLASH", "TRITON_DECODE")
_FORWARD = ("num_warps", "num_stages", "BLOCK_M", "BLOCK_N")
_BACKWARD = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
_AMD = ("kpack", "matrix_instr_nonkdim", "waves_per_eu")
_SWITCHES = ("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "USE_TMA")
_KINDS: Mapping[str, type] = (
    dict.fromkeys((*_FORWARD, *_BACKWARD, *_AMD), int)
    | dict.fromkeys((*_SWITCHES, "WRITE_DQ", "FORCE_USE_FLEX_ATTENTION"), bool)
    | {"BACKEND": str}
)
_WORDS = {int: "1 or more, in whole numbers", bool: "true or false", str: ", ".join(BACKENDS)}
KNOWN = tuple(_KINDS)
"""The names in torch's FlexKernelOptions."""


def check_options(flag: str, given: Mapping[str, Any]) -> None:
    """Raise UsageError for a name that flex_attention does not know or a value of another type."""
    for name, value in given.items():
        if name not in _KINDS:
            raise UsageError(f"{flag}: {name!r} is no kernel option", hint=_nearest(name))
        if not _fits(_KINDS[name], value):
            wrong = OutOfRange(name, value, _WORDS[_KINDS[name]])
            raise UsageError(f"{flag}: {wrong.said(name)}")


def idle_options(flag: str, given: Mapping[str, Any], on_cuda: bool) -> tuple[str, ...]:
    """Return a notice where options have no effect: all on a CPU, the backward's anywhere."""
    idle = [name for name in given if not on_cuda or name in (*_BACKWARD, "WRITE_DQ")]
    where = "in a forward pass" if on_cuda else "on a CPU"
    return (f"{flag}: {', '.join(idle)} without effect {where}",) if idle else ()


def _fits(kind: type, value: Any) -> bool:
    """Tell whether a value is of a kind, JSON's true not being a number, and in its range."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return value in BACKENDS if kind is str else isinstance(value, int) and value >= 1


def _nearest(name: str) -> str:
    """Say which known name is meant, or which there are."""
    spelt = {known.lower(): known for known in KNOWN}
    near = difflib.get_close_matches(name.lower(), spelt, n=1)
    return f"did you mean {spelt[near[0]]}?" if near else f"known: {', '.join(KNOWN)}"
