"""What is announced but not in this version: the one list, for refusals, help texts and doctor.

Taking a name out lifts the refusal, the mark in the help and doctor's word at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from flexinfer.errors import EnvironmentUnfit

UNSUPPORTED: frozenset[str] = frozenset()
"""None now. Options, values of options (`--backend hf`) and commands."""

OF_MODE: Mapping[str, str] = MappingProxyType(
    {"lora": "--adapter", "4bit": "--load-in-4bit", "grpo": "train-grpo"}
)
"""doctor's `--mode` -> what it is asked for; what is not here has been there from the start."""


def lacks(feature: str) -> bool:
    """Whether `feature` is not in this version."""
    return feature in UNSUPPORTED


def refuse(feature: str, hint: str | None = None) -> None:
    """Raise EnvironmentUnfit where `feature` is not in this version."""
    if lacks(feature):
        raise EnvironmentUnfit(f"{feature} is not in this version", hint=hint)


def marked(names: Sequence[str], metavar: str | None, text: str) -> str:
    """Return the help text of an option, with a mark where it or some of its values are refused."""
    spellings = [name for pair in names for name in pair.split("/")]
    if any(map(lacks, spellings)):
        return f"{text.removesuffix('.')} (not in this version)."
    values = (metavar or "").split("|")
    refused = [value for value in values if any(lacks(f"{s} {value}") for s in spellings)]
    if not refused:
        return text
    return f"{text.removesuffix('.')} ({', '.join(refused)}: not in this version)."
