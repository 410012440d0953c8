"""Inside kernels: from packed NF4 bytes to weights, by one of two look-ups.

SHUFFLE holds one code a lane and picks by `shfl`. PLAIN gathers from memory: for the interpreter,
which runs no PTX. Both are exact: code times absmax in fp32, rounded once, as bitsandbytes does it.
(A table of 16-bit codes in registers, picked from by `prmt`, is not: code, absmax and product would
each be rounded.)
"""

from __future__ import annotations

import triton
import triton.language as tl

PLAIN, SHUFFLE = 0, 1


def shuffle_asm() -> str:
    """Return the assembly that maps four bytes to fp32 codes: even ones in $0-3, odd in $4-7.

    $8: bytes; $9: this lane's code. Only the lowest four bits of a lane's number count, because the
    shuffle's segments are 16 wide (0x101f).
    """
    asm = "{ .reg .b32 t;"
    for byte in range(4):
        for target, shift in ((4 + byte, 8 * byte), (byte, 8 * byte + 4)):
            asm += f" shr.b32 t, $8, {shift};"
            asm += f" shfl.sync.idx.b32 ${target}, $9, t, 0x101f, 0xffffffff;"
    return f"{asm} }}"


LANE_ASM = tl.constexpr("{ .reg .b32 l; mov.u32 l, %laneid; and.b32 $0, l, 15; }")
SHUFFLE_ASM = tl.constexpr(shuffle_asm())


@triton.jit
def table_of(code, LUT: tl.constexpr):
    """Return what `halves` looks up in, made before a loop: a code of each lane's own, i modulo 16.

    To Triton it is one number, loaded: only beside loads does it read bytes in the order in which
    operands in registers lie, and one number is moved between no lanes.
    """
    if LUT == 1:
        lane = tl.inline_asm_elementwise(
            LANE_ASM, "=r,r", [tl.zeros([1, 1], dtype=tl.int32)], dtype=tl.int32, is_pure=True,
            pack=1,
        )  # fmt: skip
        table = tl.load(code + lane)
    else:
        table = code
    return table


@triton.jit
def codes(bytes_, table, LUT: tl.constexpr):
    """Return the fp32 codes of the high and of the low halves."""
    if LUT == 1:
        even, odd = tl.inline_asm_elementwise(
            SHUFFLE_ASM, "=f,=f,=f,=f,=f,=f,=f,=f,r,f,f,f,f", [bytes_, table],
            dtype=(tl.float32, tl.float32), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        even = tl.load(table + (bytes_ >> 4).to(tl.int32))
        odd = tl.load(table + (bytes_ & 15).to(tl.int32))
    return even, odd


@triton.jit
def halves(
    bytes_, absmax, table, R: tl.constexpr, G: tl.constexpr, LUT: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """Return the weights [R, 32 G] of even and of odd inputs in dtype; `absmax` is fp32 [R, G]."""
    even, odd = codes(bytes_, table, LUT)
    scale = tl.reshape(tl.broadcast_to(absmax[:, :, None], [R, G, 32]), [R, 32 * G])
    return (even * scale).to(dtype), (odd * scale).to(dtype)
