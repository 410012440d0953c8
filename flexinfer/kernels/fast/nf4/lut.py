"""Inside kernels: from packed NF4 bytes to weights, by one of two look-ups.

SHUFFLE holds one value of the table a lane and picks by `shfl`. PLAIN gathers from memory: for the
interpreter, which runs no PTX. Both are exact: code times absmax in fp32, rounded once, as
bitsandbytes does it. (A table of 16-bit codes in registers, picked from by `prmt`, is not: it would
round code, absmax and their product.)
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl

from flexinfer.kernels.nf4 import CODE

PLAIN, SHUFFLE = 0, 1


def shuffle_asm() -> str:
    """Return the assembly that maps four bytes to fp32 codes: even ones in $0-3, odd in $4-7.

    $8: bytes. Lane i holds code i modulo 16 in v, which the assembler finds out once, before a
    loop. Only the lowest four bits of a lane's number count, because the shuffle's segments are 16
    wide (0x101f).
    """
    words = [struct.unpack("<I", struct.pack("<f", value))[0] for value in CODE]
    asm = "{ .reg .b32 t, l, v; .reg .pred p; mov.u32 l, %laneid; and.b32 l, l, 15; mov.b32 v, 0;"
    for i, word in enumerate(words):
        asm += f" setp.eq.u32 p, l, {i}; selp.b32 v, {word:#x}, v, p;"
    for byte in range(4):
        for target, shift in ((4 + byte, 8 * byte), (byte, 8 * byte + 4)):
            asm += (
                f" shr.b32 t, $8, {shift}; shfl.sync.idx.b32 ${target}, v, t, 0x101f, 0xffffffff;"
            )
    return asm + " }"


SHUFFLE_ASM = tl.constexpr(shuffle_asm())


@triton.jit
def codes(bytes_, code, LUT: tl.constexpr):
    """Return the fp32 codes of the high and of the low halves."""
    if LUT:
        even, odd = tl.inline_asm_elementwise(
            SHUFFLE_ASM, "=f,=f,=f,=f,=f,=f,=f,=f,r", [bytes_],
            dtype=(tl.float32, tl.float32), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        even = tl.load(code + (bytes_ >> 4).to(tl.int32))
        odd = tl.load(code + (bytes_ & 15).to(tl.int32))
    return even, odd


@triton.jit
def halves(
    bytes_, absmax, code, R: tl.constexpr, G: tl.constexpr, LUT: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """Return the weights [R, 32 G] of even and of odd inputs in dtype; `absmax` is fp32 [R, G]."""
    even, odd = codes(bytes_, code, LUT)
    scale = tl.reshape(tl.broadcast_to(absmax[:, :, None], [R, G, 32]), [R, 32 * G])
    return (even * scale).to(dtype), (odd * scale).to(dtype)
