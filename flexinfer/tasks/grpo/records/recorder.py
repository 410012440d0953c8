"""From TRL's log of a step to its record: the callback that every step passes through."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainerCallback

from flexinfer.errors import FlexinferError
from flexinfer.tasks.grpo.processes import all_samples, all_times
from flexinfer.tasks.grpo.records.log import Log, completions
from flexinfer.tasks.grpo.records.record import StepRecord
from flexinfer.tasks.grpo.rollout import Rollout
from flexinfer.tasks.grpo.training.correction import GAP, RATIO
from flexinfer.tasks.grpo.training.trainer import OnPolicyGRPOTrainer

GB = 1e9


class Recorder(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Makes a StepRecord of each optimizer step of `trainer`, and logs it with its completions."""

    def __init__(self, trainer: OnPolicyGRPOTrainer, rollout: Rollout, log: Log) -> None:
        """Watch a trainer and what it rolls out."""
        self._trainer, self._rollout, self._log = trainer, rollout, log
        self._started = self._step_s = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop it, once the device is done."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._step_s = time.perf_counter() - self._started

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **kwargs: Any
    ) -> None:
        """Take a step's log; the summary at the end of training is none."""
        if "reward" in logs:
            step = state.global_step
            record = self._record(step, logs)
            samples = all_samples(self._rollout.samples)
            version = record.policy_version
            self._log.take(record, completions(step, version, self._trainer._logs, samples))

    def _record(self, step: int, logs: Mapping[str, float]) -> StepRecord:
        """Return the record of a step; raises FlexinferError where nothing was measured."""
        if f"{GAP}/mean" not in logs:
            raise FlexinferError(f"step {step} trained on no token: every completion was masked")
        times = all_times(self._rollout.take_times())
        train_s = self._step_s - times.refresh_s - times.generate_s
        return StepRecord(
            step=step,
            policy_version=self._rollout.version,
            reward=_number(logs["reward"]),
            reward_std=_number(logs["reward_std"]),
            rewards=_by_name(logs),
            loss=logs["loss"],
            kl=logs.get("kl"),
            gap_mean=_number(logs[f"{GAP}/mean"]),
            gap_max=_number(logs[f"{GAP}/max"]),
            ratio_min=_number(logs[f"{RATIO}/min"]),
            ratio_mean=_number(logs[f"{RATIO}/mean"]),
            ratio_max=_number(logs[f"{RATIO}/max"]),
            mean_length=logs["completions/mean_length"],
            clipped_fraction=logs["completions/clipped_ratio"],
            tokens=times.tokens,
            generate_s=times.generate_s,
            refresh_s=times.refresh_s,
            train_s=train_s,
            step_s=self._step_s,
            tokens_per_s=times.tokens / times.generate_s if times.generate_s else 0.0,
            memory_gb=memory_gb(),
            peak_memory_gb=peak_memory_gb(),
            grad_norm=logs.get("grad_norm"),
            learning_rate=logs["learning_rate"],
        )


def _number(logged: float | None) -> float:
    """Return what TRL logged; NaN for its None, which is a mean of nothing or beyond fp32."""
    return math.nan if logged is None else logged


def _by_name(logs: Mapping[str, float]) -> dict[str, float]:
    """Return the mean of each reward function by its name."""
    return {
        key.removeprefix("rewards/").removesuffix("/mean"): _number(value)
        for key, value in logs.items()
        if key.startswith("rewards/") and key.endswith("/mean")
    }


def memory_gb() -> float:
    """Return the device memory allocated now, in 10^9 bytes; 0 without a CUDA device."""
    return torch.cuda.memory_allocated() / GB if torch.cuda.is_available() else 0.0


def peak_memory_gb() -> float:
    """Return the most device memory allocated so far, in 10^9 bytes; 0 without a CUDA device."""
    return torch.cuda.max_memory_allocated() / GB if torch.cuda.is_available() else 0.0
