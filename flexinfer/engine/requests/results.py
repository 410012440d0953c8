"""From committed tokens to completions: EOS, stop strings, lengths, texts.

The device runs ahead of the host, so an end is seen late: what was sampled after it is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from transformers import PreTrainedTokenizerBase

from flexinfer.config import SamplingParams
from flexinfer.engine.requests.outputs import Completion, Request, RequestOutput
from flexinfer.engine.requests.seeds import mix

TOKENS_PER_CHARACTER = 4
"""UTF-8 bytes of a character: more tokens than this cannot be needed for one."""


@dataclass(eq=False)
class Sample:
    """One sample on its way: what was generated so far, and how it ended.

    `visible` are the token ids without those that a text skips.
    """

    request: int
    number: int
    params: SamplingParams
    seed: int
    max_new_tokens: int
    token_ids: list[int] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop: str | int | None = None


def samples_of(index: int, request: Request, longest: int, *call: int) -> list[Sample]:
    """Return the `n` samples of request number `index`, none of more than `longest` tokens.

    Without a seed of its own a request is given one made of `call` and its index.
    """
    params = request.sampling
    limit = min(params.max_new_tokens, longest - len(request.prompt_token_ids))
    seed = mix(*call, index) if params.seed is None else params.seed
    return [Sample(index, n, params, mix(seed, n), limit) for n in range(params.n)]


class Results:
    """Collects the samples of one call and tells when a request is complete."""

    def __init__(
        self,
        requests: dict[int, Request],
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Collection[int],
    ) -> None:
        """Expect `n` samples of every request."""
        self._tokenizer, self._eos_ids = tokenizer, eos_ids
        self._requests = requests
        added = tokenizer.added_tokens_decoder.items()
        self._skipped = frozenset(token_id for token_id, token in added if token.special)
        self._done: dict[int, dict[int, Completion]] = {index: {} for index in requests}

    def add(self, sample: Sample, token: int, logprob: float, policy_logprob: float) -> bool:
        """Append a token; return whether it ended the sample."""
        sample.token_ids.append(token)
        if token not in self._skipped:
            sample.visible.append(token)
        sample.logprobs.append(logprob)
        sample.policy_logprobs.append(policy_logprob)
        if token in self._eos_ids and not sample.params.ignore_eos:
            sample.finish_reason, sample.stop = "stop", token
        elif (found := self._stop_string(sample)) is not None:
            sample.finish_reason, sample.stop = "stop", found
        elif len(sample.token_ids) >= sample.max_new_tokens:
            sample.finish_reason = "length"
        return sample.finish_reason is not None

    def complete(self, sample: Sample) -> RequestOutput | None:
        """Close an ended sample; return its request's output if it was the last one."""
        assert sample.finish_reason is not None, "a sample is completed before it ended"
        done = self._done[sample.request]
        done[sample.number] = Completion(
            text=partial(_text, self._tokenizer, tuple(sample.token_ids), sample.stop),
            token_ids=tuple(sample.token_ids),
            logprobs=tuple(sample.logprobs),
            policy_logprobs=tuple(sample.policy_logprobs),
            finish_reason=sample.finish_reason,
            stop=sample.stop,
        )
        request = self._requests[sample.request]
        if len(done) < request.sampling.n:
            return None
        outputs = tuple(done[number] for number in range(request.sampling.n))
        return RequestOutput(
            index=sample.request, prompt_token_ids=request.prompt_token_ids, outputs=outputs
        )

    def refuse(self, request: int, error: str) -> RequestOutput:
        """Give a request up; samples of it that are complete are dropped."""
        del self._done[request]
        ids = self._requests[request].prompt_token_ids
        return RequestOutput(index=request, prompt_token_ids=ids, error=error)

    def _stop_string(self, sample: Sample) -> str | None:
        """Return the stop string that begins first in the text's end, if any is there."""
        stops = sample.params.stop
        if not stops:
            return None
        reach = TOKENS_PER_CHARACTER * (max(map(len, stops)) + 1)
        tail = _decode(self._tokenizer, sample.visible[-reach:])
        if not any(stop in tail for stop in stops):
            return None
        text = _decode(self._tokenizer, sample.visible)
        found = [(text.find(stop), stop) for stop in stops if stop in text]
        return min(found)[1] if found else None


def _decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Return the text of token ids without special tokens."""
    text = tokenizer.decode(list(token_ids), skip_special_tokens=True)
    assert isinstance(text, str)
    return text


def _text(
    tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], stop: str | int | None
) -> str:
    """Return the text without EOS and without the stop string."""
    if isinstance(stop, int):
        return _decode(tokenizer, token_ids[:-1])
    text = _decode(tokenizer, token_ids)
    return text if stop is None else text[: text.index(stop)]
