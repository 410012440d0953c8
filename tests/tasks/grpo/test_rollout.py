"""A sample's seed is its own: no step and no place in a batch repeats another's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flexinfer.engine.requests.outputs import Completion, RequestOutput
from flexinfer.tasks.grpo.rollout import Rollout


class Counting:
    """A back end that keeps the seeds it was asked for."""

    name, policy_version = "counting", 0

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.notices: tuple[str, ...] = ("device: none",)

    def refresh(self) -> None:
        self.policy_version += 1

    def generate(self, requests: Any) -> list[RequestOutput]:
        self.seeds += [request.sampling.seed for request in requests]
        made = Completion(
            text="", token_ids=(1,), logprobs=(0.0,), policy_logprobs=(0.0,), finish_reason="length"
        )
        return [
            RequestOutput(index=i, prompt_token_ids=r.prompt_token_ids, outputs=(made,))
            for i, r in enumerate(requests)
        ]


def trainer(step: int) -> Any:
    """Return what a rollout reads of a trainer at a step."""
    args = SimpleNamespace(
        max_completion_length=4, temperature=1.0, top_p=1.0, top_k=0, min_p=None,
        repetition_penalty=1.0,
    )  # fmt: skip
    return SimpleNamespace(state=SimpleNamespace(global_step=step), args=args, model=None)


def seeds(*steps: int) -> list[int]:
    backend: Any = Counting()
    rollout = Rollout(backend, lambda prompt: (1, 2), seed=7)
    for step in steps:
        rollout(["a", "a"], trainer(step))
    return backend.seeds


def test_no_two_samples_share_a_seed() -> None:
    """Two steps, and a step that rolls out twice."""
    drawn = seeds(0, 0, 1)
    assert len(set(drawn)) == len(drawn) == 6


def test_a_resumed_run_draws_what_the_uncut_one_would() -> None:
    assert seeds(0, 1, 2)[-2:] == seeds(2)


def test_what_a_back_end_learns_by_running_is_passed_on_once() -> None:
    """What it said before is told by whoever opened it, be it taken back and said again."""
    backend, heard = Counting(), list[str]()
    opened: Any = backend
    rollout = Rollout(opened, lambda prompt: (1, 2), notice=heard.append)
    said = [("device: none",), ("ran with a",), ("device: none", "ran with a"), ("ran with b",)]
    told = []
    for step, backend.notices in enumerate(said):
        rollout(["a"], trainer(step))
        told.append(list(heard))
    once = ["ran with a"]
    assert told == [[], once, once, [*once, "ran with b"]]
