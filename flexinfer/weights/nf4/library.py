"""bitsandbytes, which quantises to 4 bits and trains over it: there, or refused with the cure."""

from __future__ import annotations

import logging
from typing import Any

from flexinfer.errors import EnvironmentUnfit, install_hint, one_line

_CPU_LOG = "bitsandbytes.backends.cpu.ops"
"""Warns while it is imported that a package nobody asked for is missing."""


def library() -> Any:
    """Return bitsandbytes; raises EnvironmentUnfit where it is missing or does not load."""
    log = logging.getLogger(_CPU_LOG)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        import bitsandbytes
    except ModuleNotFoundError as error:
        if error.name != "bitsandbytes":
            raise _broken(error) from error
        raise EnvironmentUnfit(
            "4-bit weights need bitsandbytes, which is not installed",
            hint=install_hint("quant"),
        ) from None
    except Exception as error:
        raise _broken(error) from error
    finally:
        log.setLevel(level)
    return bitsandbytes


def _broken(error: Exception) -> EnvironmentUnfit:
    """Return what to raise where bitsandbytes is there and does not load."""
    return EnvironmentUnfit(
        f"bitsandbytes does not load: {one_line(error)}", hint="pip install -U bitsandbytes"
    )
