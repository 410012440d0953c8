"""What an engine multiplies with: a borrowed module's weights and an adapter over them.

The one place where new weights come in: `refresh` checks that every borrowed tensor is still where
it was, reads the adapter anew, and brings it in at fixed addresses, so captured graphs stay valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from flexinfer.config import LoraMode
from flexinfer.errors import StaleWeights, UsageError
from flexinfer.kernels.linear import Leaf
from flexinfer.models.catalog import build_decoder
from flexinfer.models.source import ModuleSource, is_adapters
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.adapters.check import checked
from flexinfer.weights.adapters.choice import AdapterChoice, AdapterSource, check_source
from flexinfer.weights.adapters.live import check_pristine, read_live
from flexinfer.weights.adapters.many import copies_on
from flexinfer.weights.adapters.merged import Merge, MergedWeights
from flexinfer.weights.adapters.runtime import RuntimeWeights
from flexinfer.weights.adapters.targets import Targets, listened
from flexinfer.weights.borrowed import Borrowed
from flexinfer.weights.names import random_rank
from flexinfer.weights.nf4.copied import copied_bytes


def on(adapter: Adapter, device: torch.device, *, copy: bool = False) -> Adapter:
    """Return an adapter whose tensors lie on `device`; with `copy` they are its own."""
    held = [part for pair in adapter.pairs.values() for part in (pair.a, pair.b, pair.bias)]
    given = [tensor for tensor in held if tensor is not None]
    moved = copies_on(device, given) if copy else [tensor.detach().to(device) for tensor in given]
    rest = iter(moved)
    pairs = {
        name: pair._replace(
            a=next(rest), b=next(rest), bias=None if pair.bias is None else next(rest)
        )
        for name, pair in adapter.pairs.items()
    }
    return replace(adapter, pairs=pairs)


class AdapterWeights(Protocol):
    """A form of an adapter's inference weights: merged copies or side paths."""

    def leaf(self, name: str) -> Leaf | None:
        """Return the inference leaf of a linear map, None where its base is used itself."""
        ...

    @property
    def n_bytes(self) -> int:
        """Bytes beside the base."""
        ...

    def lacking(self, adapter: Adapter) -> list[str]:
        """Return the adapter's targets that there is no place for."""
        ...

    def load(self, adapter: Adapter) -> None:
        """Bring an adapter in, in place and in stream order."""
        ...


class AdaptedSource(ModuleSource):
    """A source whose linear maps are those of an adapter's weights where it has any."""

    def __init__(self, module: nn.Module, root: str, weights: AdapterWeights) -> None:
        """See ModuleSource."""
        super().__init__(module, root)
        self._weights = weights

    def linear(self, name: str) -> Leaf:
        """See Source."""
        return self._weights.leaf(name) or super().linear(name)


class InferenceWeights:
    """The decoder over a module's weights, with an adapter where one was chosen."""

    def __init__(self, module: Any, choice: AdapterChoice | None, merge: Merge) -> None:
        """Build over a causal language model; raises UsageError for an adapter it cannot take."""
        self._module: nn.Module = module
        self._borrowed = Borrowed(module)
        self._choice, self._torn = choice, False
        self.mode: LoraMode | None = None
        self.decoder, self._source = listened(module)
        self.adapter: Adapter | None = None
        self.weights: AdapterWeights | None = None
        if choice is not None:
            self.adapter = self._read(choice.source)
            self.mode = choice.mode or ("runtime" if self._source.packed else "merged")
            self.weights = self._weights(self.adapter, merge)
            self.weights.load(self.adapter)
            self.decoder = build_decoder(module, self._adapted(self.weights))
        self.copied_bytes = copied_bytes(self.decoder, module)

    def _adapted(self, weights: AdapterWeights) -> Callable[[nn.Module, str], AdaptedSource]:
        """Return how the walker reads tensors and leaves."""
        return lambda module, root: AdaptedSource(module, root, weights)

    @property
    def targets(self) -> Targets:
        """The linear maps that an adapter may change."""
        return self._source.heard

    def _read(self, source: AdapterSource) -> Adapter:
        """Read and check an adapter, onto the device of the model; no tensor is a trainer's own."""
        check_source(source)
        device, copy = self._source.tensor("embed_tokens.weight").device, True
        if isinstance(source, nn.Module):
            found = read_live(source, self.targets)
        elif isinstance(source, Adapter):
            found = checked(source, self.targets)
        else:
            found, copy = self._named(str(source)), False
        for name, pair in found.pairs.items():
            if pair.bias is not None and not self._source.has(f"{name}.bias"):
                raise UsageError(
                    f"adapter {found.name}: it trains {name}.bias, which the model does not have",
                    hint="was it trained on another model? PEFT itself would drop the bias",
                )
        return on(found, device, copy=copy)

    def _named(self, source: str) -> Adapter:
        """Read `random[:RANK]` or a folder."""
        if (rank := random_rank(source)) is not None:
            from flexinfer.weights.adapters.random_adapter import random_adapter

            like = self._source.tensor("embed_tokens.weight")
            seed = self._choice.seed if self._choice is not None else 0
            return random_adapter(self.targets, rank, seed, like.dtype, like.device)
        from flexinfer.weights.adapters.folder import read_folder

        return read_folder(Path(source).expanduser(), self.targets)

    def _weights(self, adapter: Adapter, merge: Merge) -> AdapterWeights:
        """Return places for an adapter of this shape, in the mode that was chosen."""
        source, linears = self._source, tuple(self.targets)
        if self.mode == "runtime":
            return RuntimeWeights(source, linears, adapter)
        return MergedWeights(source, linears, adapter, merge)

    @property
    def idle_adapter(self) -> bool:
        """Whether the module holds an adapter of PEFT's, and none was chosen."""
        if self.adapter is not None:
            return False
        return any(is_adapters(name) for name, _ in self._module.named_parameters())

    def check(self) -> None:
        """Raise StaleWeights where a borrowed tensor has moved or a refresh broke off.

        Raises UsageError while PEFT holds an adapter merged into the base of the one in use.
        """
        self._check_base()
        if self._torn:
            raise StaleWeights(
                "a refresh broke off, so a part of the weights is old and a part is new",
                hint="refresh again",
            )

    def _check_base(self) -> None:
        """Raise unless every borrowed tensor is where it was and is the trainer's base."""
        self._borrowed.check()
        if self.weights is not None:
            check_pristine(self._module)

    def refresh(self, source: AdapterSource | None) -> None:
        """Bring in `source`, or what was chosen at first, as it is now.

        Raises as `check` does of the base, and UsageError for an adapter that the engine has no
        place for; then nothing has changed.
        """
        self._check_base()
        if self.weights is None:
            if source is not None:
                raise UsageError(
                    "the engine was built without an adapter", hint="build it with one of its kind"
                )
            return
        assert self._choice is not None
        adapter = self._read(self._choice.source if source is None else source)
        if lacking := self.weights.lacking(adapter):
            raise UsageError(
                f"the adapter changes {lacking[0]}, which was no target when the engine was built",
                hint="build the engine anew with this adapter",
            )
        self._torn = True
        self.weights.load(adapter)
        self.adapter, self._torn = adapter, False
