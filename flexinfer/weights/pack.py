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

    Tied parameters stay tied. Nothing is copied: the peak is one copy of the model.
    """
    memory: dict[int, nn.Parameter] = {}
    for group in _groups(module):
        views = _adjacent([tensor.shape for tensor in group], dtype, device)
        memory |= {id(old): nn.Parameter(new) for old, new in zip(group, views, strict=True)}
    persistent = set(module.state_dict())
    for prefix, owner in list(module.named_modules()):
        for name, old in list(owner.named_parameters(recurse=False)):
            if id(old) not in memory:
                memory[id(old)] = nn.Parameter(torch.empty(old.shape, dtype=dtype, device=device))
            setattr(owner, name, memory[id(old)])
        for name, buffer in list(owner.named_buffers(recurse=False)):
            if f"{prefix}.{name}" in persistent:
                setattr(owner, name, torch.empty(buffer.shape, dtype=dtype, device=device))


def pack(module: nn.Module) -> None:
    """Move a loaded model's groups into shared buffers, one group at a time."""
    for group in _groups(module):
        views = _adjacent([tensor.shape for tensor in group], group[0].dtype, group[0].device)
        for parameter, view in zip(group, views, strict=True):
            view.copy_(parameter.data)
            parameter.data = view


def _groups(module: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Yield weights, then biases, of the Linears that read the same input: two or more each."""
    for parent in module.modules():
        children = dict(parent.named_children())
        for names in GROUPS:
            linears = [c for name in names if isinstance(c := children.get(name), nn.Linear)]
            biases = [linear.bias for linear in linears if linear.bias is not None]
            if len(linears) > 1:
                yield [linear.weight for linear in linears]
            if len(linears) > 1 and len(biases) == len(linears):
                yield biases


def _adjacent(shapes: list[torch.Size], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Return uninitialised tensors of `shapes` that lie one after the other in one buffer."""
    rows = [shape[0] for shape in shapes]
    buffer = torch.empty(sum(rows), *shapes[0][1:], dtype=dtype, device=device)
    return list(buffer.split(rows))
