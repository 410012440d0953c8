"""Run FA4's varlen kernel over pages on two packed chunks, against plain softmax.

Arguments: HEAD_DIMxRATIO..., the ratio being query heads a kv head. Prints per argument
{"head_dim", "error"} or {"head_dim", "failed": one line}.
Shape letters: T tokens of all chunks, S keys of one sequence, H query heads, G kv heads, D head
dim.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

LENGTHS, SEEN = (40, 88), (40, 136)
"""Queries of each chunk, and keys that its last query sees: the second has cached ones."""

PAGE, COLUMNS, G = 32, 5, 2


def plain(q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> Tensor:
    """Return fp32 attention [T, H, D] of one chunk whose last query sees all keys."""
    (queries, heads, dim), keys = q_THD.shape, len(k_SGD)
    k, v = (x.repeat_interleave(heads // G, 1) for x in (k_SGD, v_SGD))
    scores = torch.einsum("qhd,khd->hqk", q_THD, k) * dim**-0.5
    future = torch.ones(queries, keys, dtype=torch.bool, device=q_THD.device)
    future = future.triu(keys - queries + 1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def check(head_dim: int, ratio: int) -> dict[str, Any]:
    """Return the largest absolute error of causal attention of one head shape in bf16."""
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to("cuda", torch.bfloat16)

    q_THD = random(sum(LENGTHS), G * ratio, head_dim)
    pools = [random(2 * COLUMNS + 1, PAGE, G, head_dim) for _ in range(2)]
    table = torch.arange(1, 2 * COLUMNS + 1, dtype=torch.int32).view(2, COLUMNS).flip(1).cuda()
    varlen = import_module("flash_attn.cute").flash_attn_varlen_func
    result = varlen(
        q_THD, *pools,
        cu_seqlens_q=torch.tensor([0, LENGTHS[0], sum(LENGTHS)], dtype=torch.int32, device="cuda"),
        seqused_k=torch.tensor(SEEN, dtype=torch.int32, device="cuda"),
        page_table=table, softmax_scale=head_dim**-0.5, causal=True, window_size=(None, None),
    )  # fmt: skip
    out = result[0] if isinstance(result, tuple) else result
    expected = []
    for row, q in enumerate(q_THD.float().tensor_split([LENGTHS[0]])):
        k, v = (pool[table[row].long()].flatten(0, 1)[: SEEN[row]].float() for pool in pools)
        expected.append(plain(q, k, v))
    error = (out.float() - torch.cat(expected)).abs().max()
    return {"head_dim": head_dim, "error": float(error)}


def main(arguments: list[str]) -> None:
    """Check each head shape; one failure does not stop the next."""
    for argument in arguments:
        head_dim, ratio = map(int, argument.split("x"))
        try:
            result = check(head_dim, ratio)
        except Exception as error:
            line = " ".join(str(error).split())
            result = {"head_dim": head_dim, "failed": f"{type(error).__name__}: {line}"}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
