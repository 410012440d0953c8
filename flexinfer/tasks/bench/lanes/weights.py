"""The sweep over weights: plain, with an adapter merged or beside them, in 16 or in 4 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from flexinfer.config import LoraMode, ModelOptions
from flexinfer.errors import UsageError


class Form(NamedTuple):
    """How weights are brought in: in 4 bits or not, and the adapter, if at all."""

    packed: bool
    lora_mode: LoraMode | None


FORMS = MappingProxyType(
    {
        "plain": Form(False, None),
        "merged": Form(False, "merged"),
        "runtime": Form(False, "runtime"),
        "4bit": Form(True, None),
        "4bit+merged": Form(True, "merged"),
        "4bit+runtime": Form(True, "runtime"),
    }
)
"""What --weights takes."""


def parse_weights(text: str | None) -> tuple[str, ...]:
    """Read `plain,merged,4bit` (the value of --weights), () for none; raises UsageError."""
    names = () if text is None else tuple(part.strip() for part in text.split(","))
    check_weights(names)
    return names


def check_weights(names: Sequence[str]) -> None:
    """Raise UsageError for a form that there is not, or one that is named twice."""
    unknown = [name for name in names if name not in FORMS]
    if unknown or len(set(names)) < len(names):
        known = ", ".join(FORMS)
        raise UsageError(f"--weights is {','.join(names)!r}; allowed: {known}, each once")


def options_of(options: ModelOptions, names: Sequence[str]) -> list[ModelOptions]:
    """Return the model's options for each form, as they are where none is named.

    Raises UsageError where what is swept is also asked for, or an adapter is missing.
    """
    if not names:
        return [options]
    for given, flag in (
        (options.load_in_4bit, "--load-in-4bit"),
        (options.lora_mode is not None, "--lora-mode"),
    ):
        if given:
            raise UsageError(f"{flag} is what --weights sweeps", hint="leave one of them out")
    forms = [FORMS[name] for name in names]
    if options.adapter is None and any(form.lora_mode for form in forms):
        raise UsageError(
            f"--weights {','.join(names)} needs an adapter", hint="as in --adapter random:32"
        )
    return [
        replace(
            options,
            adapter=options.adapter if form.lora_mode else None,
            lora_mode=form.lora_mode,
            load_in_4bit=form.packed,
        )
        for form in forms
    ]
