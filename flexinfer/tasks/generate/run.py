"""`generate`: from prompts to texts; settings in, records out in input order, no terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from flexinfer.tasks.generate.input import Item
from flexinfer.tasks.generate.made_with import made_with
from flexinfer.tasks.generate.records import Record, refusals
from flexinfer.tasks.generate.requests import GenerateConfig, Plan, fit, make_plan
from flexinfer.tasks.generate.resume import check_model, check_weights
from flexinfer.tasks.generate.room import room_of
from flexinfer.tasks.generate.serve import Tally, serve
from flexinfer.tasks.threads import own_threads

if TYPE_CHECKING:
    from flexinfer.engine.engine import Engine
    from flexinfer.weights.load import LoadedModel


@dataclass(frozen=True, kw_only=True)
class GenerateReport:
    """What became of the requests; `engine` and `sampling` are the effective values.

    `resumed` counts the items whose records an earlier run wrote. `tally.ended_by` is what cut the
    work short, for whoever reads the report to raise. Seconds of wall clock: `load_s` of weights
    and engine, `compile_s` of compiling and capturing decode graphs while requests were served,
    `generate_s` of serving them without that, and `wall_s` of all three.
    """

    model: ModelOptions
    engine: EngineConfig
    sampling: SamplingParams
    started_at: str
    load_s: float
    compile_s: float
    generate_s: float
    notices: tuple[str, ...]
    stats: Mapping[str, Any]
    requests: int
    resumed: int
    tally: Tally

    @property
    def wall_s(self) -> float:
        """Seconds of wall clock from before loading to the last record."""
        return self.load_s + self.compile_s + self.generate_s

    @property
    def summary(self) -> str:
        """One line: how many requests, how many tokens, how fast, and what came before that."""
        parts = [f"{self.tally.done} of {self.requests} requests done"]
        parts += [f"{self.tally.failed} failed"] if self.tally.failed else []
        parts += [f"{self.resumed} from an earlier run"] if self.resumed else []
        tokens, seconds = self.tally.new_tokens, self.generate_s
        if tokens:
            speed = f"{tokens} new tokens in {seconds:.1f} s ({tokens / seconds:.1f} a second)"
            before = [f"{self.load_s:.1f} s of loading"]
            before += [f"{self.compile_s:.1f} s of compiling"] if self.compile_s else []
            return f"{', '.join(parts)}; {speed}, beside {' and '.join(before)}"
        return ", ".join(parts)

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
            "load_s": self.load_s,
            "compile_s": self.compile_s,
            "generate_s": self.generate_s,
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
    check_model(config.finished, model_name(config.model.model))
    refused = refusals(config.items)
    loaded = load_model(config.model, report) if len(refused) < len(config.items) else None
    sampling = resolve_sampling(config.sampling, loaded.generation_config if loaded else {})
    plan = make_plan(config, loaded) if loaded else Plan(ready=refused)
    engine_config = fit(config.engine, plan.requests.values(), loaded) if loaded else config.engine
    progress = quiet if on_text else report  # a bar would draw over text that streams
    with ExitStack() as stack:
        engine, threads = None, stack.enter_context(own_threads(loaded.module if loaded else None))
        if loaded and plan.requests:
            engine = stack.enter_context(open_engine(loaded, engine_config, progress))
        weights = made_with(loaded, engine) if loaded else {}
        check_weights(config.finished, weights)
        room = room_of(config, plan, engine_config.max_seq_length, config.model.model)
        echo = _echo(sampling, config.engine.seed, config.items)
        notices = (*_notices(loaded, engine), *threads, *room.before(), echo)
        for line in notices:
            notice(line)
        served, compiled = perf_counter(), _compile_s(engine)
        tally = serve(plan, config.items, engine, weights, emit, progress, on_text)
        served_s, compile_s = perf_counter() - served, _compile_s(engine) - compiled
    late = room.after(tally.no_room)
    for line in late:
        notice(line)
    return GenerateReport(
        model=config.model,
        engine=engine_config,
        sampling=sampling,
        started_at=started_at,
        load_s=served - start,
        compile_s=compile_s,
        generate_s=served_s - compile_s,
        notices=(*notices, *late),
        stats={} if engine is None else _counters(engine),
        requests=len(config.items),
        resumed=plan.resumed,
        tally=tally,
    )


def model_name(model: str) -> str:
    """Return the name under which records keep what `--model` says; raises UsageError."""
    from flexinfer.weights.names import resolve

    return resolve(model).name


def load_model(options: ModelOptions, report: Report) -> LoadedModel:
    """Load the weights; heavy imports happen here."""
    from flexinfer.weights.load import load

    return load(options, report)


def open_engine(loaded: LoadedModel, config: EngineConfig, report: Report) -> Engine:
    """Build an engine over loaded weights."""
    from flexinfer.engine.engine import Engine

    return Engine(loaded, config, report)


def _echo(sampling: SamplingParams, seed: int, items: Sequence[Item]) -> str:
    """Return the notice on sampling, which tells whether lines bring values of their own."""
    own = sum(bool(item.sampling) for item in items)
    verb = "overrides" if own == 1 else "override"
    note = f" ({own} of {len(items)} lines {verb} some)" if own else ""
    return f"sampling: {describe(sampling, seed)}{note}"


def describe(sampling: SamplingParams, seed: int) -> str:
    """Return on one line the sampling values that change anything, with the `seed` of a run."""
    greedy = sampling.temperature == 0
    words = ["greedy" if greedy else f"temperature {_number(sampling.temperature)}"]
    neutral = SamplingParams()
    for name in ("top_p", "top_k", "min_p", "repetition_penalty"):
        if (value := getattr(sampling, name)) != getattr(neutral, name):
            said = name.replace("_", " " if name == "repetition_penalty" else "-")
            words.append(f"{said} {_number(value)}")
    words += [] if greedy else [f"seed {seed}"]
    words += [f"stop {text!r}" for text in sampling.stop]
    words += ["EOS ignored"] if sampling.ignore_eos else []
    words += [f"{sampling.n} samples of each prompt"] if sampling.n > 1 else []
    words += ["logprobs"] if sampling.logprobs else []
    limit = sampling.max_new_tokens
    return ", ".join([*words, f"up to {limit} new token{'s' * (limit != 1)}"])


def _number(value: float) -> str:
    """Return a number without a fraction of zero."""
    return str(value).removesuffix(".0")


def _notices(loaded: LoadedModel | None, engine: Engine | None) -> tuple[str, ...]:
    """Return what runs and why: the engine's words, else the model's, else that none is needed."""
    if engine is not None:
        return engine.notices
    return loaded.notices if loaded else ("no model is loaded: there is nothing to ask it",)


def _counters(engine: Engine) -> dict[str, float]:
    """Return the engine's counters; its lists of times are bench's business."""
    values = asdict(engine.stats)
    return {name: value for name, value in values.items() if not isinstance(value, list)}


def _compile_s(engine: Engine | None) -> float:
    """Return the seconds that an engine has spent so far on compiling and capturing."""
    return 0.0 if engine is None else engine.stats.compile_s + engine.stats.capture_s
