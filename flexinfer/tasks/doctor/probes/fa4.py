"""Run FA4's varlen kernel on two packed sequences, against plain softmax. Arguments: HEAD_DIM...

Prints per head dim {"head_dim", "error"} or {"head_dim", "failed": one line}.
Shape letters: T tokens of all sequences, H query heads, G kv heads, D head dim.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

LENGTHS = (40, 88)
H, G = 4, 2


def plain(q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> Tensor:
    """Return causal fp32 attention [T, H, D] of one sequence."""
    k, v = (x.repeat_interleave(H // G, 1) for x in (k_TGD, v_TGD))
    scores = torch.einsum("qhd,khd->hqk", q_THD, k) * q_THD.shape[-1] ** -0.5
    future = torch.ones(len(q_THD), len(q_THD), dtype=torch.bool, device=q_THD.device).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def check(head_dim: int) -> dict[str, Any]:
    """Return the largest absolute error of causal attention at one head dim in bf16."""
    draw = torch.Generator().manual_seed(0)
    q_THD, k_TGD, v_TGD = (
        torch.randn(sum(LENGTHS), heads, head_dim, generator=draw).to("cuda", torch.bfloat16)
        for heads in (H, G, G)
    )
    starts = torch.tensor([0, LENGTHS[0], sum(LENGTHS)], dtype=torch.int32, device="cuda")
    varlen = import_module("flash_attn.cute").flash_attn_varlen_func
    result = varlen(q_THD, k_TGD, v_TGD, cu_seqlens_q=starts, cu_seqlens_k=starts, causal=True)
    out = result[0] if isinstance(result, tuple) else result
    parts = (x.float().tensor_split([LENGTHS[0]]) for x in (q_THD, k_TGD, v_TGD))
    expected = torch.cat([plain(q, k, v) for q, k, v in zip(*parts, strict=True)])
    return {"head_dim": head_dim, "error": float((out.float() - expected).abs().max())}


def main(head_dims: list[int]) -> None:
    """Check each head dim; one failure does not stop the next."""
    for head_dim in head_dims:
        try:
            result = check(head_dim)
        except Exception as error:
            line = " ".join(str(error).split())
            result = {"head_dim": head_dim, "failed": f"{type(error).__name__}: {line}"}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
