"""How typer's commands behave here: plain help in sections, and errors as terminal.failures has."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from flexinfer.cli.terminal.failures import USAGE, guard
from flexinfer.cli.terminal.signals import interruptible, terminable


class Command(TyperCommand):
    """A command whose --help groups its options by their panel, without starting rich."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; an error that knows no command is given this one, as others are."""
        try:
            return super().parse_args(ctx, args)
        except USAGE as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel, in the order in which the options are declared."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_panel(param), []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class Group(TyperGroup):
    """The commands together; whatever goes wrong in one ends as an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line (default: the process's own) and exit with its code."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            # half a surrogate pair, such as a byte of a path, is written as JSON escapes it
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
        words = list(sys.argv[1:] if args is None else args)
        options = words[: words.index("--")] if "--" in words else words

        def run() -> int:
            context = self.make_context(prog_name or "flexinfer", list(words))
            with interruptible(), context:
                return int(self.invoke(context) or 0)

        with terminable():
            code = guard(run, debug="--debug" in options)
        if standalone_mode:
            sys.exit(code)
        return code


def _panel(param: Any) -> str:
    """Return the section of --help that an option or an argument stands in."""
    known = isinstance(param, TyperOption | TyperArgument)
    return (known and param.rich_help_panel) or "Options"
