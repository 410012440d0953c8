"""Which adapter an engine is to serve, and how: a choice that is read when the engine is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, get_args

from flexinfer.config import MOST, LoraMode
from flexinfer.errors import OutOfRange, UsageError
from flexinfer.weights.names import check_adapter

if TYPE_CHECKING:
    from torch import nn

    from flexinfer.weights.adapters.adapter import Adapter

AdapterSource: TypeAlias = "Adapter | nn.Module | str | Path"
"""An adapter in memory, a PEFT model, the folder of one, or `random[:RANK]`."""


@dataclass(frozen=True)
class AdapterChoice:
    """Which adapter, how it is brought in, and the seed of a random one.

    `source` is an Adapter, a PEFT model (its active adapter), a folder, or `random[:RANK]`; without
    a `mode` it is merged, or over 4-bit weights run beside them.
    """

    source: AdapterSource
    mode: LoraMode | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise UsageError for what is no adapter, mode or seed."""
        check_source(self.source)
        if self.mode is not None and self.mode not in get_args(LoraMode):
            raise OutOfRange("lora_mode", self.mode, ", ".join(get_args(LoraMode)))
        if not isinstance(self.seed, int) or not 0 <= self.seed <= MOST:
            raise OutOfRange("seed", self.seed, "0 to 2**63 - 1")


def check_source(source: object) -> None:
    """Raise UsageError for what is no adapter, no folder of one and no random one."""
    if isinstance(source, str | Path):
        check_adapter(str(source))
        return
    from torch import nn

    from flexinfer.weights.adapters.adapter import Adapter

    if not isinstance(source, Adapter | nn.Module):
        article = "an" if type(source).__name__[0] in "aeiou" else "a"
        raise UsageError(
            "an adapter is an Adapter, a PEFT model, a folder or random[:RANK],"
            f" not {article} {type(source).__name__}"
        )
