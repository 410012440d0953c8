"""What a run writes as it goes: rollouts and statistics, whole after every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flexinfer.engine.requests.outputs import Completion
from flexinfer.tasks.grpo.records.record import GrpoReport, StepRecord
from flexinfer.tasks.grpo.records.rollouts_file import RolloutLine, RolloutsFile
from flexinfer.tasks.grpo.records.stats_file import write_stats


class Log:
    """Takes the record of each step; `report` is the run so far.

    Without a file of `rollouts` nothing is written: another process of the run does that.
    """

    def __init__(
        self,
        head: GrpoReport,
        rollouts: RolloutsFile | None,
        stats_path: Path,
        on_step: Callable[[StepRecord], None],
        notice: Callable[[str], None],
    ) -> None:
        """Go on from the steps of `head`."""
        self.report = head
        self._rollouts, self._stats_path = rollouts, stats_path
        self._on_step, self._notice = on_step, notice

    def take(self, record: StepRecord, completions: Sequence[RolloutLine]) -> None:
        """Write a step and what it learned from; raises WriteFailed."""
        if self._rollouts is not None:
            self._rollouts.write(completions)
        self.update(
            steps=(*self.report.steps, record),
            peak_memory_gb=max(self.report.peak_memory_gb, record.peak_memory_gb),
            train_wall_s=self.report.train_wall_s + record.step_s,
        )
        self._on_step(record)

    def hear(self, line: str) -> None:
        """Tell what became known on the way, and write it; raises WriteFailed."""
        self._notice(line)
        self.update(notices=(*self.report.notices, line))

    def update(self, **values: Any) -> None:
        """Put values into the report, and write it; raises WriteFailed."""
        self.report = replace(self.report, **values)
        if self._rollouts is not None:
            write_stats(self._stats_path, self.report)


def completions(
    step: int, version: int, logs: Mapping[str, Any], samples: Sequence[Completion]
) -> list[RolloutLine]:
    """Return the completions of the last rollout from what TRL keeps to log them.

    `samples` are the back end's own of them.
    """
    return [
        RolloutLine(
            step=step,
            policy_version=version,
            prompt=prompt,
            completion=_text(text),
            token_ids=sample.token_ids,
            logprobs=sample.policy_logprobs,
            rewards={name: values[number] for name, values in logs["rewards"].items()},
            advantage=advantage,
        )
        for number, (prompt, text, advantage, sample) in enumerate(
            zip(logs["prompt"], logs["completion"], logs["advantages"], samples, strict=True)
        )
    ]


def _text(completion: str | Sequence[Mapping[str, str]]) -> str:
    """Return the text of a completion, the turns of a chat one after the other."""
    if isinstance(completion, str):
        return completion
    return "".join(message["content"] for message in completion)
