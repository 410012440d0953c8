"""The list of checks: its order, what a selection brings along, and misspelt names."""

from itertools import groupby

import pytest

from flexinfer.errors import UsageError
from flexinfer.tasks.doctor.registry import list_checks, select


def test_names_are_unique_and_categories_contiguous():
    checks = list_checks()
    assert len({check.name for check in checks}) == len(checks)
    groups = [group for group, _ in groupby(check.category for check in checks)]
    assert len(set(groups)) == len(groups)


def test_every_need_comes_earlier():
    earlier = set()
    for check in list_checks():
        assert set(check.needs) <= earlier, check.name
        earlier.add(check.name)


def test_no_name_selects_all():
    assert [c.name for c in select(())] == [c.name for c in list_checks()]


def test_a_selection_brings_what_it_needs_in_the_common_order():
    assert [c.name for c in select(("flex-512", "python"))] == [
        "python", "torch", "compiler", "flex-512",
    ]  # fmt: skip
    assert [c.name for c in select(("cuda-graphs",))] == ["torch", "device", "cuda-graphs"]


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(UsageError, match="'flash-atn'") as caught:
        select(("flash-atn",))
    assert "did you mean flash-attn-4?" in caught.value.hint
    assert caught.value.exit_code == 2
