"""Samples of one prompt share its pages: counted, copied where partly filled, same ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flexinfer.core.placement import Placement
from flexinfer.core.step import Step
from flexinfer.engine.engine import Engine
from flexinfer.engine.steps.loop import Loop
from tests.support.engines import PAGE, assert_greedy, machinery, request
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES

Open = Callable[..., Engine]
LENGTHS = (1, 2, 7, 8, 9, 10, 16, 17, 18, 31)
SAMPLED = {"max_new_tokens": 12, "temperature": 1.0, "seed": 7}
families = pytest.mark.parametrize("family", FAMILIES)
backends = pytest.mark.parametrize(
    "attention", ["dense", pytest.param("flex", marks=pytest.mark.slow)]
)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Record every step that a loop launches."""
    launched: list[Step] = []
    real = Loop._launch

    def launch(self: Loop, step: Step) -> object:
        launched.append(step)
        return real(self, step)

    monkeypatch.setattr(Loop, "_launch", launch)
    return launched


@backends
@families
def test_samples_share_and_are_each_themselves(
    family: str, attention: str, open_engine: Open
) -> None:
    prompts = prompts_of(9, 16, 18)
    engine = open_engine(family, attention=attention)
    together = engine.generate([request(p, n=4, **SAMPLED) for p in prompts])
    assert engine.stats.prefill_tokens == sum(map(len, prompts))
    for prompt, output in zip(prompts, together, strict=True):
        assert len({completion.token_ids for completion in output.outputs}) == 4
        fewer, other = (
            open_engine(family, attention=attention).generate([request(prompt, n=n, **SAMPLED)])[0]
            for n in (2, 1)
        )
        assert [c.token_ids for c in fewer.outputs] == [c.token_ids for c in output.outputs[:2]]
        assert other.outputs[0].token_ids == output.outputs[0].token_ids


@families
def test_sharing_changes_no_id(
    family: str, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = prompts_of(*LENGTHS)
    requests = [request(p, n=3, **SAMPLED) for p in prompts]
    shared = open_engine(family).generate(requests)
    monkeypatch.setattr(Placement, "keep", lambda *args: None)
    engine = open_engine(family)
    for a, b in zip(shared, engine.generate(requests), strict=True):
        assert [c.token_ids for c in a.outputs] == [c.token_ids for c in b.outputs]
    assert engine.stats.prefill_tokens == 3 * sum(n for n in LENGTHS if n > 1)


@families
def test_greedy_samples_are_the_oracles(family: str, open_engine: Open) -> None:
    prompts = prompts_of(*LENGTHS)
    outputs = open_engine(family).generate([request(p, n=3, max_new_tokens=12) for p in prompts])
    for number in range(3):
        assert_greedy(family, prompts, [output.outputs[number] for output in outputs])


@pytest.mark.parametrize("length", LENGTHS)
def test_only_the_last_partial_page_is_copied(
    length: int, open_engine: Open, steps: list[Step]
) -> None:
    engine = open_engine("qwen3")
    engine.generate([request(prompts_of(length)[0], n=4, **SAMPLED)])
    copies = [copy for step in steps for copy in step.page_copies]
    assert len(copies) == (3 if (length - 1) % PAGE else 0)
    assert len({copy.source for copy in copies}) == (1 if copies else 0)
    assert len({copy.target for copy in copies}) == len(copies)
    assert engine.stats.prefill_tokens == (length if length > 1 else 0)


def test_equal_prompts_of_different_requests_share(open_engine: Open) -> None:
    prompt, other = prompts_of(20, 20)
    engine = open_engine("qwen3")
    prompts = [prompt, other, prompt, prompt]
    outputs = engine.generate([request(p, max_new_tokens=5 + i) for i, p in enumerate(prompts)])
    assert engine.stats.prefill_tokens == 20 + 20
    assert_greedy("qwen3", prompts, [output.outputs[0] for output in outputs])


def test_different_requests_of_one_prompt_keep_their_own_seeds(open_engine: Open) -> None:
    (prompt,) = prompts_of(13)
    seeds = (3, 4, 3, 5)
    sampled = {"max_new_tokens": 10, "temperature": 1.0}
    shared = open_engine("qwen3").generate([request(prompt, seed=s, **sampled) for s in seeds])
    found = [output.outputs[0].token_ids for output in shared]
    alone = [
        open_engine("qwen3").generate([request(prompt, seed=s, **sampled)])[0].outputs[0].token_ids
        for s in seeds
    ]
    assert found == alone
    assert found[0] == found[2]
    assert len(set(found)) == 3


def test_nothing_is_shared_across_calls(open_engine: Open) -> None:
    """Weights may change between calls, so keys of an earlier call are never read again."""
    (prompt,) = prompts_of(20)
    engine = open_engine("qwen3")
    for calls in (1, 2):
        engine.generate([request(prompt, max_new_tokens=2)])
        assert engine.stats.prefill_tokens == 20 * calls
    assert machinery(engine).scheduler.prefill_tokens == 40
