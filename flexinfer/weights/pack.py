"""Memory for a model's parameters: projections that read the same input share one buffer.

q, k, v (and gate, up) of a layer become adjacent row views of one buffer, in that order, so that
one GEMM can serve them all while each Linear still owns its rows: one copy in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def allocate(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Give the meta parameters and persistent buffers of `module` uninitialised, packed memory.

    Tied parameters stay tied. Nothing is copied: the peak is one copy of the model. Parameters of
    a class of their own (4-bit ones) are left: see nf4/slots.py.
    """
    memory = _packed(module, dtype, device)
    persistent = set(module.state_dict())
    for prefix, owner in list(module.named_modules()):
        for name, old in list(owner.named_parameters(recurse=False)):
            if type(old) is not nn.Parameter:
                continue
            if id(old) not in memory:
                memory[id(old)] = nn.Parameter(torch.empty(old.shape, dtype=dtype, device=device))
            setattr(owner, name, memory[id(old)])
        for name, buffer in list(owner.named_buffers(recurse=False)):
            if f"{prefix}.{name}" in persistent:
                setattr(owner, name, torch.empty(buffer.shape, dtype=dtype, device=device))


def _packed(module: nn.Module, dtype: torch.dtype, device: torch.device) -> dict[int, nn.Parameter]:
    """Return new parameters for all grouped ones, by the id of the old one."""
    memory: dict[int, nn.Parameter] = {}
    for group in _groups(module):
        rows = [old.shape[0] for old in group]
        buffer = torch.empty(sum(rows), *group[0].shape[1:], dtype=dtype, device=device)
        views: tuple[Tensor, ...] = torch.split(buffer, rows)
        for old, view in zip(group, views, strict=True):
            memory[id(old)] = nn.Parameter(view)
    return memory


def _groups(module: nn.Module) -> Iterator[list[Tensor]]:
    """Yield weights, then biases, of the Linears that read the same input: two or more each."""
    for parent in module.modules():
        children = dict(parent.named_children())
        for names in GROUPS:
            linears = [c for name in names if isinstance(c := children.get(name), nn.Linear)]
            biases: list[Tensor] = [c.bias for c in linears if c.bias is not None]
            weights: list[Tensor] = [c.weight for c in linears if type(c.weight) is nn.Parameter]
            if len(weights) > 1:
                yield weights
            if len(linears) > 1 and len(biases) == len(linears):
                yield biases
