"""Checks adapters, whoever made them: every pair fits its linear map and holds finite numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flexinfer.errors import UsageError
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.names import UNSERVED, some

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RETRAIN = "was it trained on another model?"
NO_EFFECT = "adapter is a no-op: every delta is zero"


@dataclass
class Found:
    """What a reader collects: pairs by relative name, and names that are not linear maps here."""

    name: str
    targets: Mapping[str, tuple[int, int]]
    pairs: dict[str, Pair] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def refuse(self, what: str, hint: str | None = None) -> UsageError:
        """Return the error that this adapter cannot be used, in one line."""
        return UsageError(f"adapter {self.name}: {what}", hint=hint)

    def adapter(self) -> Adapter:
        """Return the adapter; raises UsageError where nothing matches or a pair cannot be used."""
        self.check()
        return Adapter(self.name, dict(self.pairs), (self.summary(), *self._more()))

    def check(self) -> None:
        """Raise UsageError where there is no pair, or one that cannot be used; note a no-op."""
        if not self.pairs:
            raise self._nothing()
        for module, pair in self.pairs.items():
            self._check_shapes(module, pair)
        self._check_values()

    def only_bias(self, module: str, bias: Tensor) -> Pair:
        """Return the pair of a linear map whose bias alone was trained: zeros of rank 1."""
        rows, columns = self.targets[module]
        return Pair(bias.new_zeros(1, columns), bias.new_zeros(rows, 1), 1.0, bias)

    def _nothing(self) -> UsageError:
        """Say that no module matches, and show a name of either side."""
        if not self.absent:
            return self.refuse("it holds no LoRA tensors")
        return self.refuse(
            f"none of its {len(self.absent)} modules is in the model",
            f"it has {min(self.absent)}, the model has {min(self.targets, default='none')};"
            f" {RETRAIN}",
        )

    def _check_shapes(self, module: str, pair: Pair) -> None:
        """Raise UsageError, naming the module, for a rank, shape or dtype that cannot be."""
        rows, columns = self.targets[module]
        if not _is_number(pair.scale):
            raise self.refuse(f"the scale of {module} is {pair.scale}, no finite number")
        rank = pair.a.shape[0] if pair.a.dim() else 0
        if rank < 1:
            raise self.refuse(f"{module} has rank 0")
        self._check("lora_A", module, pair.a, (rank, columns))
        self._check("lora_B", module, pair.b, (rows, rank))
        if pair.bias is not None:
            self._check("the bias", module, pair.bias, (rows,))

    def _check(self, what: str, module: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """Raise UsageError unless a tensor has the shape, a known dtype, and values."""
        if tuple(tensor.shape) != shape:
            raise self.refuse(
                f"{what} of {module} is {list(tensor.shape)}, not {list(shape)}", RETRAIN
            )
        if tensor.dtype not in DTYPES:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise self.refuse(
                f"{what} of {module} is {kind}", "save it as float32, bfloat16 or float16"
            )
        if tensor.is_meta:
            raise self.refuse(f"{what} of {module} has no values (it is on the meta device)")

    def _check_values(self) -> None:
        """Raise UsageError for NaN and infinite values; note where every delta is zero."""
        a, b = peaks(p.a for p in self.pairs.values()), peaks(p.b for p in self.pairs.values())
        biased = {name: p.bias for name, p in self.pairs.items() if p.bias is not None}
        held = [*zip(self.pairs, a, strict=True), *zip(self.pairs, b, strict=True)]
        for module, peak in (*held, *zip(biased, peaks(biased.values()), strict=True)):
            if not math.isfinite(peak):
                raise self.refuse(f"{module} holds NaN or infinite values")
        scales = [pair.scale for pair in self.pairs.values()]
        if not biased and not any(x and y and s for x, y, s in zip(a, b, scales, strict=True)):
            self.notices.append(NO_EFFECT)

    def summary(self) -> str:
        """Return the line that says how much of the adapter is in use."""
        pairs = self.pairs.values()
        ranks, scales = {p.a.shape[0] for p in pairs}, {p.scale for p in pairs}
        n_biases = sum(pair.bias is not None for pair in pairs)
        return (
            f"adapter: {len(self.pairs)} of {len(self.pairs) + len(self.absent)} modules matched,"
            f" rank {_span(ranks)}, scale {_span(scales)}"
            + (f", {n_biases} with a bias" if n_biases else "")
        )

    def _more(self) -> tuple[str, ...]:
        """Return the remaining notices."""
        if not self.absent:
            return tuple(self.notices)
        one = len(self.absent) == 1
        return (
            f"adapter: {len(self.absent)} {'module is' if one else 'modules are'} not in the text"
            f" model and {'is' if one else 'are'} left out: {some(sorted(self.absent))}",
            *self.notices,
        )


def checked(given: Adapter, targets: Mapping[str, tuple[int, int]]) -> Adapter:
    """Return an adapter made in memory as a reader would, its own notices first.

    Raises UsageError as the readers do, and for a name that is no linear map of the model.
    """
    found = Found(str(given.name), targets)
    if not isinstance(given.pairs, Mapping):
        raise found.refuse(f"it holds pairs by name, not a {type(given.pairs).__name__}")
    for name, pair in given.pairs.items():
        if not _is_pair(pair):
            raise found.refuse(f"{name} is no Pair of tensors", "write Pair(a, b, scale)")
        if name in UNSERVED:
            raise found.refuse(f"LoRA on {name} is not supported")
        if name not in targets:
            known = f"the model has {min(targets, default='none')}"
            raise found.refuse(f"{name} is no linear map of the model", known)
        found.pairs[name] = pair
    found.check()
    pairs = {name: pair._replace(scale=float(pair.scale)) for name, pair in found.pairs.items()}
    said = given.notices or (found.summary(),)
    return replace(given, pairs=pairs, notices=tuple(dict.fromkeys((*said, *found.notices))))


def _is_pair(pair: object) -> bool:
    """Whether this is a Pair, and of tensors."""
    return isinstance(pair, Pair) and all(
        isinstance(tensor, Tensor) or (tensor is None and part == "bias")
        for part, tensor in pair._asdict().items()
        if part != "scale"
    )


def _is_number(scale: object) -> bool:
    """Whether a scale can be multiplied with."""
    return isinstance(scale, int | float) and math.isfinite(scale)


def peaks(tensors: Iterable[Tensor]) -> Sequence[float]:
    """Return the largest magnitude of each tensor, not finite where one of its values is not.

    One launch and one wait for all tensors of a device and dtype: a refresh has hundreds of them.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    held = [tensor.detach() for tensor in tensors]
    for index, tensor in enumerate(held):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(index)
    result = [0.0] * len(held)
    for indices in kinds.values():
        # What torch.nn.utils.get_total_norm is made of; no public function gives the single norms.
        norms = torch._foreach_norm([held[index] for index in indices], math.inf)
        for index, norm in zip(indices, torch.stack(list(norms)).tolist(), strict=True):
            result[index] = norm
    return result


def _span(values: Collection[float]) -> str:
    """Return one value, or the least and the greatest."""
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
