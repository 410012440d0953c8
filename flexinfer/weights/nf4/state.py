"""A stored 4-bit weight: what its state and statistics must be, before bitsandbytes sees them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from flexinfer.errors import UsageError

STATE = "quant_state.bitsandbytes__nf4"
"""The last part of a state's name."""
LARGEST = 2**31
CODES, NESTED_CODES = 16, 256
"""Values of NF4, and of the bytes that doubly quantised scales are."""


def _count(value: Any) -> bool:
    return type(value) is int and 0 < value < LARGEST


def _dtype(value: Any) -> bool:
    return value in ("float32", "float16", "bfloat16")


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST


_PLAIN: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "quant_type": lambda value: value == "nf4",
        "blocksize": _count,
        "dtype": _dtype,
        "shape": lambda value: isinstance(value, list) and [*map(_count, value)] == [True, True],
    }
)
_NESTED: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {"nested_blocksize": _count, "nested_dtype": _dtype, "nested_offset": _number}
)


def read_state(name: str, state: Tensor) -> dict[str, Any]:
    """Return the facts of the state called `name`; raises UsageError where they are none."""
    try:
        facts: Any = json.loads(bytes(state.tolist())) if state.dtype == torch.uint8 else None
    except (ValueError, TypeError, RecursionError):
        facts = None
    if isinstance(facts, dict):
        wanted = {**_PLAIN, **(_NESTED if facts.keys() & _NESTED.keys() else {})}
        if facts.keys() == wanted.keys() and all(ok(facts[key]) for key, ok in wanted.items()):
            return facts
    raise UsageError(f"{name} holds no quantisation state of NF4", hint="download it again")


def check_parts(name: str, parts: Mapping[str, Tensor]) -> None:
    """Raise UsageError where a weight's statistics are not what its state says."""
    facts = read_state(f"{name}.{STATE}", parts[STATE])
    rows, inputs = facts["shape"]
    blocks = math.ceil(rows * inputs / facts["blocksize"])
    wanted = {"quant_map": (CODES, torch.float32), "absmax": (blocks, torch.float32)}
    if "nested_blocksize" in facts:
        wanted["absmax"] = (blocks, torch.uint8)
        wanted["nested_absmax"] = (math.ceil(blocks / facts["nested_blocksize"]), torch.float32)
        wanted["nested_quant_map"] = (NESTED_CODES, torch.float32)
    for part, (length, dtype) in wanted.items():
        found = parts[part]
        if tuple(found.shape) != (length,) or found.dtype != dtype:
            kinds = [str(kind).removeprefix("torch.") for kind in (found.dtype, dtype)]
            raise UsageError(
                f"{name}.{part} is {kinds[0]} {list(found.shape)}, its state wants {kinds[1]} "
                f"[{length}]",
                hint="download it again",
            )
