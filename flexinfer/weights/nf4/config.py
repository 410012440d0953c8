"""What config.json says about stored 4-bit weights; other ways of quantising are refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.weights.adapters.patterns import endless

_BEGINS = r"(?:{})(?:\.|$)"


class Scheme(NamedTuple):
    """Linears as bitsandbytes NF4: doubly quantised or not; `skip` names modules that stay."""

    double: bool
    skip: tuple[str, ...]

    def keeps(self, name: str) -> bool:
        """Tell whether the module `name` stays as it is, as transformers reads such a list.

        An entry is a beginning up to a dot (a regular expression) or an end; one of a multimodal
        checkpoint keeps its text model in `language_model`.
        """
        return any(name.endswith(e) or re.match(_BEGINS.format(e), name) for e in self._entries())

    def check(self, names: Collection[str], told: str) -> None:
        """Raise UsageError, naming `told`, where matching an entry with `names` never ends."""
        for entry in self._entries():
            if endless("match", _BEGINS.format(entry), names):
                raise UsageError(f"{told}: matching llm_int8_skip_modules {entry!r} takes too long")

    def _entries(self) -> Iterator[str]:
        """Yield `skip` as a text model calls its modules."""
        return (entry.replace("model.language_model.", "model.", 1) for entry in self.skip)


def stored_scheme(raw: Mapping[str, Any], name: str) -> Scheme | None:
    """Return how a checkpoint is quantised, None where it is not.

    Raises EnvironmentUnfit, naming the method, for all but bitsandbytes NF4.
    """
    found = raw.get("quantization_config")
    if found is None or found == {}:
        return None
    if not isinstance(found, Mapping):
        raise UsageError(f"{name}: quantization_config in config.json is no object")
    method = _method(found)
    if method != "nf4":
        raise EnvironmentUnfit(
            f"{name} is quantised ({method}), which is not supported",
            hint="give the unquantised checkpoint",
        )
    double = bool(found.get("bnb_4bit_use_double_quant"))
    return Scheme(double, _skipped(found.get("llm_int8_skip_modules"), name))


def _skipped(entries: Any, name: str) -> tuple[str, ...]:
    """Return the names of modules that stay; raises UsageError where they are no patterns."""
    listed = [] if entries is None else entries
    if isinstance(listed, list) and all(isinstance(entry, str) for entry in listed):
        with suppress(re.error):
            return tuple(entry for entry in listed if re.compile(entry))
    raise UsageError(f"{name}: llm_int8_skip_modules in config.json is no list of module names")


def _method(found: Mapping[str, Any]) -> str:
    """Return the name of a method of quantising: `nf4` for the one that is read."""
    method = str(found.get("quant_method", "unknown method"))
    if method != "bitsandbytes":
        return method
    if found.get("load_in_8bit") or found.get("_load_in_8bit"):
        return "bitsandbytes int8"
    if not (found.get("load_in_4bit") or found.get("_load_in_4bit")):
        return method
    kind = found.get("bnb_4bit_quant_type", "fp4")
    return "nf4" if kind == "nf4" else f"bitsandbytes {kind}"
