"""A run as charts: reward, length, time, the gap between rollout and trainer, speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flexinfer.tasks.charts.chart import Bars, Curves, Page, Series, Table
from flexinfer.tasks.charts.write import write_report
from flexinfer.tasks.grpo.records.interval import margin
from flexinfer.tasks.grpo.records.record import DEFINITIONS, GrpoReport, StepRecord
from flexinfer.tasks.grpo.records.step_row import rows

X = "optimizer step"
NEAR = 4.0
"""The limit on lengths is drawn where it is no further from them than this factor."""


def write_page(path: str | Path, report: GrpoReport) -> None:
    """Write the charts of a run as `.html` or `.png`; raises as charts.write.write_report."""
    write_report(str(path), page(report))


def page(report: GrpoReport) -> Page:
    """Return the page of a run, finished or not."""
    return Page(
        title=f"train-grpo: {report.model_name}",
        facts=_facts(report),
        charts=_charts(report) if report.steps else [],
        tables=[Table(title="Steps", rows=rows(report.steps))],
        notes=[*report.notices, *(f"{name}: {text}" for name, text in DEFINITIONS.items())],
    )


def _facts(report: GrpoReport) -> list[str]:
    """Return what ran, how far it came, and what became of the accuracy."""
    device = report.environment.get("device", "unknown device")
    state = ", interrupted" if report.interrupted else ""
    done = f"{len(report.steps)} of {report.max_steps} steps{state}"
    before, after = report.accuracy_before, report.accuracy_after
    lines = [
        f"rollout {report.backend}, {report.num_generations} generations a prompt, {done}",
        f"{device}, {report.started_at}",
    ]
    if before is not None and after is not None:
        lines.append(
            f"accuracy on {report.held_out} held-out problems: {_share(report, before)} before, "
            f"{_share(report, after)} after (± 95 %)"
        )
    return lines


def _share(report: GrpoReport, share: float) -> str:
    """Return an accuracy with its interval."""
    return f"{share:.1%} ± {100 * margin(share, report.held_out):.1f}"


def _charts(report: GrpoReport) -> list[Curves | Bars]:
    """Return the charts that there are figures for."""
    steps = report.steps
    found = [_reward(steps), *_by_function(steps), _length(report), *_clipped(steps)]
    return [*found, _time(steps), _gap(steps), _speed(steps), *_kl(steps)]


def _curve(label: str, figure: Callable[[StepRecord], float | None],
           steps: Sequence[StepRecord]) -> Series:  # fmt: skip
    """Return one figure of every step."""
    return Series(label=label, values=[figure(step) for step in steps])


def _x(steps: Sequence[StepRecord]) -> list[int]:
    """Return the numbers of the steps."""
    return [step.step for step in steps]


def _reward(steps: Sequence[StepRecord]) -> Curves:
    """Return the mean reward in the band of its spread within groups."""
    mean = Series(
        label="mean, ± standard deviation over the step's completions",
        values=[step.reward for step in steps],
        low=[step.reward - step.reward_std for step in steps],
        high=[step.reward + step.reward_std for step in steps],
    )
    return Curves(title="Reward", unit="reward", x=_x(steps), x_label=X, series=[mean])


def _by_function(steps: Sequence[StepRecord]) -> list[Curves]:
    """Return the reward functions one by one, where there are several."""
    names = list(dict.fromkeys(name for step in steps for name in step.rewards))
    series = [
        Series(label=name, values=[step.rewards.get(name) for step in steps]) for name in names
    ]
    title = "Reward by function"
    chart = Curves(title=title, unit="mean reward", x=_x(steps), x_label=X, series=series)
    return [chart] if len(names) > 1 else []


def _length(report: GrpoReport) -> Curves:
    """Return the lengths of the completions, and their limit where it is near."""
    steps, most = report.steps, report.max_completion_length
    near = most <= NEAR * max(step.mean_length for step in steps)
    return Curves(
        title="Completion length",
        unit="tokens",
        x=_x(steps),
        x_label=X,
        series=[_curve("mean of a step", lambda step: step.mean_length, steps)],
        whole=True,
        limit=(float(most), f"--max-completion-length {most}") if near else None,
    )


def _clipped(steps: Sequence[StepRecord]) -> list[Curves]:
    """Return how many completions the limit ended, where it ended any."""
    share = _curve("ended by the length limit", lambda step: 100 * step.clipped_fraction, steps)
    title, unit = "Clipped completions", "% of a step"
    chart = Curves(title=title, unit=unit, x=_x(steps), x_label=X, series=[share], whole=True)
    return [chart] if any(step.clipped_fraction for step in steps) else []


def _time(steps: Sequence[StepRecord]) -> Curves:
    """Return the seconds of each step, part upon part."""
    parts = [
        _curve("generate", lambda step: step.generate_s, steps),
        _curve("refresh", lambda step: step.refresh_s, steps),
        _curve("train", lambda step: step.train_s, steps),
    ]
    title = "Time of a step"
    return Curves(title=title, unit="seconds", x=_x(steps), x_label=X, series=parts, stacked=True)


def _gap(steps: Sequence[StepRecord]) -> Curves:
    """Return how far the rollout's log-probabilities are from the trainer's."""
    return Curves(
        title="Rollout against trainer",
        unit="|log-probability gap|",
        x=_x(steps),
        x_label=X,
        series=[
            _curve("mean over tokens", lambda step: step.gap_mean, steps),
            _curve("largest", lambda step: step.gap_max, steps),
        ],
        log=True,
    )


def _speed(steps: Sequence[StepRecord]) -> Curves:
    """Return the speed of generation."""
    rate = _curve("completion tokens over generate seconds", lambda step: step.tokens_per_s, steps)
    title, unit = "Generation speed", "tokens / s"
    return Curves(title=title, unit=unit, x=_x(steps), x_label=X, series=[rate], whole=True)


def _kl(steps: Sequence[StepRecord]) -> list[Curves]:
    """Return the divergence from the base model, where the loss has such a term."""
    away = _curve("mean over tokens", lambda step: step.kl, steps)
    title = "KL from the base model"
    chart = Curves(title=title, unit="KL", x=_x(steps), x_label=X, series=[away], whole=True)
    return [chart] if any(step.kl is not None for step in steps) else []
