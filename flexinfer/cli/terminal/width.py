"""How wide the reader's screen is, for what lays itself out."""

from __future__ import annotations

import os
import shutil
import sys


def screen_width() -> int | None:
    """Return the columns of the screen that stdout goes to; None where no screen bounds a line.

    COLUMNS counts where it is set to a number, a terminal's own width on a terminal.
    """
    if os.environ.get("COLUMNS", "").isdecimal() and int(os.environ["COLUMNS"]):
        return int(os.environ["COLUMNS"])
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if on_terminal else None
