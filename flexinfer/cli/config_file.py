"""`--config FILE.yaml`: options from a file, which those on the command line overrule."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperOption

from flexinfer.cli.app import Command
from flexinfer.errors import UsageError, one_line

FLAG = "--config"


class ConfiguredCommand(Command):
    """A command whose defaults come from the file that its `--config` names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the file first; raises UsageError for what is wrong in it."""
        path = _named(args)
        if path is not None:
            held = _read(Path(path))
            ctx.default_map = dict(ctx.default_map or {}) | self._defaults(held, path)
        return super().parse_args(ctx, args)

    def _defaults(self, held: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return the file's values by parameter; names are those of the options."""
        by_option = {
            word.removeprefix("--"): param
            for param in self.params
            if isinstance(param, TyperOption)
            for word in param.opts
            if word.startswith("--") and word not in (FLAG, "--help")
        }
        found: dict[str, Any] = {}
        for key, value in held.items():
            name = str(key).replace("_", "-")
            if name not in by_option:
                near = difflib.get_close_matches(name, by_option, n=1)
                hint = f"did you mean {near[0]}?" if near else "names are those of the options"
                raise UsageError(f"{FLAG} {path}: {key!r} is no option of this command", hint=hint)
            param = by_option[name]
            if param.name in found:
                raise UsageError(f"{FLAG} {path}: {name} is given twice")
            if isinstance(value, bool) and not param.is_flag:
                raise UsageError(f"{FLAG} {path}: {name} takes a value, not {str(value).lower()}")
            many = param.multiple and not isinstance(value, list)
            found[str(param.name)] = [value] if many else value
        return found


def _named(args: Sequence[str]) -> str | None:
    """Return the last file that the words name."""
    path = None
    for word, following in zip(args, [*args[1:], None], strict=True):
        if word == FLAG:
            path = following
        elif word.startswith(FLAG + "="):
            path = word.removeprefix(FLAG + "=")
    return path


def _read(path: Path) -> Mapping[str, Any]:
    """Return the mapping that a YAML file holds; raises UsageError."""
    import yaml

    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{FLAG} {path} cannot be read: {one_line(error)}") from error
    if not isinstance(held, Mapping):
        raise UsageError(f"{FLAG} {path} holds no mapping of options to values")
    return held
