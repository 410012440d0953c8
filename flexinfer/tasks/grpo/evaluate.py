"""How many held-out problems the policy answers right, greedily."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flexinfer.config import SamplingParams
from flexinfer.engine.requests.outputs import Request, RequestOutput
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.problems.problem_set import Encode
from flexinfer.tasks.grpo.rewards.choose import choose_rewards
from flexinfer.tasks.grpo.rollout import sample
from flexinfer.tasks.grpo.setup import Parts
from flexinfer.tasks.threads import own_threads


def scored(
    parts: Parts, config: GrpoConfig, when: str, notice: Callable[[str], None]
) -> float | None:
    """Score the policy as it is now, and say it; None where none is scored."""
    rows, rollout = parts.problems.held_out, parts.rollout
    if not rows:
        return None
    assert config.max_completion_length is not None
    rollout.backend.refresh()
    doing = f"scoring held-out {parts.problems.name}"
    with own_threads(parts.loaded.module), parts.stages.told_as(doing, len(rows)):
        share = accuracy(rollout.generate, parts.encode, rows, config.max_completion_length)
    notice(f"held-out {parts.problems.name} {when} training: {share:.1%} of {len(rows)} right")
    return share


def accuracy(
    generate: Callable[[Sequence[Request]], list[RequestOutput]],
    encode: Encode,
    rows: Sequence[Mapping[str, Any]],
    max_new_tokens: int,
) -> float:
    """Return the fraction of `rows` that `generate` answers exactly; raises RequestError."""
    greedy = SamplingParams(max_new_tokens=max_new_tokens)
    requests = [
        Request(prompt_token_ids=tuple(encode(row["prompt"])), sampling=greedy) for row in rows
    ]
    texts = [sample(output).text for output in generate(requests)]
    (exact,) = choose_rewards(["exact-answer"])
    scores: list[float | None] = exact(
        prompts=[row["prompt"] for row in rows],
        completions=texts,
        answer=[row["answer"] for row in rows],
    )
    right = sum(score == 1 for score in scores)
    return right / len(rows)
