"""From an exception to what the user sees: one `error:` line, one `hint:` line, an exit code."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from flexinfer.cli.terminal.console import print_data, say
from flexinfer.cli.terminal.signals import Terminated
from flexinfer.errors import Failure, UsageError, failure_of

INTERRUPTED, TERMINATED = 130, 143
_LONG_WORD = re.compile(r"(\w{120})\w{80,}")
USAGE: Any = typer.BadParameter.__mro__[1]
"""click's UsageError, of the copy of click that the installed typer works with."""


def guard(action: Callable[[], int], debug: bool) -> int:
    """Run `action` and return its exit code, or say on stderr what went wrong."""
    try:
        code = action()
        if sys.stdout is not None:
            print_data("")
        return code
    except BrokenPipeError:
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except KeyboardInterrupt as stop:
        terminated = isinstance(stop, Terminated)
        word, cure = "terminated" if terminated else "interrupted", str(stop)
        say(f"{word} ({cure})" if cure else word)
        return TERMINATED if terminated else INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        failure = explain(error)
        say_failure(failure.message, failure.hint)
        return failure.exit_code
    finally:
        _settle_streams()


def say_failure(message: str, hint: str | None = None) -> None:
    """Write an `error:` line and, where there is a cure, a `hint:` line to stderr.

    Of a run of letters or digits that fills lines only the beginning is shown.
    """
    for label, text in (("error", message), ("hint", hint)):
        if text:
            line = _LONG_WORD.sub(r"\1...", " ".join(text.split()))
            say(f"{label}: {line}")


def explain(error: Exception) -> Failure:
    """Put an exception into words, what typer says of wrong usage too."""
    return _usage(error) if isinstance(error, USAGE) else failure_of(error)


def _settle_streams() -> None:
    """Point what takes nothing more nowhere, or the interpreter's last flush fails and is told."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _usage(error: Any) -> Failure:
    """Turn typer's words about wrong usage into a line and the nearest spelling."""
    usage = f"{error.ctx.command_path if error.ctx else 'flexinfer'} --help"
    words = _badly_typed(error) or " ".join(error.format_message().split())
    message, _, near = words.partition(" (Possible options: ")
    if not near:
        message, _, near = message.partition(" Did you mean ")
    names = re.findall(r"[\w-]+", near)
    hint = f"did you mean {' or '.join(names)}?" if names else usage
    message = re.sub(r"'(--?[\w-]+)'( / '-[\w-]+')*", r"\1", message).rstrip(".")
    return Failure(message[:1].lower() + message[1:], hint, UsageError.exit_code)


def _badly_typed(error: Any) -> str | None:
    """Say in this package's words that an option's value is no number; else None."""
    kind = re.search(r"valid (integer|number|float)", error.message)
    if kind is None or not isinstance(error, typer.BadParameter) or error.param is None:
        return None
    allowed = "a whole number" if kind[1] == "integer" else "a number"
    # pydantic keeps the value in the cause, click in the message
    value = re.search(r"input_value=('.*?'), input_type|^('.*?') is not", _causes(error))
    found = next(filter(None, value.groups()), None) if value else None
    return f"{error.param.opts[0]} is {found or 'no number'}; allowed: {allowed}"


def _causes(error: Any) -> str:
    """Return what typer was told by whoever read a value, else its own message."""
    return str(error.__cause__ or error.message)
