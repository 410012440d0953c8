"""PEFT's rules from a saved LoraConfig: rank and scale of a module, and whether it is a target.

Rules and precedence are those of peft.utils.other.get_pattern_key and of
peft.tuners.tuners_utils.check_target_module_exists. Names are those in the model that PEFT saw.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flexinfer.errors import UsageError
from flexinfer.weights.adapters.patterns import How, endless

LARGEST = 3.4e38
"""Ranks and alphas are multiplied in fp32."""
_PATTERNED = r"(.*\.)?({})$"
DEFAULT = 8
"""What PEFT takes for `r` and `lora_alpha` where a config has none."""


@dataclass(frozen=True)
class LoraRules:
    """The options of an adapter's config that say which modules it changes, and how strongly."""

    name: str
    options: Mapping[str, Any]

    def check(self, modules: Collection[str]) -> None:
        """Raise UsageError for a regular expression that is never done with these modules."""
        listed: list[tuple[How, str, str]] = [
            ("match", _PATTERNED.format(key), key)
            for table in ("rank_pattern", "alpha_pattern")
            for key in self._table(table)
        ]
        for option in ("target_modules", "exclude_modules"):
            if isinstance(names := self._names(option), str):
                listed.append(("fullmatch", names, names))
        listed += [("match", form, form) for form in self._layer_forms()]
        for how, form, pattern in listed:
            if endless(how, form, modules):
                raise self._refuse(f"matching the pattern {pattern!r} takes too long")

    def rank(self, module: str) -> int:
        """Return the rank of a module; raises UsageError where it is no positive integer."""
        rank = self._patterned("rank_pattern", "r", module)
        if rank != int(rank) or rank < 1:
            raise self._refuse(f"r of {module} is {rank}", "it must be 1 or more")
        return int(rank)

    def scale(self, module: str) -> float:
        """Return alpha / r, or alpha / sqrt(r) with use_rslora."""
        rank = self.rank(module)
        alpha = self._patterned("alpha_pattern", "lora_alpha", module)
        return alpha / (math.sqrt(rank) if self.options.get("use_rslora") else rank)

    def selects(self, module: str) -> bool:
        """Whether PEFT puts LoRA on a linear map of this name; the others it leaves alone."""
        excluded, targets = self._names("exclude_modules"), self._names("target_modules")
        if excluded and self._match(excluded, module):
            return False
        if targets is None or (isinstance(targets, str) and targets.lower() == "all-linear"):
            return True
        if isinstance(targets, str) or module in targets:
            return self._match(targets, module)
        return self._match(targets, module) and self._in_layers(module)

    def _patterned(self, patterns: str, default: str, module: str) -> float:
        """Return the value of the first pattern that matches, in the order of the file."""
        table = self._table(patterns)
        hits = (key for key in table if self._try(re.match, _PATTERNED.format(key), module))
        key = next(hits, None)
        value = self.options.get(default, DEFAULT) if key is None else table[key]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) <= LARGEST
        ):
            raise self._refuse(f"{default if key is None else patterns} of {module} is {value!r}")
        return value

    def _table(self, patterns: str) -> Mapping[str, Any]:
        """Return a table of patterns."""
        table = self.options.get(patterns) or {}
        if not isinstance(table, Mapping):
            raise self._refuse(f"{patterns} is no object")
        return table

    def _names(self, option: str) -> str | list[str] | None:
        """Return a list of names or a regular expression."""
        value = self.options.get(option)
        if isinstance(value, list) and not all(isinstance(name, str) for name in value):
            raise self._refuse(f"{option} is no list of names")
        if value is None or isinstance(value, str | list):
            return value
        raise self._refuse(f"{option} is neither a list of names nor a regular expression")

    def _match(self, names: str | list[str], module: str) -> bool:
        """Whether a regular expression matches all of a name, or a listed name is its end."""
        if isinstance(names, str):
            return bool(self._try(re.fullmatch, names, module))
        return any(module == name or module.endswith(f".{name}") for name in names)

    def _in_layers(self, module: str) -> bool:
        """Whether layers_to_transform, if it says anything, names the module's layer."""
        layers, forms = self.options.get("layers_to_transform"), self._layer_forms()
        if layers is None or layers == []:
            return True
        if not forms:
            found = re.match(r".*?\.[^.]*\.(?P<idx>\d+)\.", module)
        else:
            hits = (self._try(re.match, form, module) for form in forms)
            found = next((hit for hit in hits if hit), None)
        wanted = layers if isinstance(layers, list) else [layers]
        return found is not None and int(found["idx"]) in wanted

    def _layer_forms(self) -> list[str]:
        """Return layers_pattern as whole regular expressions."""
        patterns = self._names("layers_pattern") or []
        listed = [patterns] if isinstance(patterns, str) else patterns
        return [rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\." for pattern in listed]

    def _try(
        self, match: Callable[[str, str], re.Match[str] | None], pattern: str, module: str
    ) -> re.Match[str] | None:
        """Apply a pattern of the config; raises UsageError where it is no regular expression."""
        try:
            return match(pattern, module)
        except re.error as error:
            raise self._refuse(f"{pattern!r} is no regular expression: {error}") from error

    def _refuse(self, what: str, hint: str | None = None) -> UsageError:
        """Return the error that the config cannot be followed."""
        return UsageError(f"adapter {self.name}: {what}", hint=hint or "see adapter_config.json")
