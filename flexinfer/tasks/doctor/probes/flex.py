"""Compile flex_attention over shuffled pages, one query a row, and hold it against plain softmax.

Arguments: JSON {head_dim: kernel options}, then head dims. Prints one JSON line per head dim:
{"head_dim", "seconds", "error" (largest absolute difference), "kernel"}, or {"head_dim", "failed":
one line}. The head dims share a process, since the first compile is the slow one.
Shape letters: B rows, H query heads, G kv heads, N pages, P page size, D head dim.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, FlexKernelOptions, flex_attention

H, G, P = 2, 1, 32
PAGES = ((5, 2, 7), (1, 6))
"""The pages of each row in reading order: neither sorted nor adjacent, as in a used pool."""
LENGTHS = (75, 45)
N = 8


def page_mask(device: str) -> BlockMask:
    """Return the mask of a decode step whose `kv_indices` [B, 1, 1, N] are the page lists."""
    table = torch.zeros(len(PAGES), 1, 1, N, dtype=torch.int32, device=device)
    for row, pages in enumerate(PAGES):
        table[row, 0, 0, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
    counts = torch.tensor([[[len(p)]] for p in PAGES], dtype=torch.int32, device=device)
    last_page = torch.tensor([p[-1] for p in PAGES], dtype=torch.int32, device=device)
    last_offset = torch.tensor([(n - 1) % P for n in LENGTHS], dtype=torch.int32, device=device)

    def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv // P != last_page[b]) | (kv % P <= last_offset[b])

    no_full = torch.zeros_like(counts), table.clone()
    return BlockMask.from_kv_blocks(
        counts, table, *no_full, BLOCK_SIZE=(P, P), mask_mod=visible, seq_lengths=(1, N * P)
    )


def plain(q_BHD: Tensor, k_GSD: Tensor, v_GSD: Tensor) -> Tensor:
    """Return fp32 softmax attention [B, H, D], the pages gathered in reading order."""
    rows = []
    for q, pages, length in zip(q_BHD.float(), PAGES, LENGTHS, strict=True):
        at = torch.cat([torch.arange(p * P, (p + 1) * P, device=q.device) for p in pages])[:length]
        k, v = k_GSD[0, at].float(), v_GSD[0, at].float()
        rows.append(torch.softmax(q @ k.T * q.shape[-1] ** -0.5, -1) @ v)
    return torch.stack(rows)


def check(head_dim: int, device: str, options: FlexKernelOptions) -> dict[str, Any]:
    """Compile and run one head dim; raise what the compiler raises."""
    began, dtype = time.perf_counter(), torch.float32 if device == "cpu" else torch.bfloat16
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(*shape, head_dim, generator=draw).to(device, dtype)
        for shape in ((len(PAGES), H, 1), (1, G, N * P), (1, G, N * P))
    )
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    mask = page_mask(device)
    out = compiled(q, k, v, block_mask=mask, enable_gqa=True, kernel_options=options)
    error = (out[:, :, 0].float() - plain(q[:, :, 0], k[0], v[0])).abs().max().item()
    kernel = "C++" if device == "cpu" else options.get("BACKEND", "AUTO")
    seconds = time.perf_counter() - began
    return {"head_dim": head_dim, "seconds": seconds, "error": error, "kernel": kernel}


def main(options: dict[str, FlexKernelOptions], head_dims: list[int]) -> None:
    """Check each head dim; one failure does not stop the next."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for head_dim in head_dims:
        try:
            with torch.no_grad():
                result = check(head_dim, device, options.get(str(head_dim), {}))
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            text = f"{type(error).__name__}: {lines[0] if lines else ''}"
            result = {"head_dim": head_dim, "failed": text}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), [int(argument) for argument in sys.argv[2:]])
