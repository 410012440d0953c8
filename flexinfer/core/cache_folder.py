"""Where on disk the package keeps what it measured or compiled."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/flexinfer`, `~/.cache/flexinfer` where that is no absolute path.

    Raises RuntimeError where nobody is at home.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "flexinfer"
