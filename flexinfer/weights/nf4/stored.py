"""4-bit weights in safetensors: a weight's bytes and statistics, seen as one matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from flexinfer.errors import UsageError
from flexinfer.weights.checkpoint import Stored, opened
from flexinfer.weights.nf4.state import STATE, read_state

_STATE = ".weight.quant_state.bitsandbytes__"
_NESTED = frozenset({"nested_absmax", "nested_quant_map"})


def folded(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return `stored` with every 4-bit weight as one entry of the matrix's shape.

    Its `parts` are what is stored: `weight` and its statistics by their last names. Raises
    UsageError for another type than NF4 and where a statistic is missing.
    """
    left = dict(stored)
    for key, facts in list(_states(stored)):
        base = key.partition(_STATE)[0] + ".weight"
        kind = key.partition(_STATE)[2]
        if kind != "nf4":
            raise UsageError(f"{base} is stored as {kind}; of 4-bit types only nf4 is read")
        parts = {
            n.removeprefix(f"{base}."): left.pop(n) for n in stored if n.startswith(base + ".")
        }
        wanted = {"absmax", "quant_map"} | (_NESTED if "nested_blocksize" in facts else set())
        missing = sorted(wanted - parts.keys()) + ([] if base in left else ["weight"])
        if missing:
            raise UsageError(f"{base} is stored in 4 bits without {', '.join(missing)}")
        whole = left[base]
        left[base] = Stored(whole.path, tuple(facts["shape"]), {"weight": whole, **parts})
    return left


def _states(stored: Mapping[str, Stored]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the content of every quantisation state, {} of other types than NF4."""
    names = sorted((name for name in stored if _STATE in name), key=lambda n: stored[n].path)
    for path, group in groupby(names, key=lambda name: stored[name].path):
        with opened(path) as file:
            for name in group:
                if name.endswith(STATE):
                    yield name, read_state(name, file.get_tensor(name))
                else:
                    yield name, {}
