"""The page pool: scratch stays, references are counted, misuse is caught."""

from __future__ import annotations

import pytest

from flexinfer.core.pages import SCRATCH, PagePool


def test_hands_out_every_page_but_scratch() -> None:
    pool = PagePool(5, 8)
    assert pool.free == 4
    assert sorted(pool.acquire() for _ in range(4)) == [1, 2, 3, 4]
    assert pool.free == 0
    assert pool.references(SCRATCH) == 0


def test_an_empty_pool_gives_nothing() -> None:
    pool = PagePool(2, 8)
    pool.acquire()
    with pytest.raises(AssertionError, match="no page is free"):
        pool.acquire()


def test_a_shared_page_is_free_after_its_last_holder() -> None:
    pool = PagePool(2, 8)
    page = pool.acquire()
    pool.share(page)
    assert pool.references(page) == 2
    pool.release(page)
    assert pool.free == 0
    pool.release(page)
    assert pool.free == 1
    assert pool.acquire() == page


def test_a_free_page_is_neither_shared_nor_released() -> None:
    pool = PagePool(3, 8)
    page = pool.acquire()
    pool.release(page)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(page)
    with pytest.raises(AssertionError, match="shared but free"):
        pool.share(page)


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (7, 1), (8, 1), (9, 2), (16, 2)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert PagePool(2, 8).pages_for(tokens) == pages
