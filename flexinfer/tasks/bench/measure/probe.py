"""The probe of the output gate: a few prompts of the workload, decoded amid the workload itself.

The engine gets a first batch of the workload with few new tokens, so that what is checked is what
will be timed: the same batch size, sampler, graphs and kernels. Up to four of its requests are
greedy and checked: prompts of several lengths, and one filled up to the longest context that the
workload reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import sha256
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, NamedTuple

from flexinfer.backends.base.protocol import Backend
from flexinfer.engine.requests.outputs import Request, RequestOutput
from flexinfer.tasks.bench.compare.agreement import ProbeSample
from flexinfer.tasks.bench.compare.gate import Gate, judge
from flexinfer.tasks.bench.config import BenchConfig
from flexinfer.tasks.bench.measure.rounds import requests_for, token_problem
from flexinfer.tasks.reference.samples import Checked, Reference

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEW_TOKENS, LONGEST, PICKS = 16, 2048, 4
"""New tokens of a probe, tokens of its longest prompt, and requests that are checked."""


class Probed(NamedTuple):
    """What a probe found: the judgement, where there is one, and the first sample of each pick."""

    gate: Gate | None = None
    samples: tuple[ProbeSample, ...] = ()


def check_output(
    backend: Backend,
    module: PreTrainedModel | None,
    config: BenchConfig,
    prompts: Sequence[tuple[int, ...]],
    batch_size: int,
) -> Probed:
    """Decode the probe, score it by `module` and judge; raises NotEnoughMemory.

    Without a module nothing is judged, and the tokens are there for other back ends' to be held
    against.
    """
    requests, picks = probe(config, prompts, batch_size)
    outputs = backend.generate(requests)
    problem = token_problem(outputs, requests, exact=False)
    problem = problem or token_problem(
        [outputs[pick] for pick in picks], [requests[pick] for pick in picks], exact=True
    )
    if problem is not None:
        return Probed(Gate(problem=f"wrong output: {problem}"))
    ends = [_ends(outputs[pick]) for pick in picks]
    firsts = [first for first, _ in ends]
    if module is None:
        return Probed(None, _kept(firsts, None))
    samples = list(dict.fromkeys(sample for both in ends for sample in both))
    reference = _scored(backend, module, samples)
    scores = dict(zip(samples, reference.scores, strict=True))
    own = reference._replace(scores=[scores[first] for first in firsts])
    return Probed(judge(samples, reference), _kept(firsts, own))


def _scored(backend: Backend, module: PreTrainedModel, samples: Sequence[Checked]) -> Reference:
    """Return what the module says of samples, with the adapter of the back end in it."""
    from flexinfer.engine.memory import memory_told
    from flexinfer.tasks.reference.forced import teacher_forced

    with (
        memory_told("the output gate's reference", "lower --kv-memory, or take --no-gate"),
        with_adapter(backend, module),
    ):
        return teacher_forced(module, samples)


def _kept(firsts: Sequence[Checked], reference: Reference | None) -> tuple[ProbeSample, ...]:
    """Return samples as rows keep them: which tokens are the reference's by a clear margin."""
    clear: list[tuple[bool, ...]] = [()] * len(firsts)
    if reference is not None:
        clear = [
            tuple(score.behind == 0 and score.margin > reference.noise for score in scores)
            for scores in reference.scores
        ]
    return tuple(
        ProbeSample(len(one.prompt), one.token_ids, stands, _digest(one.prompt))
        for one, stands in zip(firsts, clear, strict=True)
    )


def _digest(prompt: Sequence[int]) -> str:
    """Return what tells a prompt from any other one."""
    return sha256(",".join(map(str, prompt)).encode()).hexdigest()[:16]


def with_adapter(backend: Backend, module: PreTrainedModel) -> AbstractContextManager[None]:
    """Let the module compute with the weights of a back end for a while: merged, or PEFT's own.

    A packed base computes as dequant(W4), which is the reference.
    """
    from flexinfer.tasks.reference.trainer import dense_over, merged_over, peft_over

    if backend.adapter is None:
        return dense_over(module)
    adapter, mode = backend.adapter
    if mode == "merged":
        return merged_over(module, adapter)
    return peft_over(module, adapter, adapter)


def probe(
    config: BenchConfig, prompts: Sequence[tuple[int, ...]], batch_size: int
) -> tuple[list[Request], list[int]]:
    """Return the requests of the probe and the indices of those that are checked."""
    count = min(len(prompts), max(-(-batch_size // config.n_samples), PICKS))
    new = min(NEW_TOKENS, config.max_new_tokens)
    requests = requests_for(config, prompts[:count], new)
    order = sorted(range(count), key=lambda index: len(prompts[index]))
    filled = order[-2] if count >= PICKS else order[-1]
    reach = max(map(len, prompts)) + config.max_new_tokens - new
    picks = sorted({order[0], order[(count - 1) // 2], order[-1], filled})
    for pick in picks:
        prompt = prompts[pick]
        if pick == filled:
            prompt = tuple(islice(chain(prompt, cycle(chain(*prompts))), reach))
        requests[pick] = _greedy(requests[pick], prompt[:LONGEST])
    return requests, picks


def _greedy(request: Request, prompt: tuple[int, ...]) -> Request:
    """Return the request with another prompt, greedy and of full length."""
    sampling = replace(request.sampling, temperature=0.0, ignore_eos=True)
    return Request(prompt_token_ids=prompt, sampling=sampling)


def _ends(output: RequestOutput) -> tuple[Checked, Checked]:
    """Return the first sample, whose prompt was prefilled, and the last, which may share it."""
    first, last = (
        Checked(output.prompt_token_ids, sample.token_ids, sample.logprobs)
        for sample in (output.outputs[0], output.outputs[-1])
    )
    return first, last
