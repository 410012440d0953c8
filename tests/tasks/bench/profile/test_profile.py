"""A whole profile of a real engine on the CPU, and that it leaves the engine as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from flexinfer.backends.flex import FlexBackend
from flexinfer.errors import UsageError
from flexinfer.models.catalog import build_decoder
from flexinfer.tasks.bench.profile import run, trace_file, traced
from flexinfer.tasks.bench.profile.programs import recorded
from flexinfer.tasks.bench.profile.record import Recorder
from flexinfer.tasks.bench.profile.result import Subject
from flexinfer.tasks.bench.profile.run import HOST, profile_backend
from flexinfer.tasks.bench.profile.standing import MOST_STEPS, stand
from flexinfer.tasks.bench.profile.timeline import Span
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


@pytest.mark.parametrize(
    ("name", "why"),
    [("none/trace.json.gz", "No such file"), ("none/trace.json", "nothing was written")],
)
def test_a_trace_that_cannot_be_written_costs_no_profile(
    backend: FlexBackend, tmp_path: Path, name: str, why: str
) -> None:
    path = str(tmp_path / name)
    found = profile_backend(backend, Subject(requests=REQUESTS, trace_path=path))
    assert found.ops
    assert found.kernels
    assert found.trace_file is None
    first, lost = found.remarks
    assert (first, lost.startswith(f"no trace in {path}: "), why in lost) == (HOST, True, True)


def test_an_error_of_what_is_traced_is_none_of_the_file(
    backend: FlexBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> object:
        raise RuntimeError("an illegal access")

    monkeypatch.setattr(trace_file, "split_at", broken)
    subject = Subject(requests=REQUESTS, trace_path=str(tmp_path / "trace.json"))
    with pytest.raises(RuntimeError, match="an illegal access"):
        profile_backend(backend, subject)


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
    requests = [request(p, max_new_tokens=8, n=2) for p in prompts_of(7, 9, 3)]
    assert sorted(stand(backend.engine, requests).contexts) == [11, 11, 13]
    many = [request(prompts_of(7)[0], max_new_tokens=8, n=5)]
    assert stand(backend.engine, many).contexts == (11, 11, 11)


def test_a_busy_engine_is_refused(backend: FlexBackend) -> None:
    stream = backend.engine.stream(REQUESTS)
    next(stream)
    with pytest.raises(UsageError, match="one call at a time"):
        stand(backend.engine, REQUESTS)
    stream.close()


class FakeDevice:
    """A device whose every operation is one kernel of 2 us, 1 us after the one before."""

    def __init__(self) -> None:
        self.now, self.spans = 0, list[Span]()

    def kernel(self, name: str, launch: int = 0) -> None:
        self.spans.append(Span(name, self.now, self.now + 2000, launch))
        self.now += 3000

    def mark(self) -> None:
        self.kernel("spin_kernel")
        self.kernel("some_kernel")

    @contextmanager
    def tracing(self) -> Iterator[list[Span]]:
        self.spans = []
        yield self.spans


def test_a_traced_step_and_call(backend: FlexBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CUDA device goes through, its kernels made up: one an operation, and one after it."""
    device = FakeDevice()
    monkeypatch.setattr(traced, "mark", device.mark)
    monkeypatch.setattr(traced, "tracing", device.tracing)
    held = stand(backend.engine, REQUESTS)
    program = held.machinery.programs
    recorder = Recorder(lambda: None)
    recorder.begin()
    inside = recorded(program, recorder, lambda window: 0.0)
    assert inside is not None
    with torch.no_grad():
        inside.decode(held.slots, held.kind, held.columns)
    count = len(recorder.ops)

    def play() -> None:
        for at in range(count):
            device.kernel("some_kernel", launch=at)

    monkeypatch.setattr(run, "player", lambda held: (play, True))
    found = run.profile_step(held, Subject(requests=REQUESTS), on_device=True)
    step = found.step
    assert (found.timed_by, found.remarks, step.kernels) == ("device", (), count)
    assert step.busy_us == pytest.approx(2.0 * count)
    assert step.traced_step_us == pytest.approx(3.0 * count)
    assert step.traced_gaps_us == pytest.approx(count - 1)
    assert step.gaps_us == pytest.approx(step.step_us - step.busy_us)
    assert [row.calls for row in found.ops if row.name == "o product"] == [5, 3]
    assert found.ops[-1].name == "other"
    assert found.ops[-1].kernels == count // 2 + 1
    assert step.kernels_per_layer == 10
