"""Large imports: garbage is looked for rarely meanwhile, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib import import_module

import pytest

from flexinfer.core.imports import RARELY, large_imports


@pytest.fixture(autouse=True)
def _threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_collections_are_rare_meanwhile() -> None:
    before = gc.get_stats()[0]["collections"]
    with large_imports():
        kept: list[list[int]] = [[] for _ in range(RARELY // 2)]
        assert gc.get_stats()[0]["collections"] <= before + 1
    assert gc.get_threshold() == (700, 10, 10)
    assert len(kept) == RARELY // 2


def test_an_import_that_fails_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(ModuleNotFoundError), large_imports():
        import_module("no_such_module_at_all")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("least", [0, RARELY, 10 * RARELY])
def test_a_collector_that_is_off_or_as_rare_is_left_alone(least: int) -> None:
    gc.set_threshold(least, 5, 5)
    with large_imports():
        assert gc.get_threshold() == (least, 5, 5)
    assert gc.get_threshold() == (least, 5, 5)


def test_imports_that_overlap_leave_nothing_behind() -> None:
    """As two threads may: who begins second ends last."""
    first, second = large_imports(), large_imports()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)
