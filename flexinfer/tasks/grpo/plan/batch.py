"""How prompts, completions, forward passes and optimizer steps of a run go together."""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.tasks.grpo.config import GrpoConfig


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Counts over all processes; tokens are at most, the longest prompt and completion throughout.

    A step generates once and learns from it in `forward_passes` of each process, of
    `completions_per_pass`; then comes one update.
    """

    processes: int
    optimizer_steps: int
    prompts_per_step: int
    generations_per_prompt: int
    completions_per_step: int
    forward_passes: int
    completions_per_pass: int
    tokens_per_pass: int
    completion_tokens_per_step: int
    completions: int
    completion_tokens: int


def batch_plan(config: GrpoConfig, longest_prompt: int, processes: int = 1) -> BatchPlan:
    """Count for a filled config (see GrpoConfig.filled); `longest_prompt` is in tokens."""
    steps, group = chosen(config.max_steps), chosen(config.num_generations)
    size, passes = chosen(config.per_device_batch_size), chosen(config.gradient_accumulation_steps)
    new = chosen(config.max_completion_length)
    completions = size * passes * processes
    return BatchPlan(
        processes=processes,
        optimizer_steps=steps,
        prompts_per_step=completions // group,
        generations_per_prompt=group,
        completions_per_step=completions,
        forward_passes=passes,
        completions_per_pass=size,
        tokens_per_pass=size * (longest_prompt + new),
        completion_tokens_per_step=completions * new,
        completions=completions * steps,
        completion_tokens=completions * new * steps,
    )


def chosen(value: int | None) -> int:
    """Return a setting of a filled config."""
    assert value is not None, "a choice is still open"
    return value
