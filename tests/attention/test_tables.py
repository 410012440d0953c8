"""The page table on the device: writes land, addresses stay, the pad slot points at scratch."""

from __future__ import annotations

import numpy as np
import torch

from flexinfer.attention.tables import PageTables, upload
from flexinfer.core.pages import PageWrite

CPU = torch.device("cpu")


def test_writes_go_to_table_and_logical() -> None:
    tables = PageTables(slots=3, columns=4, n_pages=10, device=CPU)
    tables.apply([PageWrite(0, 0, 7), PageWrite(2, 3, 9), PageWrite(1, 0, 7)])
    assert tables.table.tolist() == [[7, 0, 0, 0], [7, 0, 0, 0], [0, 0, 0, 9], [0, 0, 0, 0]]
    assert tables.logical.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0, 3]


def test_a_page_moves_to_another_column() -> None:
    tables = PageTables(slots=2, columns=4, n_pages=10, device=CPU)
    tables.apply([PageWrite(0, 3, 5)])
    tables.apply([PageWrite(1, 1, 5), PageWrite(0, 3, 6)])
    assert tables.logical[5] == 1
    assert tables.table[0].tolist() == [0, 0, 0, 6]


def test_addresses_are_fixed() -> None:
    tables = PageTables(slots=2, columns=4, n_pages=10, device=CPU)
    before = tables.table.data_ptr(), tables.logical.data_ptr()
    tables.apply([])
    tables.apply([PageWrite(0, 3, 5)])
    assert (tables.table.data_ptr(), tables.logical.data_ptr()) == before
    assert tables.table.dtype == tables.logical.dtype == torch.int32


def test_the_pad_slot_is_the_last_row() -> None:
    tables = PageTables(slots=2, columns=4, n_pages=10, device=CPU)
    tables.apply([PageWrite(slot, column, 9) for slot in range(2) for column in range(4)])
    assert tables.pad_slot == 2
    assert tables.table.shape == (3, 4)
    assert not tables.table[tables.pad_slot].any()


def test_upload_keeps_values_of_any_layout() -> None:
    values = np.arange(12).reshape(3, 4)
    for array in (values, values.T, values[:, ::2], values[:0]):
        assert torch.equal(upload(array, CPU), torch.tensor(array))
