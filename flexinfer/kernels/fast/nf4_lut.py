"""Inside kernels: from packed NF4 bytes to weights, by one of three look-ups.

PLAIN gathers from memory, works anywhere and is exact. SHUFFLE holds one fp32 value of the table a
lane and picks by `shfl`: exact as well. PERMUTE puts the table, rounded to 16 bits, into registers
and picks by `prmt`, four weights at a time: code, absmax and their product are each rounded.
Exact means: code times absmax in fp32, rounded once, as bitsandbytes does it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from flexinfer.kernels.nf4 import CODE

PLAIN, PERMUTE, SHUFFLE = 0, 1, 2
_PICK = """
 prmt.b32 a, l0, l1, s; prmt.b32 b, l2, l3, s; prmt.b32 c, a, b, m;
 prmt.b32 a, h0, h1, s; prmt.b32 b, h2, h3, s; prmt.b32 d, a, b, m;
 prmt.b32 {even}, c, d, 0x7351; prmt.b32 {odd}, c, d, 0x6240;"""
"""Of the four halves of two bytes: c gets the codes' low bytes, d their high ones."""


def permute_asm(halves: Sequence[int]) -> str:
    """Return the assembly that maps four bytes to 16-bit codes, `halves` being all 16.

    `s` selects within eight entries of the table, `m` between its halves; a selector of `prmt` has
    four bits an output, the lowest first, so that a byte of NF4 is two selectors as it stands.
    $0, $1: the codes of the high halves, two in each; $2, $3: those of the low halves; $4: bytes.
    """
    table = ""
    for i in range(4):
        four = halves[4 * i : 4 * i + 4]
        low = sum((half & 0xFF) << 8 * j for j, half in enumerate(four))
        high = sum((half >> 8) << 8 * j for j, half in enumerate(four))
        table += f" mov.b32 l{i}, {low:#x}; mov.b32 h{i}, {high:#x};"
    return (
        "{ .reg .b32 s, m, a, b, c, d, l0, l1, l2, l3, h0, h1, h2, h3;"
        + table
        + " and.b32 s, $4, 0x77777777; shr.b32 m, $4, 1;"
        + " and.b32 m, m, 0x44444444; or.b32 m, m, 0x32103210;"
        + _PICK.format(even="$0", odd="$2")
        + " shr.b32 s, s, 16; shr.b32 m, m, 16;"
        + _PICK.format(even="$1", odd="$3")
        + " }"
    )


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


def _sixteen(dtype: torch.dtype) -> list[int]:
    """Return the bits of the 16 codes in a 16-bit dtype."""
    bits = torch.tensor(CODE).to(dtype).view(torch.int16).tolist()
    return [half & 0xFFFF for half in bits]


BF16_ASM = tl.constexpr(permute_asm(_sixteen(torch.bfloat16)))
FP16_ASM = tl.constexpr(permute_asm(_sixteen(torch.float16)))
SHUFFLE_ASM = tl.constexpr(shuffle_asm())


@triton.jit
def codes(bytes_, code, LUT: tl.constexpr, dtype: tl.constexpr):
    """Return the codes of the high and of the low halves: fp32, with PERMUTE in dtype."""
    if LUT == 1:
        if dtype == tl.bfloat16:
            even, odd = tl.inline_asm_elementwise(
                BF16_ASM, "=r,=r,=r,=r,r", [bytes_], dtype=(tl.bfloat16, tl.bfloat16),
                is_pure=True, pack=4,
            )  # fmt: skip
        else:
            even, odd = tl.inline_asm_elementwise(
                FP16_ASM, "=r,=r,=r,=r,r", [bytes_], dtype=(tl.float16, tl.float16),
                is_pure=True, pack=4,
            )  # fmt: skip
    elif LUT == 2:
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
    even, odd = codes(bytes_, code, LUT, dtype)
    scale = absmax.to(even.dtype)
    scale = tl.reshape(tl.broadcast_to(scale[:, :, None], [R, G, 32]), [R, 32 * G])
    return (even * scale).to(dtype), (odd * scale).to(dtype)
