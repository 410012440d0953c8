"""Regular expressions of a config, tried out before they are used: some would never end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Literal

How = Literal["match", "fullmatch"]
"""The function of `re` that a pattern is meant for."""

SECONDS = 10.0
"""A sensible pattern needs milliseconds for all names of a model."""
_RISKY = re.compile(r"[*+{|]")
"""Without any of these the work of matching is bounded by the pattern's length."""
_TRY = (
    "import json, re, sys; how, pattern, names = json.load(sys.stdin);"
    "[getattr(re, how)(pattern, name) for name in names]"
)


def endless(how: How, pattern: str, names: Iterable[str]) -> bool:
    """Tell whether matching `pattern` with `names` takes more than SECONDS.

    `re` cannot be interrupted, so a Python of its own does it; one that is no pattern ends at once.
    """
    if not _RISKY.search(pattern) or not sys.executable:
        return False
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY],
            input=json.dumps([how, pattern, list(names)]),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return True
    return False
