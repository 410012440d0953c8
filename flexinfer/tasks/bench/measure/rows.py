"""One row per batch size: weights loaded once, an engine opened, measured and closed for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from traceback import print_exception

from flexinfer.backends.base.protocol import Backend, Checkpoint
from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.errors import FlexinferError, UsageError, failure_of, one_line
from flexinfer.tasks.bench.compare.agreement import HELD
from flexinfer.tasks.bench.compare.gate import Gate
from flexinfer.tasks.bench.config import BenchConfig
from flexinfer.tasks.bench.measure.figures import figures, remarks, roofline_figures
from flexinfer.tasks.bench.measure.memory import peak, reset_peak
from flexinfer.tasks.bench.measure.plan import blank_rows, sequence_length
from flexinfer.tasks.bench.measure.probe import Probed, check_output
from flexinfer.tasks.bench.measure.progress import Once, Progress
from flexinfer.tasks.bench.measure.rig import Profiler, Rig, profiled
from flexinfer.tasks.bench.measure.rounds import Clock, measure, refresh_s, requests_for
from flexinfer.tasks.bench.profile.result import Profile, Subject
from flexinfer.tasks.bench.result import BenchResult
from flexinfer.tasks.roofline import StepCost
from flexinfer.tasks.workload import workload

AFTERWARDS = (
    "roofline: bytes by the shapes of the config, copy bandwidth measured once its process "
    "had ended"
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One row to fill: it without figures, its workload and prompts, the engine to measure."""

    blank: BenchResult
    config: BenchConfig
    prompts: Sequence[tuple[int, ...]]
    engine: EngineConfig


def heard(debug: bool) -> Callable[[Exception], None]:
    """Return who hears of an error that a row tells: for --debug stderr, with its traceback."""
    return print_exception if debug else lambda error: None


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Who hears of the run: progress, notices, each once, and what becomes a row's error."""

    report: Report
    notice: Once
    failed: Callable[[Exception], None] = field(default_factory=lambda: heard(False))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A loaded checkpoint, and what to measure over it.

    `bandwidth_after` measures the device of a back end that is another process, once it is closed.
    """

    checkpoint: Checkpoint
    plans: Sequence[Plan]
    cost: StepCost | None = None
    bandwidth: float | None = None
    bandwidth_after: Callable[[], float | None] | None = None
    profiler: Profiler = profiled


def prepare(
    name: str,
    options: ModelOptions,
    engine_config: EngineConfig,
    config: BenchConfig,
    report: Report,
    rig: Rig,
) -> Job:
    """Load back end `name`'s weights, draw the prompts, measure the device; raises as loading."""
    checkpoint = rig.load(name, options, report)
    model_name, backend = checkpoint.model_name, checkpoint.backend_name
    return Job(
        checkpoint=checkpoint,
        plans=[
            _plan(blank, checkpoint.vocab_size, engine_config, work)
            for work in config.workloads
            for blank in blank_rows(backend, model_name, options, engine_config, work)
        ],
        cost=rig.cost(checkpoint),
        bandwidth=rig.bandwidth(checkpoint.device),
        bandwidth_after=cache(rig.bandwidth_apart) if checkpoint.device == "elsewhere" else None,
        profiler=rig.profiler,
    )


def _plan(blank: BenchResult, vocab: int, given: EngineConfig, config: BenchConfig) -> Plan:
    """Draw the prompts of a row and bound its sequences (see check_lengths)."""
    prompts = workload(blank.n_prompts, vocab, config.lengths, config.seed)
    length = sequence_length(given, _needed(prompts, config))
    size = blank.max_batch_size
    return Plan(
        blank=replace(blank, max_seq_length=length),
        config=config,
        prompts=prompts,
        engine=replace(given, max_batch_size=size, max_seq_length=length),
    )


def measured_rows(job: Job, listener: Listener, clock: Clock) -> Iterator[BenchResult]:
    """Yield the finished rows; an error of one is a row in a sweep, and raised if it is alone."""
    for plan in job.plans:
        try:
            yield _measured(job, plan, listener, clock)
        except FlexinferError as error:
            if len(job.plans) == 1:
                raise
            listener.failed(error)
            failure = failure_of(error)
            yield replace(plan.blank, error=failure.line, error_code=failure.exit_code)


def _measured(job: Job, plan: Plan, listener: Listener, clock: Clock) -> BenchResult:
    """Open one back end, say what runs, measure it, close it, and fill its row."""
    config, device, size = plan.config, job.checkpoint.device, plan.engine.max_batch_size
    progress, start = Progress(listener.report), clock()
    with closing(job.checkpoint.open(plan.engine, progress)) as backend:
        open_s = clock() - start
        said = (*backend.notices, *_unfilled(plan.blank))
        listener.notice(*said)
        _check_length(backend, _needed(plan.prompts, config))
        blank = replace(_probed(job, plan, backend, progress, clock), open_s=open_s)
        said = (*said, _said_of(blank.gate, config))
        if blank.gate is not None and blank.gate.problem is not None:
            return replace(blank, notices=said, error=blank.gate.problem, error_code=1)
        reset_peak(device)
        measured = measure(backend, config, plan.prompts, progress, clock)
        memory, found = peak(device), figures(measured)
        late = tuple(line for line in backend.notices if line not in said)
        refresh = None if blank.lora_adapter is None else refresh_s(backend)
        subject = Subject(
            requests=requests_for(config, plan.prompts, config.max_new_tokens),
            wall_s=found.get("median_wall_s"),
            cost=job.cost,
            bandwidth=job.bandwidth,
            trace_path=config.trace_path,
        )
        profile, missed = _profile(job, backend, subject, config, progress)
    bandwidth, source = _bandwidth(job)
    roofline = roofline_figures(measured, job.cost, bandwidth, size)
    late = (*late, *remarks(measured), *missed, *source)
    listener.notice(*late)
    return replace(
        blank,
        **found,
        **roofline,
        profile=profile,
        peak_memory_gb=memory.allocated_gb,
        peak_reserved_gb=memory.reserved_gb,
        refresh_s=refresh,
        notices=(*said, *late),
    )


def _probed(
    job: Job, plan: Plan, backend: Backend, progress: Progress, clock: Clock
) -> BenchResult:
    """Check the engine's output, and return the row with what is known before it is measured.

    Without a module its tokens are kept for others' beside it.
    """
    lonely = job.checkpoint.module is None and len(plan.config.backends) == 1
    found, gate_s = Probed(), None
    if plan.config.gate and not lonely:
        progress.enter("output gate")
        size, start = plan.engine.max_batch_size, clock()
        found = check_output(backend, job.checkpoint.module, plan.config, plan.prompts, size)
        gate_s = clock() - start
    return replace(
        plan.blank,
        max_seq_length=backend.max_seq_length,
        lora_mode=plan.blank.lora_mode if backend.adapter is None else backend.adapter[1],
        gate=found.gate,
        probe=found.samples,
        gate_s=gate_s,
        load_s=job.checkpoint.load_s,
    )


def _bandwidth(job: Job) -> tuple[float | None, tuple[str, ...]]:
    """Return the device's copy bandwidth, and what to say of one that is measured only now."""
    if job.bandwidth_after is None:
        return job.bandwidth, ()
    try:
        found = job.bandwidth_after()
    except Exception as error:
        return None, (f"no roofline: the copy bandwidth could not be measured: {one_line(error)}",)
    return found, () if found is None else (AFTERWARDS,)


def _profile(
    job: Job, backend: Backend, subject: Subject, config: BenchConfig, progress: Progress
) -> tuple[Profile | None, tuple[str, ...]]:
    """Profile what was measured where that is asked for, or say why not: the figures stand."""
    if not config.profile:
        return None, ()
    progress.enter("profile")
    try:
        return job.profiler(backend, subject), ()
    except Exception as error:
        return None, (f"no profile: {str(error) or type(error).__name__}",)


def _said_of(gate: Gate | None, config: BenchConfig) -> str:
    """Return the notice on the output gate."""
    if gate is not None:
        return gate.summary
    if config.gate and len(config.backends) > 1:
        return HELD
    why = "there is no module to hold the output against" if config.gate else "--no-gate"
    return f"output gate: off ({why}); the figures are of unchecked output"


def _check_length(backend: Backend, needed: int) -> None:
    """Raise UsageError where the model itself bounds sequences below what the workload needs."""
    if backend.max_seq_length < needed:
        raise UsageError(
            f"the model serves {backend.max_seq_length} tokens, this workload takes {needed}",
            hint="lower --max-new-tokens or --prompt-length",
        )


def _unfilled(row: BenchResult) -> tuple[str, ...]:
    """Say that a batch size is never reached, so that nobody reads the row as that batch."""
    rows = row.n_prompts * row.n_samples
    if rows >= row.max_batch_size:
        return ()
    return (f"--max-batch-size {row.max_batch_size}: only {rows} sequences ever run",)


def _needed(prompts: Sequence[tuple[int, ...]], config: BenchConfig) -> int:
    """Return the tokens of the longest sequence of the workload."""
    return max(map(len, prompts)) + config.max_new_tokens
