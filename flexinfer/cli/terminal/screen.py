"""stderr as rich draws on it: a terminal that is gone is nobody's failure, as it is to `say`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich.console import Console


def screen() -> Console:
    """Return rich's console on stderr."""
    from rich.console import Console

    return Console(file=cast(IO[str], _Lossy()))


class _Lossy:
    """What rich uses of stderr; what cannot be written is lost, and ends no work or its saving."""

    @property
    def encoding(self) -> str:
        """Return the name of what characters are written as."""
        return sys.stderr.encoding

    def isatty(self) -> bool:
        """Tell whether somebody may be watching."""
        return sys.stderr.isatty()

    def write(self, text: str) -> int:
        """Write what can be written."""
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Push out what can be."""
        with suppress(OSError):
            sys.stderr.flush()
