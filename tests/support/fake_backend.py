"""A rollout back end without a model: scripted seconds, tokens and failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flexinfer.backends.base.protocol import Backend
from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.engine.requests.outputs import Completion, EngineStats, Request, RequestOutput
from flexinfer.tasks.bench.run import BenchConfig, BenchReport, Rig, run_bench
from flexinfer.tasks.roofline import StepCost

OPTIONS = ModelOptions(model="fake-model")


@dataclass
class FakeClock:
    """A clock that moves only when a call says so; seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def token_seconds(call: int, request_count: int, new_tokens: int) -> float:
    """Default script: a tenth of a second to prefill, then 10 ms a token."""
    return 0.1 + 0.01 * (new_tokens - 1)


@dataclass
class FakeBackend:
    """Returns what is asked, call after call, unless `tamper` changes the outputs of call i."""

    config: EngineConfig
    clock: FakeClock
    seconds: Callable[[int, int, int], float] = token_seconds
    tamper: Callable[[int, list[RequestOutput]], list[RequestOutput]] = lambda call, outs: outs
    name: str = "flex"
    notices: tuple[str, ...] = ("device: fake",)
    adapter: Any = None
    known_positions: int = 10**6
    stats: EngineStats = field(default_factory=EngineStats)
    calls: list[list[Request]] = field(default_factory=list)
    closed: bool = False

    @property
    def max_seq_length(self) -> int:
        return min(self.config.max_seq_length or 4096, self.known_positions)

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        assert not self.closed
        call = len(self.calls)
        self.calls.append(list(requests))
        new = requests[0].sampling.max_new_tokens
        self.clock.now += self.seconds(call, len(requests), new)
        self.stats.graph_replays += new - 1
        self.stats.eager_steps += 1
        self.stats.prefill_tokens += sum(len(r.prompt_token_ids) for r in requests)
        self.stats.ttft_s += [0.1 * (call + 1)] * len(requests)
        self.stats.step_s += [0.001 * (call + 1)] * (new - 1)
        return self.tamper(call, [answer(i, r) for i, r in enumerate(requests)])

    def refresh(self) -> None:
        assert not self.closed
        self.stats.refresh_s.append(0.5)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeCheckpoint:
    """Opens fake back ends and keeps them, so that a test can look at what they were asked."""

    open_backend: Callable[[EngineConfig], FakeBackend]
    vocab_size: int = 500
    backend_name: str = "flex"
    model_name: str = "fake-model"
    device: str = "cpu"
    load_s: float = 1.5
    module: None = None
    opened: list[FakeBackend] = field(default_factory=list)

    def open(self, config: EngineConfig, report: Report) -> Backend:
        backend = self.open_backend(config)
        self.opened.append(backend)
        return backend


def answer(index: int, request: Request) -> RequestOutput:
    """Serve one request with all the tokens it asks for, sevens."""
    count = request.sampling.max_new_tokens
    completion = Completion(
        text="7" * count,
        token_ids=(7,) * count,
        logprobs=(-1.0,) * count,
        policy_logprobs=(-1.0,) * count,
        finish_reason="length",
    )
    outputs = (completion,) * request.sampling.n
    return RequestOutput(index=index, prompt_token_ids=request.prompt_token_ids, outputs=outputs)


def fake_rig(
    checkpoint: FakeCheckpoint | None = None,
    *,
    cost: StepCost | None = None,
    bandwidth: float | None = None,
    **script: Any,
) -> tuple[Rig, FakeCheckpoint]:
    """Return a rig around one fake checkpoint; `script` goes to every back end it opens."""
    clock = FakeClock()
    held = checkpoint or FakeCheckpoint(lambda config: FakeBackend(config, clock, **script))
    rig = Rig(
        load=lambda name, options, report: held,
        model_name=lambda model: model,
        environment=lambda: {"device": "fake"},
        cost=lambda checkpoint: cost,
        bandwidth=lambda device: bandwidth,
        clock=clock,
        tunable=lambda options: None,
        apart=False,
    )
    return rig, held


def small(**given: Any) -> BenchConfig:
    """Four prompts of 5 to 9 tokens, 11 new tokens, five rounds."""
    defaults = {"n_prompts": 4, "n_rounds": 5, "max_new_tokens": 11, "prompt_length": "5:9"}
    return BenchConfig(**defaults | given)


def run(rig: Rig, config: BenchConfig | None = None, **engine: Any) -> BenchReport:
    return run_bench(OPTIONS, EngineConfig(**engine), config or small(), rig=rig)
