"""Gemma's per-layer input gate as one kernel: act(x gate^T) * input.

Shape letters: T rows, E hidden size, P per-layer input size.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from flexinfer.kernels.fast.act import gelu_tanh, silu
from flexinfer.kernels.fast.launch import await_inputs, dependent, release_next


@triton.jit(do_not_specialize=["T"])
def gate_kernel(
    x, gate, extra, out, T, E, P, extra_stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GELU: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[t, p] = act(x[t] gate[p]) * extra[t, p], rounded in between; grid (P / BN, T / BM)."""
    p = tl.program_id(0) * BN + tl.arange(0, BN)
    t = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    live = t[:, None] < T
    acc = tl.zeros([BM, BN], tl.float32)
    await_inputs(PDL)
    for k0 in tl.range(0, E, BK, num_stages=STAGES):
        rows = tl.load(x + t[:, None].to(tl.int64) * E + k0 + k[None, :], mask=live, other=0.0)
        weights = tl.load(gate + p[:, None] * E + k0 + k[None, :])
        acc = tl.dot(rows, weights.T, acc, input_precision="ieee")
    release_next(PDL)
    dtype: tl.constexpr = out.dtype.element_ty
    acc = acc.to(dtype).to(tl.float32)
    act = (gelu_tanh(acc) if GELU else silu(acc)).to(dtype).to(tl.float32)
    scale = tl.load(
        extra + t[:, None].to(tl.int64) * extra_stride + p[None, :], mask=live, other=0.0
    )
    at = out + t[:, None].to(tl.int64) * P + p[None, :]
    tl.store(at, (act * scale.to(tl.float32)).to(dtype), mask=live)


BM, BN, BK = 16, 16, 64
"""Rows and outputs of a block, and inputs of a turn where four such do not divide E."""


def gate_fits(gate_PE: Tensor) -> bool:
    """Return whether blocks and turns divide the matrix, as `input_gate` needs."""
    return gate_PE.shape[0] % BN == 0 and gate_PE.shape[1] % BK == 0


def input_gate(x_TE: Tensor, gate_PE: Tensor, extra_TP: Tensor, activation: str) -> Tensor:
    """Return [T, P]; rows of `extra` may be strided. See `gate_fits`."""
    T, E = x_TE.shape
    P = gate_PE.shape[0]
    assert gate_fits(gate_PE), gate_PE.shape
    assert extra_TP.stride(1) == 1, "per-layer inputs must be contiguous along P"
    out, pdl = x_TE.new_empty(T, P), dependent(x_TE, T)
    turn = 4 * BK if E % (4 * BK) == 0 else BK
    gate_kernel[(P // BN, triton.cdiv(T, BM))](
        x_TE, gate_PE, extra_TP, out, T, E, P, extra_TP.stride(0), BM, BN, turn,
        activation == "gelu_pytorch_tanh", 4, pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return out
