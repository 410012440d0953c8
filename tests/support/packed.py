"""Packs a tiny model's projections the way flexinfer's own loader lays them out."""

from __future__ import annotations

import torch
from torch import nn

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def pack_projections(model: nn.Module) -> None:
    """Make q, k, v and gate, up of every layer row views of one buffer a group."""
    for parent in model.modules():
        children = dict(parent.named_children())
        for names in GROUPS:
            members = [c for name in names if isinstance(c := children.get(name), nn.Linear)]
            if len(members) > 1:
                _share([linear.weight for linear in members])
                _share([linear.bias for linear in members if linear.bias is not None])


def _share(parameters: list[nn.Parameter]) -> None:
    """Move parameters into one buffer, in order."""
    if parameters:
        buffer = torch.cat([parameter.data for parameter in parameters])
        sizes = [parameter.shape[0] for parameter in parameters]
        for parameter, view in zip(parameters, buffer.split(sizes), strict=True):
            parameter.data = view
