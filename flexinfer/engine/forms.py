"""Which own kernels run: whether they can, and the forms that go with an attention back end."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from flexinfer.attention.choose import Choice, triton_obstacle
from flexinfer.engine.steps.programs import Feed, Lookup, look_up, plain_feed
from flexinfer.errors import EnvironmentUnfit
from flexinfer.kernels.invariant import InvariantOps
from flexinfer.kernels.ops import Ops
from flexinfer.models.decoder import Decoder
from flexinfer.weights.adapters.merged import Merge


def obstacle_of(decoder: Decoder, weight: Tensor) -> str | None:
    """Return why the own kernels cannot serve a model where its weights lie, None if they can."""
    device = weight.device
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    dims = sorted({spec.head_dim for spec in decoder.specs})
    installed = find_spec("triton") is not None
    return triton_obstacle(device.type, capability, dims, weight.dtype.itemsize, installed)


def merge_of(device: torch.device) -> Merge:
    """Return the form of the merge that serves a device."""
    if device.type != "cuda" or find_spec("triton") is None:
        return Merge()
    from flexinfer.kernels.fast.lora.merge import merge
    from flexinfer.kernels.fast.nf4.matmul import nf4_dequantise

    return Merge(merge, nf4_dequantise)


@dataclass(frozen=True)
class Forms:
    """The fast forms in use (None: plain): operations, tiles, sampler; and what to say of it."""

    ops: Ops | None = None
    tiles: Any = None
    feed: Feed = plain_feed
    lookup: Lookup = look_up
    notices: tuple[str, ...] = ()


def forms_of(choice: Choice, device: torch.device, invariant: bool = False) -> Forms:
    """Import and build the Triton forms that go with a choice; flex takes the sampler alone.

    The compiler fuses the plain sampler into a reduction over the vocabulary that it cannot build.
    `invariant`: products whose rows do not depend on each other; raises EnvironmentUnfit where
    there are none.
    """
    plain = choice.name == "dense" or (choice.name == "flex" and device.type != "cuda")
    if invariant and (choice.name == "flex" or (plain and device.type == "cuda")):
        raise EnvironmentUnfit(
            f"--batch-invariant cannot be had with --attention {choice.name} on {device.type}: "
            "its libraries choose how they sum by the number of rows",
            hint="it can be had with the own kernels (--attention triton) or, on a CPU, with dense",
        )
    if plain:
        return Forms(ops=InvariantOps()) if invariant else Forms()
    from flexinfer.kernels.fast.sampler import sample_and_feed

    if choice.name == "flex":
        return Forms(feed=sample_and_feed)
    from flexinfer.kernels.fast.gather import gather_rows
    from flexinfer.kernels.fast.ops import TritonOps
    from flexinfer.kernels.fast.tiles.invariant import InvariantTable
    from flexinfer.kernels.fast.tiles.table import TileTable

    tiles = TileTable.of_device(torch.cuda.get_device_name(device))
    if invariant:
        tma = torch.cuda.get_device_capability(device) >= (9, 0)
        tiles = InvariantTable(tiles.entries, tiles.notices, tma)
    return Forms(TritonOps(tiles), tiles, sample_and_feed, gather_rows, tiles.notices)
