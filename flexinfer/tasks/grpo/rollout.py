"""TRL's `rollout_func` over a back end: refreshed whenever the trainer has taken a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flexinfer.backends.base.protocol import Backend
from flexinfer.config import SamplingParams
from flexinfer.engine.requests.outputs import Completion, Request, RequestOutput
from flexinfer.engine.requests.seeds import mix
from flexinfer.errors import RequestError, StaleWeights
from flexinfer.tasks.grpo.problems.problem_set import Encode, Prompt
from flexinfer.tasks.threads import own_threads


@dataclass(frozen=True)
class Times:
    """Wall clock that the rollouts of a step took, in seconds, and the tokens they made."""

    refresh_s: float = 0.0
    generate_s: float = 0.0
    tokens: int = 0

    def __add__(self, other: Times) -> Times:
        """Return both together."""
        return Times(
            self.refresh_s + other.refresh_s,
            self.generate_s + other.generate_s,
            self.tokens + other.tokens,
        )


@dataclass
class Rollout:
    """Completes the prompts that TRL hands out (repeated, one for each completion it wants).

    The sampling is what the trainer's arguments say. Samples depend on (`seed`, optimizer step,
    place in the batch) alone, so a resumed run draws what the uninterrupted one would have drawn.
    `samples` are those of the last call, `times` those since they were last taken. With `sleeps`
    the back end's memory is given back after each call. `notice` hears, a line once, what the back
    end says that it did not say when it was opened.
    """

    backend: Backend
    encode: Encode
    seed: int = 0
    sleeps: bool = False
    notice: Callable[[str], None] = lambda line: None
    samples: list[Completion] = field(default_factory=list)
    times: Times = Times()
    step: int | None = None
    """The optimizer step whose weights were last brought in."""
    _calls: int = 0
    _said: set[str] = field(init=False)

    def __post_init__(self) -> None:
        """Whoever opened the back end has told what it said then."""
        self._said = set(self.backend.notices)

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """Return `prompt_ids`, `completion_ids`, `logprobs` and `policy_version`, a prompt each.

        `logprobs` are the policy's: temperature-scaled over the whole vocabulary, as the trainer's
        are. Raises RequestError where a prompt cannot be served, StaleWeights where the back end
        does not follow the trainer.
        """
        started = time.perf_counter()
        self._follow(trainer.state.global_step)
        refreshed = time.perf_counter()
        requests = self._requests(prompts, sampling_of(trainer))
        with own_threads(trainer.model):
            outputs = self.generate(requests)
        if self.sleeps:
            self.backend.sleep()
        self.samples = [sample(output) for output in outputs]
        self.times += Times(
            refreshed - started,
            time.perf_counter() - refreshed,
            sum(len(made.token_ids) for made in self.samples),
        )
        return {
            "prompt_ids": [list(request.prompt_token_ids) for request in requests],
            "completion_ids": [list(made.token_ids) for made in self.samples],
            "logprobs": [list(made.policy_logprobs) for made in self.samples],
            "policy_version": [self.version] * len(requests),
        }

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Serve requests as the back end does, and pass on what it has learned of itself by it."""
        outputs = self.backend.generate(requests)
        for line in self.backend.notices:
            if line not in self._said:
                self._said.add(line)
                self.notice(line)
        return outputs

    @property
    def version(self) -> int:
        """The optimizer steps that the policy rolled out has taken."""
        assert self.step is not None
        return self.step

    def take_times(self) -> Times:
        """Return the times since they were last taken."""
        times, self.times = self.times, Times()
        return times

    def _follow(self, step: int) -> None:
        """Bring the weights of optimizer step `step` in; raises StaleWeights where none came."""
        if step == self.step:
            self._calls += 1
            return
        before = self.backend.policy_version
        self.backend.refresh()
        if self.backend.policy_version <= before:
            raise StaleWeights(
                f"{self.backend.name} still rolls out version {before} of the policy at step {step}"
            )
        self.step, self._calls = step, 0

    def _requests(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Request]:
        """Encode the prompts; equal ones are encoded once, and each sample has its own seed."""
        known: dict[str, Sequence[int]] = {}
        requests = []
        for place, prompt in enumerate(prompts):
            ids = known.get(repr(prompt)) or known.setdefault(repr(prompt), self.encode(prompt))
            seed = mix(self.seed, self.step or 0, self._calls, place)
            own = SamplingParams(**vars(sampling) | {"seed": seed})
            requests.append(Request(prompt_token_ids=tuple(ids), sampling=own))
        return requests


def sampling_of(trainer: Any) -> SamplingParams:
    """Return how a GRPOTrainer wants its completions sampled; raises OutOfRange."""
    args = trainer.args
    return SamplingParams(
        max_new_tokens=args.max_completion_length,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k or 0,
        min_p=args.min_p or 0.0,
        repetition_penalty=args.repetition_penalty,
    )


def sample(output: RequestOutput) -> Completion:
    """Return the one sample of a request; raises RequestError where there is none to train on."""
    if output.error is not None:
        raise RequestError(f"a rollout failed: {output.error}")
    (made,) = output.outputs
    if len(made.policy_logprobs) != len(made.token_ids):
        raise RequestError("a rollout came without its log-probabilities")
    return made
