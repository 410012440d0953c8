"""Packages that only some runs need: imported when they are, with the line that installs them."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from flexinfer.errors import EnvironmentUnfit, install_hint, one_line


def check_there(module: str, wanted_by: str, extra: str) -> None:
    """Raise EnvironmentUnfit as `need` does where `module` is not there; nothing is imported."""
    if find_spec(module) is None:
        raise _missing(module, wanted_by, extra, "is not installed")


def need(module: str, wanted_by: str, extra: str) -> Any:
    """Import `module` for what `wanted_by` names; raises EnvironmentUnfit where it can't be had.

    `extra` is the extra of this package that brings it.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # transformers' lazy modules wrap it
        missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        said = "is not installed" if missing else f"cannot be imported: {one_line(error)}"
        raise _missing(module, wanted_by, extra, said) from error


def _missing(module: str, wanted_by: str, extra: str, said: str) -> EnvironmentUnfit:
    """Return what to raise."""
    return EnvironmentUnfit(f"{wanted_by} needs {module}, which {said}", hint=install_hint(extra))
