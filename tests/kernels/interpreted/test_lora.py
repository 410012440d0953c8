"""The side path in two kernels is the plain form's, for any ranks, members, rows and splits.

Shape letters: N outputs, K inputs, R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flexinfer.kernels.fast.lora.add import BM, BN, BR, lora_add, lora_add_kernel, lora_gated
from flexinfer.kernels.fast.lora.low import gated_tile, lora_linear, lora_matmul
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.linear import Dense
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.mlp import gated
from tests.support.triton_interpreter import DTYPES, close, normal, same

INPUTS = 96
tma = pytest.mark.parametrize("tma", [0, 1])
splits = pytest.mark.parametrize("split", [1, 3])
dtypes = pytest.mark.parametrize("dtype", DTYPES)
GROUPS = {
    "alone": ((80,), (8,)),
    "q, k, v": ((128, 64, 64), (32, 32, 32)),
    "unequal": ((80, 24, 56), (1, 40, 17)),
    "one has none": ((64, 32, 32), (16, 0, 3)),
    "several turns": ((80, 32), (BR + 3, 2 * BR)),
}
groups = pytest.mark.parametrize("group", GROUPS)


def tile_of(split: int = 1, use_tma: int = 0) -> Tile:
    """Return a tile of several blocks and turns."""
    return Tile(16, 32, 16, split, 4, 3, use_tma)


def side(
    widths: Sequence[int], ranks: Sequence[int], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return A [R, K], and B [N, R] that is block-diagonal."""
    a = normal(sum(ranks), INPUTS, seed=2, dtype=dtype) * 0.2
    blocks = [normal(n, r, seed=3 + i) for i, (n, r) in enumerate(zip(widths, ranks, strict=True))]
    return a, (torch.block_diag(*blocks) * 0.2).to(dtype)


def base(outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a weight [N, K]."""
    return normal(outputs, INPUTS, seed=1, dtype=dtype) * 0.2


def parts(x: Tensor, w: Tensor, a: Tensor, split: int) -> Tensor:
    """Return what `lora_matmul` returns, as PyTorch computes it."""
    joined = torch.cat((w, a)).float()
    shares = zip(x.float().chunk(split, 1), joined.chunk(split, 1), strict=True)
    return torch.stack([F.linear(*share) for share in shares])


@tma
@splits
@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize(("outputs", "ranks"), [(64, 40), (80, 1), (80, 16)])
def test_both_products(outputs: int, ranks: int, rows: int, split: int, tma: int) -> None:
    x, w, a = normal(rows, INPUTS), base(outputs), side((outputs,), (ranks,))[0]
    found = lora_matmul(x, w, a, tile_of(split, tma))
    assert found.shape == (split, rows, outputs + ranks)
    close(found, parts(x, w, a, split), 1e-4)


@splits
def test_only_what_is_whole_is_rounded(split: int) -> None:
    half = torch.float16
    x, w, a = normal(3, INPUTS, dtype=half), base(64, half), side((64,), (8,), half)[0]
    found = lora_matmul(x, w, a, tile_of(split))
    assert found.dtype == (half if split == 1 else torch.float32)
    close(found.float(), parts(x, w, a, split), 1e-4 if split > 1 else 4e-3)


def test_nothing_is_written_between_rows() -> None:
    """Rows are aligned: what lies between them, and B's block beyond its ranks, stays as it was."""
    x, w, a = normal(5, INPUTS), base(80), side((80,), (3,))[0]
    found = lora_matmul(x, w, a, tile_of())
    assert found.stride(1) == 96
    assert torch.as_strided(found, (4, 13), (96, 1), 83).isnan().all()


@groups
@splits
@pytest.mark.parametrize("rows", [1, 19])
def test_add(rows: int, split: int, group: str) -> None:
    widths, ranks = GROUPS[group]
    a, b = side(widths, ranks)
    x, w = normal(rows, INPUTS), base(sum(widths))
    found = lora_add(lora_matmul(x, w, a, tile_of(split)), b, widths, ranks)
    close(found, Adapted(Dense(w), a, b)(x), 1e-4)


@splits
@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize("ranks", [(8, 8), (1, 40), (0, 5), (3 * BR, BR + 6)])
def test_gated(ranks: tuple[int, int], rows: int, split: int) -> None:
    a, b = side((80, 80), ranks)
    x, w = normal(rows, INPUTS), base(160)
    partials = lora_matmul(x, w, a, gated_tile(tile_of(split)))
    for activation in ("silu", "gelu_pytorch_tanh")[: 2 if ranks == (8, 8) else 1]:
        expected = gated(*Adapted(Dense(w), a, b)(x).chunk(2, 1), activation)
        close(lora_gated(partials, b, activation, ranks), expected, 1e-4)


@groups
def test_rounded_where_the_plain_form_rounds(group: str) -> None:
    """With sums that are exact in any order, every bit is the same."""
    half, (widths, ranks) = torch.float16, GROUPS[group]
    a, b = (coarse(t) for t in side(widths, ranks, half))
    x, w = coarse(normal(5, INPUTS, dtype=half)), coarse(base(sum(widths), half))
    expected = Adapted(Dense(w), a, b)(x)
    for split in (1, 3):
        found = lora_add(lora_matmul(x, w, a, tile_of(split)), b, widths, ranks)
        assert torch.equal(found, expected)


def test_gated_is_rounded_where_the_plain_form_rounds() -> None:
    half = torch.float16
    a, b = (coarse(t) for t in side((80, 80), (8, 20), half))
    x, w = coarse(normal(5, INPUTS, dtype=half)), coarse(base(160, half))
    expected = gated(*Adapted(Dense(w), a, b)(x).chunk(2, 1), "silu")
    for split in (1, 3):
        partials = lora_matmul(x, w, a, gated_tile(tile_of(split)))
        same(lora_gated(partials, b, "silu", (8, 20)), expected)


def coarse(t: Tensor) -> Tensor:
    """Return few bits of each value, so that sums of products fit fp32."""
    return (t * 32).round() / 32


@groups
@dtypes
def test_products_of_cublas_are_taken_too(dtype: torch.dtype, group: str) -> None:
    widths, ranks = GROUPS[group]
    a, b = side(widths, ranks, dtype)
    x, w = normal(70, INPUTS, dtype=dtype), base(sum(widths), dtype)
    partials = lora_linear(x, w, a)
    assert partials.shape == (1, 70, sum(widths) + sum(ranks))
    same(lora_add(partials, b, widths, ranks), Adapted(Dense(w), a, b)(x))


def test_other_members_ranks_are_not_read() -> None:
    """B outside the blocks may hold anything."""
    widths, ranks = GROUPS["unequal"]
    a, b = side(widths, ranks)
    x, w = normal(3, INPUTS), base(sum(widths))
    expected = Adapted(Dense(w), a, b)(x)
    outside = torch.block_diag(*(torch.ones(n, r) for n, r in zip(widths, ranks, strict=True))) == 0
    b[outside] = torch.nan
    close(lora_add(lora_matmul(x, w, a, tile_of(3)), b, widths, ranks), expected, 1e-4)


def test_a_block_writes_to_its_own_member_only() -> None:
    """Here blocks come one after the other, and the next member's would hide what one spoils."""
    widths, ranks = GROUPS["unequal"]
    a, b = side(widths, ranks)
    partials = lora_matmul(normal(3, INPUTS), base(sum(widths)), a, tile_of())
    out = torch.full((3, sum(widths)), torch.nan)
    lora_add_kernel[(-(-widths[0] // BN), 1)](
        partials, b, out, 3, *b.shape, partials.stride(1), BM, BN, BR, max(ranks), widths, ranks,
        1, False,
    )  # fmt: skip
    assert not out[:, : widths[0]].isnan().any()
    assert out[:, widths[0] :].isnan().all()


@pytest.mark.parametrize(("widths", "ranks"), [((60,), (8,)), ((64,), (8, 8)), ((64, 0), (8,))])
def test_what_does_not_fit_is_refused(widths: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    partials = normal(1, 2, 64 + sum(ranks))
    with pytest.raises(AssertionError):
        lora_add(partials, normal(64, sum(ranks)), widths, ranks)
