"""Lends a trainer's module to a rollout, and takes it back as it was.

Everything a module, its submodules and their configs hold as attributes is compared by identity on
leaving and put back; so are the random states. Weights are never written by a forward.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from flexinfer.errors import EnvironmentUnfit, one_line


class Lender:
    """Lends one module again and again; what `generate` left on it comes back with the next loan.

    That is the compiled forward and the manager of continuous batching: between loans they are not
    on the module, so nobody else sees them, and they are not built anew.
    """

    def __init__(self, module: PreTrainedModel, attn_impl: str | None) -> None:
        """Keep the module and the attention of its loans, None for its own."""
        self.module = module
        self._attn_impl = attn_impl
        self._left: dict[str, Any] = {}

    @property
    def on_gpu(self) -> bool:
        """Whether the module lies on a CUDA device."""
        return bool(self.module.device.type == "cuda")

    @contextmanager
    def loan(self) -> Iterator[PreTrainedModel]:
        """Yield the module in eval mode, with its loans' attention and no generation config.

        Raises EnvironmentUnfit for an attention that transformers does not have here.
        """
        module = self.module
        own = set(vars(module))
        with random_states(module.device), attributes_kept(module):
            vars(module).update(self._left)
            try:
                _prepare(module, self._attn_impl)
                yield module
            finally:
                self._left = {k: v for k, v in vars(module).items() if k not in own}

    def forget(self) -> None:
        """Give up what is kept between loans."""
        self._left = {}


def _prepare(module: PreTrainedModel, attn_impl: str | None) -> None:
    """Turn training off everywhere, and set attention and an empty generation config."""
    for child in module.modules():
        child.training = False
    module.generation_config = GenerationConfig()
    if attn_impl is None:
        return
    try:
        module.set_attn_implementation(attn_impl)
    except (ImportError, ValueError, OSError) as error:
        raise EnvironmentUnfit(f"--attn-impl {attn_impl}: {one_line(error)}") from error
    if module.config._attn_implementation != attn_impl:
        raise EnvironmentUnfit(
            f"--attn-impl {attn_impl}: transformers runs "
            f"{module.config._attn_implementation} instead"
        )


@contextmanager
def attributes_kept(module: nn.Module) -> Iterator[None]:
    """On leaving, put back each attribute of the submodules and of the configs they hold."""
    held = [(table, dict(table)) for table in _tables(module)]
    try:
        yield
    finally:
        for table, before in held:
            _put_back(table, before)


def _tables(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the attributes of every submodule and every config, each once."""
    seen: set[int] = set()
    todo: list[Any] = list(module.modules())
    while todo:
        thing = todo.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield vars(thing)
        todo += [value for value in vars(thing).values() if isinstance(value, PreTrainedConfig)]


def _put_back(table: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Make a table what it was; tensors are compared by identity, never by value."""
    for name in table.keys() - before.keys():
        del table[name]
    for name, value in before.items():
        if name not in table or table[name] is not value:
            table[name] = value


@contextmanager
def random_states(device: torch.device) -> Iterator[None]:
    """On leaving, put back the random states of Python, numpy and torch (host and `device`)."""
    python, legacy = random.getstate(), np.random.get_state()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
