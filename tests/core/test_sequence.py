"""A sequence's arithmetic: what is known, what is launched, what is still wanted."""

from __future__ import annotations

import pytest

from flexinfer.core.sequence import Group, Sequence


@pytest.fixture
def sequence() -> Sequence:
    return Sequence(Group((5, 6, 7)), max_new_tokens=3, tokens=[8], pending=1)


def test_length_counts_what_is_on_the_device(sequence: Sequence) -> None:
    assert sequence.length == 5
    assert sequence.group.shared == 2


def test_wants_no_token_once_all_are_launched(sequence: Sequence) -> None:
    assert sequence.wants_token
    sequence.pending += 1
    assert not sequence.wants_token


def test_the_last_token_writes_no_kv(sequence: Sequence) -> None:
    assert sequence.final_kv == 5


@pytest.mark.parametrize(
    ("start", "end", "ids"), [(0, 2, (5, 6)), (1, 4, (6, 7, 8)), (3, 4, (8,)), (2, 3, (7,))]
)
def test_token_ids_cross_from_prompt_to_tokens(
    sequence: Sequence, start: int, end: int, ids: tuple[int, ...]
) -> None:
    assert sequence.token_ids(start, end) == ids


def test_samples_of_one_prompt_differ(sequence: Sequence) -> None:
    twin = Sequence(sequence.group, max_new_tokens=3, tokens=[8], pending=1)
    assert twin != sequence
    assert len({twin, sequence}) == 2
