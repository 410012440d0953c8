"""The glue between option groups and typer: a group is a dataclass, typer sees single options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

import typer


def option(
    *names: str,
    panel: str,
    metavar: str | None = None,
    help: str = "",
    parser: Callable[[str | int], object] | None = None,
) -> Any:
    """Declare an option: its spellings, the section of --help it stands in, its value's name.

    `parser` reads what typer could not.
    """
    return typer.Option(*names, rich_help_panel=panel, metavar=metavar, help=help, parser=parser)


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """Wrap `command` so that typer sees the fields of its dataclass parameters as options.

    A field is `name: Annotated[type, option(...)] = default`; other parameters stay as they are.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {n: hint for n, hint in hints.items() if is_dataclass(hint)}

    @wraps(command)
    def flat(**values: Any) -> int:
        whole = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **whole)

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, plain in inspect.signature(command, eval_str=True).parameters.items()
        for parameter in (_options(groups[name]) if name in groups else [plain])
    ]
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    return flat


def _options(group: type[Any]) -> list[inspect.Parameter]:
    """Return a parameter for each field of a group."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> Any:
    """Return a field's default, or the mark for "required"."""
    return inspect.Parameter.empty if field.default is MISSING else field.default
