"""The measuring itself: warm-up, prefill calls, timed rounds, and the counters between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from flexinfer.backends.base.protocol import Backend
from flexinfer.config import SamplingParams
from flexinfer.engine.requests.outputs import EngineStats, Request, RequestOutput
from flexinfer.tasks.bench.config import BenchConfig
from flexinfer.tasks.bench.measure.progress import Progress, duration

Clock = Callable[[], float]
PREFILL_CALLS = 3
REFRESHES = 5
TOLD_FROM_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Call:
    """One whole `generate` call: its wall clock, what came back, what was wrong with it.

    `prefill_tokens` are the positions whose KV prefill steps computed.
    """

    wall_s: float
    outputs: tuple[RequestOutput, ...]
    prefill_tokens: int
    problem: str | None

    @property
    def samples(self) -> tuple[tuple[int, int], ...]:
        """Prompt and new tokens of every sample."""
        return tuple(
            (len(output.prompt_token_ids), len(completion.token_ids))
            for output in self.outputs
            for completion in output.outputs
        )

    @property
    def tokens(self) -> int:
        """Decoded tokens of the call."""
        return sum(new for _, new in self.samples)


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
    """Wrap prompts in the sampling that `config` asks for.

    Where EOS may end a sample, request i draws from seed + i, so rounds are of the same lengths.
    Else what is drawn decides nothing, and seeds are the back end's: vLLM draws request by request
    where each has its own.
    """
    return [
        Request(
            prompt_token_ids=prompt,
            sampling=SamplingParams(
                max_new_tokens=max_new_tokens,
                temperature=config.temperature,
                ignore_eos=config.ignore_eos,
                n=config.n_samples,
                seed=None if config.ignore_eos else config.seed + index,
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
    exact = config.ignore_eos
    progress.enter("warm-up")
    warm_up = _timed(backend, whole, exact, clock)
    expected_s = warm_up.wall_s * config.n_rounds
    told = expected_s > TOLD_FROM_S
    then = f", then about {duration(expected_s)} for {config.n_rounds} rounds" if told else ""
    progress.enter(f"prefill{then}")
    repeats = min(PREFILL_CALLS, config.n_rounds)
    prefill = tuple(_timed(backend, first, True, clock) for _ in range(repeats))
    before = snapshot(backend.stats)
    rounds: list[Call] = []
    for number in range(1, config.n_rounds + 1):
        remaining_s = warm_up.wall_s * (config.n_rounds + 1 - number)
        left = f", about {duration(remaining_s)} left" if told else ""
        progress.enter(f"round {number} of {config.n_rounds}{left}")
        rounds.append(_timed(backend, whole, exact, clock))
    during = since(before, backend.stats)
    return Measured(
        warm_up=warm_up, prefill=prefill, rounds=tuple(rounds), before=before, during=during
    )


def refresh_s(backend: Backend) -> float:
    """Return the seconds that bringing the adapter in anew takes: median of some refreshes."""
    for _ in range(REFRESHES):
        backend.refresh()
    return median(backend.stats.refresh_s[-REFRESHES:])


def snapshot(stats: EngineStats) -> EngineStats:
    """Copy counters that go on growing."""
    return replace(
        stats,
        ttft_s=list(stats.ttft_s),
        step_s=list(stats.step_s),
        refresh_s=list(stats.refresh_s),
    )


def since(before: EngineStats, now: EngineStats) -> EngineStats:
    """Return what the counters and lists gained from `before` to `now`."""
    gained: dict[str, Any] = {}
    old = vars(before)
    for name, value in vars(now).items():
        gained[name] = value[len(old[name]) :] if isinstance(value, list) else value - old[name]
    return EngineStats(**gained)


def token_problem(
    outputs: Sequence[RequestOutput], requests: Sequence[Request], exact: bool
) -> str | None:
    """Say what a call failed to deliver, or None; `exact`: samples have the length asked for."""
    sent = len(requests)
    if len(outputs) != sent:
        return f"{len(outputs)} outputs for {sent} requests"
    failed = [output.error for output in outputs if output.error is not None]
    if failed:
        return f"{len(failed)} of {sent} requests failed: {failed[0]}"
    asked = [[request.sampling.max_new_tokens] * request.sampling.n for request in requests]
    counts = [[len(sample.token_ids) for sample in output.outputs] for output in outputs]
    if any(len(got) != len(want) for got, want in zip(counts, asked, strict=True)):
        return f"{sum(map(len, counts))} samples instead of {sum(map(len, asked))}"
    if not exact or counts == asked:
        return None
    wrong = sum(got != want for got, want in zip(counts, asked, strict=True))
    got_tokens, want_tokens = sum(map(sum, counts)), sum(map(sum, asked))
    return f"{got_tokens} tokens instead of {want_tokens} ({wrong} of {sent} requests differ)"


def _timed(backend: Backend, requests: Sequence[Request], exact: bool, clock: Clock) -> Call:
    """Time one `generate` call; tokens are on the host when it returns."""
    before = backend.stats.prefill_tokens
    start = clock()
    outputs = backend.generate(requests)
    wall = clock() - start
    return Call(
        wall_s=wall,
        outputs=tuple(outputs),
        prefill_tokens=backend.stats.prefill_tokens - before,
        problem=token_problem(outputs, requests, exact),
    )
