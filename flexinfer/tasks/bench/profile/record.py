"""A recorder of operations: what was called in which order, and the bytes each must move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


class Op(NamedTuple):
    """One call of an operation: its name, shape, and bytes it must read and write.

    `layered`: it belongs to a layer, and is not once a step.
    """

    name: str
    shape: str = ""
    reads: int = 0
    writes: int = 0
    layered: bool = False

    @property
    def moves(self) -> int:
        """Bytes read and written."""
        return self.reads + self.writes


OTHER = Op("other")
"""What happens between operations."""


class Recorder:
    """Marks where each operation begins; what lies between two marks is `ops` of that number."""

    def __init__(self, mark: Callable[[], None]) -> None:
        """Take what sets a mark: a kernel on the device, or a look at the clock."""
        self._mark = mark
        self.ops: list[Op] = []

    def begin(self, op: Op = OTHER) -> None:
        """End what was under way and begin `op`."""
        self._mark()
        self.ops.append(op)

    def run(self, op: Op, call: Callable[[], R]) -> R:
        """Run `call` as `op`; without `writes` its results are, and what it reads without that."""
        self.begin(op)
        result = call()
        last = self.ops[-1]
        moved = last.writes or size(result)
        self.ops[-1] = last._replace(reads=last.reads or moved, writes=moved)
        self.begin()
        return result

    def watched(self, call: Callable[P, R], op: Callable[..., Op]) -> Callable[P, R]:
        """Return `call`, run as the `op` of its arguments, which come by position."""

        def run(*given: P.args, **named: P.kwargs) -> R:
            return self.run(op(*given, **named), lambda: call(*given, **named))

        return run

    def become(self, first: Op, second: Op) -> None:
        """Say that the operation under way was `first` up to here and is `second` from here on."""
        self.ops[-1] = first
        self.begin(second)


def size(*values: Any) -> int:
    """Return the bytes of all tensors in `values`, tuples of them included; each tensor once."""
    found = {
        (t.data_ptr(), t.shape, t.dtype): t.numel() * t.element_size()
        for value in values
        for t in _tensors(value)
    }
    return sum(found.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in `value`: a tensor, or tuples (as leaves and groups are) of tensors."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
