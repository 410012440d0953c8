"""vLLM as a rollout back end, for comparison: it has weights of its own and shares none."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from flexinfer.backends.base.call import Call
from flexinfer.backends.vllm.log import failure
from flexinfer.config import EngineConfig, LoraMode, SamplingParams
from flexinfer.engine.requests.limits import refusal
from flexinfer.engine.requests.outputs import EngineStats, Request, RequestOutput, checked
from flexinfer.engine.requests.results import Results, Sample, samples_of
from flexinfer.engine.steps.state import kind_of
from flexinfer.errors import UsageError
from flexinfer.kernels.sampler import SamplerKind
from flexinfer.weights.adapters.adapter import Adapter

if TYPE_CHECKING:
    from torch import Tensor

TRUNCATED = "vllm tells no policy log-probabilities with a penalty, top-k, top-p or min-p"
TEMPERATURES = (0.01, 2.0)
"""Bounds of what vLLM samples at: colder it takes for the least of them, hotter it refuses."""


@dataclass
class VllmBackend:
    """One vllm.LLM, seen through the protocol; `lora` is its request for the adapter, if any.

    vLLM tells neither steps nor times of its own: with CUDA graphs, `graph_replays` counts the
    steps that its longest sample needs at least. `folder` is where its engine logs errors.
    `weights` are what a refresh copies, None where weights were read once, when it was opened;
    `guard` is around each of its calls, by its llm: where its engine is another process that may
    end, where it lives in this one the trainer's random state.
    """

    llm: Any
    folder: TemporaryDirectory[str]
    sampling_params: Any
    tokenizer: Any
    eos_ids: frozenset[int]
    vocab_size: int
    max_seq_length: int
    config: EngineConfig
    notices: tuple[str, ...] = ()
    lora: Any = None
    weights: Iterable[tuple[str, Tensor]] | None = None
    guard: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    name: str = "vllm"
    stats: EngineStats = field(default_factory=EngineStats)
    policy_version: int = 0
    _calls: int = 0
    _broken: bool = False

    @property
    def adapter(self) -> tuple[Adapter, LoraMode] | None:
        """None: the adapter is within vLLM."""
        return None

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Serve every request, in input order; raises UsageError where it is closed."""
        self._engine()
        held = checked(requests)
        errors = {index: self._refusal(request) for index, request in enumerate(held)}
        good = {index: held[index] for index, error in errors.items() if error is None}
        call = Call(good, Results(good, self.tokenizer, self.eos_ids))
        if good:
            self._calls += 1
            self._serve(good, call)
        return [
            call.outputs.get(index)
            or RequestOutput(
                index=index, prompt_token_ids=request.prompt_token_ids, error=errors[index]
            )
            for index, request in enumerate(held)
        ]

    def refresh(self) -> None:
        """Copy the weights anew, where they are a trainer's; raises what vLLM says of it."""
        started = time.perf_counter()
        if self.weights is not None:
            given = {"weights_iterator": iter(self.weights)}
            with self._at_work() as engine:
                engine.collective_rpc("reload_weights", kwargs=given)
        self.policy_version += 1
        self.stats.refresh_s.append(time.perf_counter() - started)

    def sleep(self) -> None:
        """Do nothing: a comparison keeps its engine as it is."""

    def close(self) -> None:
        """End the engine, which gives the device's memory back."""
        if self.llm is None:
            return
        try:
            self.llm.llm_engine.engine_core.shutdown()
        finally:
            self.llm = None
            gc.collect()
            self.folder.cleanup()

    def _engine(self) -> Any:
        """Return the vllm.LLM; raises UsageError where it is closed."""
        if self.llm is None:
            raise UsageError("the back end is closed", hint="open another one")
        if self._broken:
            raise UsageError(
                "a call of vllm broke off, and would be gone on with", hint="open another one"
            )
        return self.llm

    @contextmanager
    def _at_work(self) -> Iterator[Any]:
        """Lend the vllm.LLM; raises NotEnoughMemory or EnvironmentUnfit with its own words.

        What breaks off, by Ctrl-C too, leaves requests or weights behind that nobody finishes.
        """
        engine, self._broken = self._engine(), True
        with self.guard(engine):
            try:
                yield engine
            except Exception as error:
                raise failure(error, Path(self.folder.name)) from error
        self._broken = False

    def _refusal(self, request: Request) -> str | None:
        """Return why a request cannot be served, or None."""
        return unsampled(request.sampling) or refusal(request, self.max_seq_length, self.vocab_size)

    def _serve(self, requests: Mapping[int, Request], call: Call) -> None:
        """Ask for all requests at once, and read what comes back."""
        seeds = self.config.seed, self._calls
        parts = [
            (request, part)
            for index, request in requests.items()
            for part in _parts(samples_of(index, request, self.max_seq_length, *seeds))
        ]
        outputs = self._asked(parts)
        self.stats.prefill_tokens += sum(len(r.prompt_token_ids) * len(part) for r, part in parts)
        assert len(outputs) == len(parts), "vLLM gave another number of outputs than requests"
        longest = [
            self._read(part, output, call) for (_, part), output in zip(parts, outputs, strict=True)
        ]
        if self.config.cuda_graphs is not False:
            self.stats.graph_replays += max(longest) - 1

    def _asked(self, parts: Sequence[tuple[Request, Sequence[Sample]]]) -> list[Any]:
        """Return vLLM's outputs, one of each."""
        with self._at_work() as engine:
            outputs: list[Any] = engine.generate(
                [{"prompt_token_ids": list(r.prompt_token_ids)} for r, _ in parts],
                [self._params(r.sampling, part) for r, part in parts],
                use_tqdm=False,
                lora_request=self.lora,
            )
        return outputs

    def _params(self, asked: SamplingParams, part: Sequence[Sample]) -> Any:
        """Return vLLM's settings; stop strings are looked for in what comes back.

        Without a seed of its own a request draws from vLLM's generator, which is seeded at first.
        """
        return self.sampling_params(
            n=len(part),
            temperature=asked.temperature,
            max_tokens=part[0].max_new_tokens,
            seed=None if asked.seed is None else part[0].seed,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            ignore_eos=True,
            stop_token_ids=[] if asked.ignore_eos else sorted(self.eos_ids),
        )

    def _read(self, group: Sequence[Sample], output: Any, call: Call) -> int:
        """Hand samples to the call, one cut short as an error; return the longest's tokens."""
        if len(output.outputs) != len(group):
            call.refuse(group[0], f"vllm gave {len(output.outputs)} of {len(group)} samples")
            return 1
        for sample, found in zip(group, output.outputs, strict=True):
            tokens, flat = list(found.token_ids), found.logprobs
            self.stats.decode_tokens += max(0, len(tokens) - 1)
            told = zip(tokens, flat.logprobs, strict=True) if flat.token_ids == tokens else ()
            if not any(call.add(sample, token, value, value) for token, value in told):
                short = f"{len(tokens)} tokens and {len(flat)} log-probabilities came back"
                call.refuse(sample, f"vllm: {short}, without an end")
        return max(len(found.token_ids) for found in output.outputs)


def unsampled(asked: SamplingParams) -> str | None:
    """Return why vLLM cannot sample so and tell log-probabilities of the policy, or None."""
    if kind_of(asked) == SamplerKind.TRUNCATED:
        return TRUNCATED
    (least, most), temperature = TEMPERATURES, asked.temperature
    if temperature != 0 and not least <= temperature <= most:
        return f"vllm samples at temperatures of {least:g} to {most:g}, not at {temperature:g}"
    return None


def _parts(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    """Yield the samples of a request as vLLM can be asked for them: greedy ones one by one."""
    if samples[0].params.temperature == 0:
        yield from ([sample] for sample in samples)
    else:
        yield samples
