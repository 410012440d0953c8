"""Made-up steps of a GRPO run."""

from __future__ import annotations

from typing import Any

from flexinfer.tasks.grpo.records.record import GrpoReport, StepRecord


def made_step(step: int, **changes: Any) -> StepRecord:
    """Return a step whose figures tell its number and each other apart."""
    values: dict[str, Any] = {
        "step": step,
        "policy_version": step - 1,
        "reward": 0.5 + step / 1000,
        "reward_std": 0.25,
        "rewards": {"exact-answer": 0.5, "length": 0.125},
        "loss": 0.0625,
        "kl": None,
        "gap_mean": 1.5e-6,
        "gap_max": 2.5e-5,
        "ratio_min": 0.99,
        "ratio_mean": 1.0,
        "ratio_max": 1.01,
        "mean_length": 6.25,
        "clipped_fraction": 0.125,
        "tokens": 4096,
        "generate_s": 2.25,
        "refresh_s": 0.03,
        "train_s": 3.5,
        "step_s": 5.78,
        "tokens_per_s": 1820.4,
        "memory_gb": 2.0,
        "peak_memory_gb": 3.0,
        "grad_norm": 0.3,
        "learning_rate": 1e-5,
    }
    return StepRecord(**values | changes)


def made_report(*steps: StepRecord, **changes: Any) -> GrpoReport:
    """Return a report of those steps."""
    values: dict[str, Any] = {
        "config": {"grpo": {"dataset": "arithmetic"}},
        "environment": {"device": "fake"},
        "started_at": "2026-01-01T00:00:00+00:00",
        "backend": "flex",
        "model_name": "tiny-gemma4",
        "train_wall_s": 12.5,
        "peak_memory_gb": 3.0,
        "max_prompt_length": None,
        "max_completion_length": 8,
        "num_generations": 4,
        "max_steps": 200,
        "steps": steps,
    }
    return GrpoReport(**values | changes)
