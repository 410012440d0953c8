"""A whole profile of a real engine on the CPU, and that it leaves the engine as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flexinfer.backends.flex import FlexBackend
from flexinfer.errors import UsageError
from flexinfer.models.catalog import build_decoder
from flexinfer.tasks.bench.profile.run import HOST, profile_backend
from flexinfer.tasks.bench.profile.standing import MOST_STEPS, stand
from flexinfer.tasks.bench.profile.subject import Subject
from flexinfer.tasks.roofline import step_cost
from tests.support.engines import assert_idle, make_engine, request, tiny
from tests.support.prompts import prompts_of

REQUESTS = [request(p, max_new_tokens=12, temperature=1.0, seed=1) for p in prompts_of(5, 9, 17, 3)]


@pytest.fixture
def backend() -> Iterator[FlexBackend]:
    with make_engine("gemma4", max_batch_size=3, max_seq_length=40) as engine:
        yield FlexBackend(engine)


def test_a_step_by_the_clock(backend: FlexBackend) -> None:
    model = tiny("gemma4")
    cost = step_cost(model, build_decoder(model).specs)
    found = profile_backend(backend, Subject(requests=REQUESTS, cost=cost, bandwidth=1e10))
    assert (found.timed_by, found.call, found.remarks) == ("host", None, (HOST,))
    step = found.step
    assert (step.rows, step.graph, step.gaps_us) == (3, False, None)
    assert all(row.us_step > 0 for row in found.ops)
    assert sum(row.us_step for row in found.ops) == pytest.approx(step.busy_us)
    assert sum(row.share_pct for row in found.ops) == pytest.approx(100)
    assert step.floor_us is not None
    read = sum(cost.kv_read(c, c + step.steps) for c in (11, 15, 23)) / step.steps
    assert step.floor_us == pytest.approx((cost.weight_bytes + read) / 1e4)


def test_profiling_changes_no_result(backend: FlexBackend) -> None:
    before = backend.generate(REQUESTS)
    profile_backend(backend, Subject(requests=REQUESTS))
    assert_idle(backend.engine)
    assert backend.generate(REQUESTS) == before


def test_the_batch_is_full_and_stays_in_its_table(backend: FlexBackend) -> None:
    held = stand(backend.engine, REQUESTS)
    assert sorted(held.contexts) == [5 + 6, 9 + 6, 17 + 6]
    assert held.steps == min(MOST_STEPS, 40 - 23)
    longest = [request(p, max_new_tokens=6) for p in prompts_of(34)]
    assert stand(backend.engine, longest).steps == 3


def test_samples_of_one_prompt_fill_the_batch(backend: FlexBackend) -> None:
    held = stand(backend.engine, [request(prompts_of(7)[0], max_new_tokens=8, n=5)])
    assert held.contexts == (11, 11, 11)


def test_a_busy_engine_is_refused(backend: FlexBackend) -> None:
    stream = backend.engine.stream(REQUESTS)
    next(stream)
    with pytest.raises(UsageError, match="one call at a time"):
        stand(backend.engine, REQUESTS)
    stream.close()
