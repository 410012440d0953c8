"""`--reward module:function`: a reward that the user wrote, found on the path or beside the run."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from functools import reduce
from types import ModuleType
from typing import Any

from flexinfer.errors import UsageError, one_line
from flexinfer.tasks.grpo.rewards.guard import Guarded, GuardedAsync
from flexinfer.tasks.grpo.rewards.sample import RewardFunc

SHAPE = "def reward(prompts, completions, **columns) -> list[float | None]"


def user_reward(name: str) -> RewardFunc:
    """Return the reward `module:function` (dots after the colon go into objects).

    The working directory is searched last and stays on the path, so that the module finds its own
    neighbours later. Raises UsageError where there is no such callable or it cannot take columns.
    """
    module_name, _, path = name.partition(":")
    file = module_name.endswith(".py")
    if file or not _is_dotted(module_name) or not _is_dotted(path):
        hint = "write module:function" + (", without .py" if file else "")
        raise UsageError(f"--reward {name!r} does not name a function", hint=hint)
    module = _import(name, module_name)
    function = _find(name, module, path)
    _check(name, function)
    called = function if inspect.isroutine(function) else function.__call__
    return (GuardedAsync if inspect.iscoroutinefunction(called) else Guarded)(name, function)


def _is_dotted(path: str) -> bool:
    """Tell whether a path is made of names and dots."""
    return all(part.isidentifier() for part in path.split("."))


def _import(name: str, module: str) -> ModuleType:
    """Import the user's module, whatever it does then."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {one_line(error)}"
        raise UsageError(
            f"--reward {name}: cannot import {module}: {said}",
            hint="it is looked for in the installed packages and the working directory",
        ) from error


def _find(name: str, module: ModuleType, path: str) -> Any:
    """Follow the path into the module to something that can be called."""
    file = vars(module).get("__file__")
    lies = f"{module.__name__} ({file})" if file else module.__name__
    try:
        found = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise UsageError(f"--reward {name}: {lies} has no {path}") from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {one_line(error)}"
        raise UsageError(f"--reward {name}: {lies} gives no {path}: {said}") from error
    if not callable(found):
        kind = type(found).__name__
        raise UsageError(f"--reward {name}: {path} is {kind}, not a function", hint=SHAPE)
    return found


def _check(name: str, function: Any) -> None:
    """Refuse a function that could not take the columns it is given."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # one that is not written in Python; what it takes will be seen
        return
    try:
        signature.bind_partial(prompts=(), completions=(), completion_ids=(), any_column=())
    except TypeError as error:
        said = f"--reward {name} cannot be called: {one_line(error)}"
        raise UsageError(said, hint=SHAPE) from error
