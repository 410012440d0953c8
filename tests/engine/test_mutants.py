"""Engines made wrong on purpose: the comparison with the oracle sees each of them, on each path.

Un-compiled flex_attention would ignore page lists, so these run dense and compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Completion
from flexinfer.engine.steps.programs import Programs
from tests.support.engines import assert_greedy, complete
from tests.support.mutants import run_changed, shift_windows
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES, tiny_qwen3

Open = Callable[..., Engine]
PROMPTS = prompts_of(20, 25, 12)
families = pytest.mark.parametrize("family", FAMILIES)
backends = pytest.mark.parametrize(
    "attention", ["dense", pytest.param("flex", marks=pytest.mark.slow)]
)


def assert_wrong(model: Any, prompts: list[list[int]], found: list[Completion]) -> None:
    """Fail if every prompt's ids are the oracle's."""
    with pytest.raises(AssertionError, match="prompt of"):
        assert_greedy(model, prompts, found)


def nothing(table: Tensor) -> None:
    """Leave the table as it is."""


def first_and_last(table: Tensor) -> None:
    """Swap the first page and the one being written, in every row."""
    for slot, prompt in enumerate(PROMPTS):
        last = (len(prompt) + 4) // 8
        table[slot, [0, last]] = table[slot, [last, 0]]


def across_rows(table: Tensor) -> None:
    """Give each of two rows a page of the other."""
    table[[0, 1], 1] = table[[1, 0], 1]


@backends
@families
@pytest.mark.parametrize("change", [nothing, first_and_last, across_rows])
def test_a_wrong_page_list(
    change: Callable[[Tensor], None], family: str, attention: str, open_engine: Open
) -> None:
    engine = open_engine(family, attention=attention)
    found = run_changed(engine, PROMPTS, 5, change, max_new_tokens=12)
    check = assert_greedy if change is nothing else assert_wrong
    check(family, PROMPTS, found)
    begun = [replace(c, **cut(c, 5)) for c in found]
    assert_greedy(family, PROMPTS, begun)


def cut(completion: Completion, count: int) -> dict[str, Any]:
    """Return the first `count` tokens and what belongs to them."""
    names = ("token_ids", "logprobs", "policy_logprobs")
    return {name: getattr(completion, name)[:count] for name in names}


@backends
@families
def test_a_wrong_page_under_a_chunked_prefill(
    family: str, attention: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(family, attention=attention, prefill_tokens=16)
    real, calls = Programs.prefill, []

    def prefill(self: Programs, *args: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            self.tables.table[0, 1] = self.tables.table[0, 0]
        return real(self, *args)

    monkeypatch.setattr(Programs, "prefill", prefill)
    assert_wrong(family, PROMPTS[:1], complete(engine, PROMPTS[:1], max_new_tokens=6))
    assert len(calls) == 2


@backends
@pytest.mark.parametrize("tokens", [-1, 0, 1])
def test_a_window_off_by_one(tokens: int, attention: str, open_engine: Open) -> None:
    engine = open_engine("gemma4", attention=attention)
    shift_windows(engine, tokens)
    check = assert_wrong if tokens else assert_greedy
    check("gemma4", PROMPTS, complete(engine, PROMPTS, max_new_tokens=12))
    crossing = prompts_of(3)
    found = complete(engine, crossing, max_new_tokens=20)
    check("gemma4", crossing, found)
    within = [replace(found[0], **cut(found[0], 8 - 3 + min(tokens, 0)))]
    assert_greedy("gemma4", crossing, within)


@pytest.mark.parametrize("tokens", [-1, 0, 1])
def test_a_qwen3_window_off_by_one(tokens: int, open_engine: Open) -> None:
    model = tiny_qwen3(use_sliding_window=True, sliding_window=8, max_window_layers=2)
    engine = open_engine(model)
    shift_windows(engine, tokens)
    check = assert_wrong if tokens else assert_greedy
    check(model, PROMPTS, complete(engine, PROMPTS, max_new_tokens=12))
