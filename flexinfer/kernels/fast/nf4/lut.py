"""Inside kernels: from packed NF4 bytes to weights, by one of three look-ups.

SHUFFLE holds one value of the table a lane and picks by `shfl`. HELD makes its table once, before a
loop: the assembler may leave it in otherwise, but Triton then no longer loads bytes the way that
operands in registers lie. PLAIN gathers from memory: for the interpreter, which runs no PTX. All
are exact: code times absmax in fp32, rounded once, as bitsandbytes does it. (A table of 16-bit
codes in registers, picked from by `prmt`, is not: code, absmax and product would each be rounded.)
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl

from flexinfer.kernels.nf4 import CODE

PLAIN, SHUFFLE, HELD = 0, 1, 2


def table_asm(target: str) -> str:
    """Return the assembly that gives lane i code i modulo 16 in fp32, for others to pick from."""
    asm = f" mov.u32 l, %laneid; and.b32 l, l, 15; mov.b32 {target}, 0;"
    for i, value in enumerate(CODE):
        [word] = struct.unpack("<I", struct.pack("<f", value))
        asm += f" setp.eq.u32 p, l, {i}; selp.b32 {target}, {word:#x}, {target}, p;"
    return asm


def shuffle_asm(table: str) -> str:
    """Return the assembly that maps four bytes to fp32 codes: even ones in $0-3, odd in $4-7.

    $8: bytes; `table`: the register that `table_asm` filled. Only the lowest four bits of a lane's
    number count, because the shuffle's segments are 16 wide (0x101f).
    """
    asm = ""
    for byte in range(4):
        for target, shift in ((4 + byte, 8 * byte), (byte, 8 * byte + 4)):
            asm += f" shr.b32 t, $8, {shift};"
            asm += f" shfl.sync.idx.b32 ${target}, {table}, t, 0x101f, 0xffffffff;"
    return asm


REGISTERS = "{ .reg .b32 t, l, v; .reg .pred p;"
SHUFFLE_ASM = tl.constexpr(f"{REGISTERS}{table_asm('v')}{shuffle_asm('v')} }}")
TABLE_ASM = tl.constexpr(f"{REGISTERS}{table_asm('$0')} }}")
HELD_ASM = tl.constexpr(f"{REGISTERS}{shuffle_asm('$9')} }}")


@triton.jit
def table_of(code, LUT: tl.constexpr):
    """Return what `halves` looks up in; with HELD a number of each lane's own."""
    if LUT == 2:
        table = tl.inline_asm_elementwise(
            TABLE_ASM, "=f,r", [tl.program_id(0)], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        table = code
    return table


@triton.jit
def codes(bytes_, table, LUT: tl.constexpr):
    """Return the fp32 codes of the high and of the low halves."""
    if LUT == 2:
        even, odd = tl.inline_asm_elementwise(
            HELD_ASM, "=f,=f,=f,=f,=f,=f,=f,=f,r,f,f,f,f", [bytes_, table],
            dtype=(tl.float32, tl.float32), is_pure=True, pack=4,
        )  # fmt: skip
    elif LUT == 1:
        even, odd = tl.inline_asm_elementwise(
            SHUFFLE_ASM, "=f,=f,=f,=f,=f,=f,=f,=f,r", [bytes_],
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
