"""What a decode step starts from, looked up for all rows at once: tokens, positions, pages.

Shape letters: B rows, P page columns, S slots.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next


@triton.jit(do_not_specialize=["table_stride", "P"])
def gather_kernel(
    slots, slot_tokens, slot_positions, table, tokens, positions, address, pages, table_stride, P,
    BLOCK: tl.constexpr, PAGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy a slot's token, position and pages; compute where its KV goes; grid (B,)."""
    b = tl.program_id(0).to(tl.int64)
    await_inputs(PDL)
    release_next(PDL)
    slot = tl.load(slots + b)
    position = tl.load(slot_positions + slot)
    tl.store(tokens + b, tl.load(slot_tokens + slot))
    tl.store(positions + b, position)
    row_of_pages = table + slot * table_stride
    page = tl.load(row_of_pages + position // PAGE).to(tl.int64)
    tl.store(address + b, page * PAGE + position % PAGE)
    column = tl.arange(0, BLOCK)
    row = tl.load(row_of_pages + column, mask=column < P, other=0)
    tl.store(pages + b * P + column, row, mask=column < P)


def gather_rows(
    table_SP: Tensor, slot_tokens: Tensor, slot_positions: Tensor, slots_B: Tensor, page: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return tokens, positions, KV addresses (int64 [B]) and page-table rows (int32 [B, P]).

    `table` may be narrower than its rows are apart: steps outside graphs leave idle columns out.
    """
    B, P = slots_B.shape[0], table_SP.shape[1]
    tokens, positions, address = (torch.empty_like(slots_B) for _ in range(3))
    pages, pdl = table_SP.new_empty(B, P), dependent(table_SP, B)
    gather_kernel[(B,)](
        slots_B, slot_tokens, slot_positions, table_SP, tokens, positions, address, pages,
        table_SP.stride(0), P, triton.next_power_of_2(P), page, pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
    return tokens, positions, address, pages
