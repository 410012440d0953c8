"""Prompts, gaps, limits and tables, by hand."""

from __future__ import annotations

import math

import pytest

from flexinfer.errors import UsageError
from flexinfer.tasks.drift.config import DriftConfig
from flexinfer.tasks.drift.gaps import (
    Answers,
    changed,
    first_divergence,
    gap,
    n_different,
    partings,
    widest,
)
from flexinfer.tasks.drift.limits import limits
from flexinfer.tasks.drift.prompts import batch_sizes, batches, draw, lengths
from flexinfer.tasks.reference.samples import Checked


@pytest.mark.parametrize(
    ("windows", "page", "new", "n", "longest", "found"),
    [
        ([512], 32, 16, 6, 4096, (504, 528, 24, 48, 1, 33)),
        ([8, 8], 8, 12, 5, 1024, (2, 20, 1, 9, 18)),
        ([], 16, 16, 3, 1024, (8, 32, 1)),
        ([512], 32, 16, 4, 128, (24, 48, 1, 33)),
        ([512], 32, 16, 4, 20, (1, 1, 1, 1)),
    ],
)
def test_prompts_cross_windows_first_then_pages(
    windows: list[int], page: int, new: int, n: int, longest: int, found: tuple[int, ...]
) -> None:
    sizes = lengths(windows, page, new, n, longest)
    assert sizes == found
    assert all(size + new <= longest for size in sizes)
    for window in set(windows):
        if longest > window + 2 * new:
            assert any(size < window < size + new for size in sizes)
            assert any(size > window for size in sizes)


def test_prompts_are_the_same_each_time() -> None:
    assert draw((3, 3), 512, 1) == draw((3, 3), 512, 1) != draw((3, 3), 512, 2)
    assert list(map(len, draw((1, 40), 272, 0))) == [1, 40]


def test_batches_are_of_every_size_up_to_the_largest() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(8) == (1, 2, 3, 5, 8)
    assert batch_sizes(64) == (1, 2, 3, 5, 8, 13, 21, 34, 55, 64)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_every_prompt_is_whole_in_one_full_batch(size: int) -> None:
    prompts = draw((2, 9, 30), 512, 0)
    found = batches(prompts, size, 12, 512, 0)
    assert {len(rows) for rows in found} == {size}
    rows = [row for rows in found for row in rows]
    known = [row for row in rows if row.prompt is not None]
    assert {row.prompt for row in known if row.new_tokens == 12} == {0, 1, 2}
    assert all(row.ids == prompts[row.prompt or 0] for row in known)
    assert all(7 <= row.new_tokens <= 12 for row in rows)
    strangers = [row.ids for row in rows if row.prompt is None]
    assert len(strangers) == len(set(strangers)) == (len(rows) - 3) // 4


def test_answers_are_held_against_as_many_tokens() -> None:
    first = (sample("123", -1.0, -1.0, -1.0), sample("45", -1.0, -1.0))
    answers = Answers((1, 0, 0), (sample("45", -1.0, -1.0), sample("12", -1.0, -2.0), first[0]))
    assert answers.of(first) == (first[1], sample("12", -1.0, -1.0), first[0])


def test_a_gap_is_of_the_trainer_over_the_rollout() -> None:
    found = gap([[-1.0, -2.0]], [[-0.5, -2.0]])
    assert (found.tokens, found.mean_gap, found.max_gap) == (2, 0.25, 0.5)
    assert found.k3 == pytest.approx((math.exp(0.5) - 1.5) / 2)
    assert (found.ratio_min, found.ratio_max) == (1.0, math.exp(0.5))
    assert found.ratio_mean == pytest.approx((1 + math.exp(0.5)) / 2)
    assert not gap([[-800.0]], [[math.nan]]).finite
    assert not gap([[-800.0]], [[0.0]]).finite


def sample(ids: str, *logprobs: float) -> Checked:
    return Checked((1, 2), tuple(map(int, ids)), logprobs)


def test_differences_of_two_runs() -> None:
    one = (sample("123", -1.0, -1.0, -1.0), sample("45", -1.0, -1.0))
    same = (sample("123", -1.0, -1.5, -1.0), sample("45", -1.0, -1.0))
    other = (sample("143", -1.25, -3.0, -9.0), sample("45", -1.0, -1.0))
    assert (n_different(one, one), n_different(one, same), n_different(one, other)) == (0, 1, 3)
    assert (widest(one, same), widest(one, other)) == (0.5, 0.25)
    assert (changed(one, other), changed(one, one)) == (2.0, 0.0)
    assert [*partings(one, same)] == []
    assert [tuple(at) for at in partings(one, other)] == [(0, 1, 2, 4)]
    found = first_divergence(other, [[-1.25, -2.5, -1.0], [-1.0, -1.0]], 0.4)
    assert found is not None
    assert (found.prompt, found.position, found.token) == (0, 1, 4)
    assert (found.rollout, found.trainer, found.prompt_tokens) == (-3.0, -2.5, 2)
    assert first_divergence(one, [[-1.0] * 3, [-1.0] * 2], 0.0) is None
    assert first_divergence(one, [[math.nan] * 3, [-1.0] * 2], 1.0) is not None


def test_limits_are_multiples_of_what_is_measured_but_not_below_the_floor() -> None:
    assert limits("float32", 0.0, 0.0, 0.0, 1e-5) == (1e-4, 1e-4, 1e-8, 2e-5)
    assert limits("bfloat16", 0.05, 0.1, 0.01, 0.5) == (0.1, 0.4, 0.04, 1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("cycles", 0), ("n_prompts", 0), ("max_new_tokens", 0), ("noise_scale", 0.0),
     ("noise_scale", math.inf), ("noise_scale", math.nan), ("noise_scale", -1.0)],
)  # fmt: skip
def test_settings_out_of_range_are_told_by_their_flag(name: str, value: float) -> None:
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=flag):
        DriftConfig(**{name: value})
