"""The assembly of the NF4 look-up, run on a model of its few instructions: all pairs of codes."""

from __future__ import annotations

import re
import struct

import pytest

pytest.importorskip("triton")

from flexinfer.kernels.fast.nf4.lut import LANE_ASM, SHUFFLE_ASM
from flexinfer.kernels.nf4 import CODE

Registers = dict[str, int]
WORDS = [sum(((17 * byte + 59 * i) & 255) << 8 * i for i in range(4)) for byte in range(256)]
"""Every byte in every place, beside others."""


def run(asm: str, registers: Registers, lane: int = 0, tables: list[int] | None = None) -> None:
    """Execute one thread; `tables` is the shuffled operand of all 32 lanes."""
    body = asm.strip().removeprefix("{").removesuffix("}")
    for line in filter(None, map(str.strip, body.split(";"))):
        name, _, rest = line.partition(" ")
        if name == ".reg":
            continue
        target, *operands = (word.strip() for word in rest.split(","))
        if name == "mov.u32" and operands == ["%laneid"]:
            registers[target] = lane
            continue
        values = [value(word, registers) for word in operands]
        registers[target] = result(name, values, lane, tables) & 0xFFFFFFFF


def value(word: str, registers: Registers) -> int:
    """Return an operand: a register or a number."""
    return int(word, 0) if re.fullmatch(r"0x[0-9a-f]+|\d+", word) else registers[word]


def result(name: str, values: list[int], lane: int, tables: list[int] | None) -> int:
    """Return what an instruction gives, after the PTX manual."""
    match name, values:
        case ("and.b32", [a, b]):
            return a & b
        case ("shr.b32", [a, b]):
            return a >> b
        case ("shfl.sync.idx.b32", [own, b, c, everyone]):
            assert everyone == 0xFFFFFFFF
            assert tables is not None
            assert own == tables[lane]
            segment = c >> 8 & 31
            return tables[(lane & segment) | (b & 31 & ~segment)]
    raise AssertionError(f"no such instruction: {name}")


def halves(word: int) -> tuple[list[int], list[int]]:
    """Return the high and the low halves of four bytes."""
    four = [word >> 8 * i & 255 for i in range(4)]
    return [byte >> 4 for byte in four], [byte & 15 for byte in four]


def test_shuffle() -> None:
    codes = [struct.unpack("<I", struct.pack("<f", code))[0] for code in CODE]
    for word in WORDS:
        for lane in (0, 15, 16, 31):
            registers = {"$8": word, "$9": codes[lane % 16]}
            run(SHUFFLE_ASM.value, registers, lane, codes * 2)
            high, low = halves(word)
            found = [registers[f"${i}"] for i in range(8)]
            assert found == [codes[index] for index in (*high, *low)], hex(word)


def test_every_lane_offers_its_code() -> None:
    for lane in range(32):
        made: Registers = {}
        run(LANE_ASM.value, made, lane)
        assert made["$0"] == lane % 16
