"""What is measured in one process: one back end over weights in one form, all its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import Failure, UsageError, failure_of
from flexinfer.tasks.bench.compare.side_by_side import form_of
from flexinfer.tasks.bench.config import BenchConfig
from flexinfer.tasks.bench.lanes.weights import options_of
from flexinfer.tasks.bench.measure.plan import blank_rows
from flexinfer.tasks.bench.measure.rig import Rig
from flexinfer.tasks.bench.measure.rows import Listener, measured_rows, prepare
from flexinfer.tasks.bench.result import BenchResult
from flexinfer.tasks.threads import own_threads

OF_FLEX = (
    "attention",
    "fa4_prefill",
    "prefill_kernel_options",
    "decode_kernel_options",
    "batch_invariant",
)
OF_PAGES = ("page_size", "kv_memory", "prefill_tokens", "cuda_graphs")
"""Settings of flex alone; and those that model.generate has no use for either."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One back end and what it is to measure; `blanks` are its rows, without figures, in order.

    `debug`: a traceback of what fails is shown.
    """

    backend: str
    options: ModelOptions
    engine: EngineConfig
    config: BenchConfig
    blanks: tuple[BenchResult, ...]
    notices: tuple[str, ...] = ()
    debug: bool = False

    @property
    def name(self) -> str:
        """The back end and the form of its weights."""
        return f"{self.backend} {form_of(self.blanks[0])}".strip()


def lanes_of(
    options: ModelOptions,
    engine: EngineConfig,
    config: BenchConfig,
    rig: Rig,
    debug: bool = False,
) -> list[Lane]:
    """Return the lanes of a run in order; raises UsageError for a sweep that cannot be.

    Where several back ends run side by side, one is not asked for what only another has: engine
    settings that mean nothing to it, an adapter merged where the module runs it beside its base.
    What is left out so is a notice.
    """
    name = rig.model_name(options.model)
    lanes = []
    for backend in config.backends:
        own, said = _own_settings(backend, engine) if len(config.backends) > 1 else (engine, ())
        forms = options_of(options, config.weights)
        if config.weights and backend != "flex":
            forms, merged = _unmerged(backend, forms)
            said += merged
        for form in forms:
            blanks = tuple(blank_rows(backend, name, form, own, config))
            lanes.append(
                Lane(
                    backend=backend,
                    options=form,
                    engine=own,
                    config=config,
                    blanks=blanks,
                    notices=said,
                    debug=debug,
                )
            )
    return lanes


def lane_rows(lane: Lane, listener: Listener, rig: Rig) -> Iterator[BenchResult]:
    """Load the weights, then yield the rows as they are finished; raises as loading does.

    A FlexinferError of one row among several is that row's `error`.
    """
    listener.notice(*lane.notices)
    job = prepare(lane.backend, lane.options, lane.engine, lane.config, listener.report, rig)
    if lane.config.tune:
        for line in rig.tune(job.checkpoint, listener.report):
            listener.notice(line)
    with own_threads(job.checkpoint.module) as threads:
        listener.notice(*threads)
        for row in measured_rows(job, listener, rig.clock):
            yield replace(row, notices=(*lane.notices, *threads, *row.notices))


def whole_rows(lane: Lane, listener: Listener, rig: Rig) -> Iterator[BenchResult]:
    """Yield a row for each that was asked for: what ends the lane is the reason of the rest."""
    done = 0
    try:
        for row in lane_rows(lane, listener, rig):
            done += 1
            yield row
    except Exception as error:
        listener.failed(error)
        yield from failed_rows(lane, done, failure_of(error))


def failed_rows(lane: Lane, done: int, failure: Failure) -> list[BenchResult]:
    """Return the rows after the first `done`, with the reason why they have no figures."""
    return [
        replace(blank, error=failure.line, error_code=failure.exit_code, notices=lane.notices)
        for blank in lane.blanks[done:]
    ]


def _unmerged(
    backend: str, forms: list[ModelOptions]
) -> tuple[list[ModelOptions], tuple[str, ...]]:
    """Return the forms without merged ones, and say so; raises UsageError where none is left."""
    left = [form for form in forms if form.lora_mode != "merged"]
    if len(left) == len(forms):
        return forms, ()
    why = f"{backend} runs an adapter beside its base"
    if not left:
        raise UsageError(
            f"--weights leaves nothing to measure: {why}, never merged",
            hint="add runtime, or another form, to --weights",
        )
    return left, (f"{backend}: merged weights left out, {why}",)


def _own_settings(backend: str, engine: EngineConfig) -> tuple[EngineConfig, tuple[str, ...]]:
    """Return an engine's settings without those that mean nothing to a back end, and say which."""
    idle = {"flex": (), "hf": (*OF_FLEX, *OF_PAGES)}.get(backend, OF_FLEX)
    default = EngineConfig()
    given = [name for name in idle if vars(engine)[name] != vars(default)[name]]
    if not given:
        return engine, ()
    flags = ", ".join("--" + name.replace("_", "-") for name in given)
    said = f"{backend}: {flags} left out, {'they mean' if len(given) > 1 else 'it means'} nothing"
    return replace(engine, **{name: vars(default)[name] for name in given}), (f"{said} to it",)
