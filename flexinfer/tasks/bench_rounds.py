"""The measuring itself: warm-up, prefill calls, timed rounds, and the counters between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexinfer.backends.protocol import Backend
from flexinfer.config import SamplingParams
from flexinfer.engine.outputs import EngineStats, Request, RequestOutput
from flexinfer.tasks.bench_config import BenchConfig
from flexinfer.tasks.bench_progress import Progress

Clock = Callable[[], float]
PREFILL_CALLS = 3


@dataclass(frozen=True, kw_only=True)
class Call:
    """One whole `generate` call: its wall clock, what came back, what was wrong with it."""

    wall_s: float
    new_tokens: tuple[int, ...]
    outputs: tuple[RequestOutput, ...]
    problem: str | None

    @property
    def tokens(self) -> int:
        """Decoded tokens of the call."""
        return sum(self.new_tokens)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All calls of one back end, and its counters before and over the timed rounds."""

    warm_up: Call
    prefill: tuple[Call, ...]
    rounds: tuple[Call, ...]
    before: EngineStats
    during: EngineStats


def requests_for(
    config: BenchConfig, prompts: Sequence[tuple[int, ...]], max_new_tokens: int
) -> list[Request]:
    """Wrap prompts in the sampling that `config` asks for; request i draws from seed + i."""
    return [
        Request(
            prompt_token_ids=prompt,
            sampling=SamplingParams(
                max_new_tokens=max_new_tokens,
                temperature=config.temperature,
                ignore_eos=config.ignore_eos,
                seed=config.seed + index,
            ),
        )
        for index, prompt in enumerate(prompts)
    ]


def measure(
    backend: Backend,
    config: BenchConfig,
    prompts: Sequence[tuple[int, ...]],
    progress: Progress,
    clock: Clock,
) -> Measured:
    """Run one full warm-up call, the one-token calls, then the rounds, each call whole."""
    whole = requests_for(config, prompts, config.max_new_tokens)
    first = requests_for(config, prompts, 1)
    asked = [config.max_new_tokens] * len(prompts) if config.ignore_eos else None
    progress.enter("warm-up")
    warm_up = _timed(backend, whole, asked, clock)
    progress.enter("prefill")
    repeats = min(PREFILL_CALLS, config.n_rounds)
    prefill = tuple(_timed(backend, first, [1] * len(first), clock) for _ in range(repeats))
    before = snapshot(backend.stats)
    rounds: list[Call] = []
    for number in range(1, config.n_rounds + 1):
        progress.enter(f"round {number} of {config.n_rounds}")
        rounds.append(_timed(backend, whole, asked, clock))
    during = since(before, backend.stats)
    return Measured(
        warm_up=warm_up, prefill=prefill, rounds=tuple(rounds), before=before, during=during
    )


def snapshot(stats: EngineStats) -> EngineStats:
    """Copy counters that go on growing."""
    return replace(stats, ttft_s=list(stats.ttft_s), step_s=list(stats.step_s))


def since(before: EngineStats, now: EngineStats) -> EngineStats:
    """Return what the counters and lists gained from `before` to `now`."""
    gained: dict[str, Any] = {}
    old = vars(before)
    for name, value in vars(now).items():
        gained[name] = value[len(old[name]) :] if isinstance(value, list) else value - old[name]
    return EngineStats(**gained)


def token_problem(
    outputs: Sequence[RequestOutput], asked: Sequence[int] | None, sent: int
) -> str | None:
    """Say what a call failed to deliver, or None; `asked` None asks for no exact counts."""
    if len(outputs) != sent:
        return f"{len(outputs)} outputs for {sent} requests"
    failed = [output.error for output in outputs if output.error is not None]
    if failed:
        return f"{len(failed)} of {sent} requests failed: {failed[0]}"
    counts = [_new_tokens(output) for output in outputs]
    if asked is None or counts == list(asked):
        return None
    wrong = sum(got != want for got, want in zip(counts, asked, strict=True))
    return f"{sum(counts)} tokens instead of {sum(asked)} ({wrong} of {sent} requests differ)"


def _timed(
    backend: Backend, requests: Sequence[Request], asked: Sequence[int] | None, clock: Clock
) -> Call:
    """Time one `generate` call; tokens are on the host when it returns."""
    start = clock()
    outputs = backend.generate(requests)
    wall = clock() - start
    return Call(
        wall_s=wall,
        new_tokens=tuple(_new_tokens(output) for output in outputs),
        outputs=tuple(outputs),
        problem=token_problem(outputs, asked, len(requests)),
    )


def _new_tokens(output: RequestOutput) -> int:
    """Count the tokens decoded for one request, over all its samples."""
    return sum(len(completion.token_ids) for completion in output.outputs)
