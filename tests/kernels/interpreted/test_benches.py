"""What trials run computes what it is compared with, for every tile that would be tried."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexinfer.kernels.fast.attention import DecodeTile
from flexinfer.kernels.fast.nf4.tile import Nf4Tile
from flexinfer.kernels.fast.tile import Tile
from flexinfer.kernels.fast.tuning import benches, candidates
from flexinfer.kernels.fast.tuning.benches import Bench, Benches
from flexinfer.kernels.fast.tuning.race import Trial
from flexinfer.kernels.fast.tuning.trials import close_to

CPU = torch.device("cpu")


def bench(kind: str, shape: tuple[int, ...], rows: int, cache_bytes: int = 1 << 18) -> Bench:
    with torch.no_grad():
        return Benches(CPU, torch.float32, cache_bytes).build(Trial(kind, shape, rows, None))


@pytest.mark.parametrize(("wide", "split"), [(False, 1), (False, 4), (True, 1), (True, 4)])
def test_products(wide: bool, split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow ones are read by a norm; wide ones, like logits, by nothing."""
    monkeypatch.setattr(benches, "WIDEST_READ", 64 if wide else 128)
    made = bench("products", (128, 1024), 5)
    found = made.launch(0, Tile(16, 64, 64, split, 4, 3, 0))
    assert found.shape[0] == (split if wide and split > 1 else 5)
    assert close_to(found, made.expected)


def test_gated_products() -> None:
    made = bench("gated", (64, 256), 5)
    assert made.expected.shape == (5, 64)
    assert close_to(made.launch(0, Tile(16, 32, 64, 1, 4, 3, 0)), made.expected)


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(("kind", "results"), [("nf4", 128), ("nf4_sides", 64)])
def test_products_with_4_bit_weights(split: int, kind: str, results: int) -> None:
    """What reads them is a norm, or an activation of half of them."""
    made = bench(kind, (128, 256), 5)
    assert made.expected.shape == (5, results)
    assert close_to(made.launch(0, Nf4Tile(16, 64, 64, split, 2, 3)), made.expected)


def test_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "SHORTEST", 20)
    monkeypatch.setattr(benches, "LONGEST", 96)
    made = bench("decode", (3, 64, 2), 2)
    assert made.expected.shape == (2, 6, 64)
    for tile in (DecodeTile(32, 1, 2, 3), DecodeTile(16, 2, 2, 3)):
        assert close_to(made.launch(0, tile), made.expected)
    assert not close_to(made.launch(1, DecodeTile(32, 1, 2, 3)), made.expected)


def test_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "PROMPT", 128)
    made = bench("prefill", (64, 2, 1, 50), 0)
    assert made.expected.shape == (256, 2, 64)
    for family in candidates.prefill(64)[::2]:
        assert close_to(made.launch(0, family.tiles[0]), made.expected)


def test_copies_are_more_than_twice_the_cache_and_differ() -> None:
    weights = 128 * 256
    for kind, outputs, n_bytes in (
        ("products", 128, weights * 4),
        ("gated", 64, weights * 4),
        ("nf4", 128, weights // 2 + weights // 16),
        ("nf4_sides", 128, weights // 2 + weights // 16),
    ):
        made = bench(kind, (outputs, 256), 2, cache_bytes=2 * n_bytes)
        assert made.copies * n_bytes > 2 * 2 * n_bytes
        results = [made.launch(copy, None) for copy in range(made.copies)]
        assert all(not close_to(one, made.expected) for one in results[1:])
    assert bench("products", (128, 256), 2, cache_bytes=0).copies == 1


def test_no_copy_of_4_bit_weights_lies_where_another_does() -> None:
    leaves = Benches(CPU, torch.float32, 1 << 18)._leaves(128, 2048)
    assert len({leaf.packed.data_ptr() for leaf in leaves}) == len(leaves) > 1
    assert len({leaf.absmax.data_ptr() for leaf in leaves}) == len(leaves)


@pytest.mark.parametrize("fault", [0.0, 1.1, float("nan")])
def test_what_is_not_close(fault: float) -> None:
    expected: Tensor = torch.ones(4, 4)
    assert close_to(expected * 1.001, expected)
    assert close_to(torch.stack([expected / 2, expected / 2]), expected)
    assert not close_to(expected * fault, expected)
