"""Completion scripts for bash, zsh and fish, written from the commands themselves.

`python -m flexinfer.cli.completions [FOLDER]` writes them (default: ./completions). They are plain
lists, so completing starts no Python; a test compares them with the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexinfer.cli.completion_scripts import Command, Option, bash, fish, zsh
from flexinfer.cli.terminal.failures import say_failure
from flexinfer.errors import FlexinferError, UsageError, WriteFailed

SCRIPTS: Mapping[str, Callable[[Sequence[Command]], str]] = {
    "flexinfer.bash": bash,
    "_flexinfer": zsh,
    "flexinfer.fish": fish,
}


USAGE = "python -m flexinfer.cli.completions [FOLDER]"


def read_commands() -> tuple[Command, ...]:
    """Read the command line's own definition, the options before any command first."""
    from typer.main import get_command

    from flexinfer.cli.main import app

    root: Any = get_command(app)
    return _command("", root), *(_command(name, sub) for name, sub in root.commands.items())


def _command(name: str, command: Any) -> Command:
    """Read one command."""
    options = [
        Option(
            names=tuple(p.opts + p.secondary_opts),
            help=p.help or p.name.replace("_", " "),
            metavar=p.metavar,
            values=_values(p.metavar or ""),
        )
        for p in command.params
        if p.param_type_name == "option"
    ]
    if name:
        options.append(Option(names=("-h", "--help"), help="Show the help.", metavar=None))
    return Command(name=name, help=command.help.splitlines()[0], options=tuple(options))


def _values(metavar: str) -> tuple[str, ...]:
    """Return the values that a metavar stands for, where they can be listed (arguments.options)."""
    if metavar == "MODEL":
        from flexinfer.weights.names import ALIASES

        return tuple(ALIASES)
    if metavar == "CHECK":
        from flexinfer.tasks.doctor.registry import list_checks

        return tuple(check.name for check in list_checks())
    return tuple(metavar.split("|")) if "|" in metavar else ()


def write(folder: Path) -> None:
    """Write the three scripts to a folder; raises UsageError where it is none, or WriteFailed."""
    commands = read_commands()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, script in SCRIPTS.items():
            (folder / name).write_text(script(commands), encoding="utf-8")
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{folder} is not a folder", hint=USAGE) from error
    except OSError as error:
        raise WriteFailed(f"cannot write {folder}: {error.strerror}", hint=USAGE) from error


def main(words: Sequence[str]) -> int:
    """Write to the folder that is given, and return the exit code."""
    try:
        if len(words) > 1 or any(word.startswith("-") for word in words):
            raise UsageError(f"one folder at most, not {' '.join(words)}", hint=USAGE)
        write(Path(*words or ("completions",)))
    except FlexinferError as error:
        say_failure(error.message, error.hint)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
