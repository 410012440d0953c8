"""What is left on stdout when a run is over: a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from flexinfer.tasks.grpo.records.interval import margin
from flexinfer.tasks.grpo.records.record import GrpoReport


def as_text(report: GrpoReport) -> str:
    """Return the run in lines: accuracy, reward, medians of a step, and where the adapter is."""
    count = "1 step" if len(report.steps) == 1 else f"{len(report.steps)} steps"
    lines = [f"{report.model_name}: {count} in {report.train_wall_s:.1f} s"]
    if report.accuracy_before is not None and report.accuracy_after is not None:
        lines.append(_accuracy(report.accuracy_before, report.accuracy_after, report.held_out))
    if report.steps:
        lines += _steps(report)
    if report.adapter_path is not None:
        lines.append(f"adapter: {report.adapter_path}")
    return "\n".join(lines) + "\n"


def _accuracy(before: float, after: float, count: int) -> str:
    """Return what became of the accuracy, and how far both shares of `count` may be off."""
    within = 100 * max(margin(share, count) for share in (before, after))
    return (
        f"held-out answers right: {before:.1%} -> {after:.1%} of {count} "
        f"({100 * (after - before):+.1f} points; each +-{within:.1f} at 95%)"
    )


def _steps(report: GrpoReport) -> list[str]:
    """Return what a step took, and how the reward and the gap went."""
    steps = report.steps
    generate, refresh, train = (
        median(getattr(step, name) for step in steps)
        for name in ("generate_s", "refresh_s", "train_s")
    )
    speed = median(step.tokens_per_s for step in steps)
    return [
        _reward([step.reward for step in steps]),
        f"rollout against trainer: largest gap of a token {max(s.gap_max for s in steps):.1e}, "
        f"ratios {min(s.ratio_min for s in steps):.4f} to {max(s.ratio_max for s in steps):.4f}",
        f"{'median' if len(steps) > 1 else 'the'} step: generate {generate:.2f} s, "
        f"refresh {refresh:.3f} s, train {train:.2f} s; rollout {speed:,.0f} tok/s",
    ]


def _reward(rewards: Sequence[float]) -> str:
    """Return how the reward went: the mean of the first tenth of the steps, and of the last."""
    if len(rewards) == 1:
        return f"reward: {rewards[0]:.3f}"
    tenth = max(1, len(rewards) // 10)
    first, last = sum(rewards[:tenth]) / tenth, sum(rewards[-tenth:]) / tenth
    which = "first and last step" if tenth == 1 else f"first and last {tenth} of the steps"
    return f"reward: {first:.3f} -> {last:.3f} ({which})"
