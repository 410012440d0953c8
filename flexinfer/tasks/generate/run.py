"""`generate`: from prompts to texts; settings in, records out in input order, no terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from flexinfer.config import (
    EngineConfig,
    ModelOptions,
    Report,
    SamplingParams,
    quiet,
    resolve_sampling,
)
from flexinfer.tasks.environment import document, now
from flexinfer.tasks.generate.output import Record
from flexinfer.tasks.generate.requests import GenerateConfig, fit, make_plan
from flexinfer.tasks.generate.serve import Tally, serve

if TYPE_CHECKING:
    from flexinfer.engine.engine import Engine
    from flexinfer.weights.load import LoadedModel


@dataclass(frozen=True, kw_only=True)
class GenerateReport:
    """What became of the requests; `engine` and `sampling` are the effective values.

    `resumed` counts the items whose records an earlier run wrote. `tally.ended_by` is what cut the
    work short, for whoever reads the report to raise.
    """

    model: ModelOptions
    engine: EngineConfig
    sampling: SamplingParams
    started_at: str
    wall_s: float
    notices: tuple[str, ...]
    stats: Mapping[str, Any]
    requests: int
    resumed: int
    tally: Tally

    @property
    def summary(self) -> str:
        """One line: how many requests, how many tokens, how fast, loading included."""
        parts = [f"{self.tally.done} of {self.requests} requests done"]
        parts += [f"{self.tally.failed} failed"] if self.tally.failed else []
        parts += [f"{self.resumed} from an earlier run"] if self.resumed else []
        return f"{', '.join(parts)}; {self.tally.new_tokens} new tokens in {self.wall_s:.1f} s"

    def as_dict(self, results: list[Record]) -> dict[str, Any]:
        """Return the JSON document around the records."""
        config = {
            "model": asdict(self.model),
            "engine": asdict(self.engine),
            "sampling": asdict(self.sampling),
        }
        return document("generate", config, self.started_at) | {
            "requests": self.requests,
            "resumed": self.resumed,
            "done": self.tally.done,
            "failed": self.tally.failed,
            "new_tokens": self.tally.new_tokens,
            "interrupted": isinstance(self.tally.ended_by, KeyboardInterrupt),
            "wall_s": self.wall_s,
            "notices": list(self.notices),
            "stats": dict(self.stats),
            "results": results,
        }


def run_generate(
    config: GenerateConfig,
    emit: Callable[[Record], None],
    report: Report = quiet,
    *,
    notice: Callable[[str], None] = lambda line: None,
    on_text: Callable[[str], None] | None = None,
) -> GenerateReport:
    """Serve every item and pass its record to `emit`, in input order, as early as possible.

    `notice` takes lines that say what runs; `on_text` takes the text of a single sample while it
    grows. Raises UsageError, EnvironmentUnfit or NotEnoughMemory where nothing could start.
    """
    started_at, start = now(), perf_counter()
    loaded = load_model(config.model, report)
    sampling = resolve_sampling(config.sampling, loaded.generation_config)
    plan = make_plan(config, loaded)
    engine_config = fit(config.engine, plan.requests.values(), loaded)
    notices = [*loaded.notices]
    with ExitStack() as stack:
        engine = None
        progress = quiet if on_text else report  # a bar would draw over text that streams
        if plan.requests:
            engine = stack.enter_context(open_engine(loaded, engine_config, progress))
            notices = [*engine.notices]
        notices.append(f"sampling: {describe(sampling)}")
        for line in notices:
            notice(line)
        tally = serve(plan, config.items, engine, emit, progress, on_text)
        stats = {} if engine is None else _counters(engine)
    return GenerateReport(
        model=config.model,
        engine=engine_config,
        sampling=sampling,
        started_at=started_at,
        wall_s=perf_counter() - start,
        notices=tuple(notices),
        stats=stats,
        requests=len(config.items),
        resumed=plan.resumed,
        tally=tally,
    )


def load_model(options: ModelOptions, report: Report) -> LoadedModel:
    """Load the weights; heavy imports happen here."""
    from flexinfer.weights.load import load

    return load(options, report)


def open_engine(loaded: LoadedModel, config: EngineConfig, report: Report) -> Engine:
    """Build an engine over loaded weights."""
    from flexinfer.engine.engine import Engine

    return Engine(loaded, config, report)


def describe(sampling: SamplingParams) -> str:
    """Return the effective sampling values on one line."""
    values = asdict(sampling)
    del values["seed"]
    words = [f"{name} {list(v) if name == 'stop' else v}" for name, v in values.items()]
    return ("greedy, " if sampling.temperature == 0 else "") + ", ".join(words)


def _counters(engine: Engine) -> dict[str, float]:
    """Return the engine's counters; its lists of times are bench's business."""
    values = asdict(engine.stats)
    return {name: value for name, value in values.items() if not isinstance(value, list)}
