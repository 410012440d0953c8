"""The engine: borrows a model, turns requests into completions, gives everything back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Self

import torch
from transformers import PreTrainedTokenizerBase

from flexinfer.config import EngineConfig, ModelOptions, Report, quiet
from flexinfer.core.sequence import Group
from flexinfer.core.sequence import Sequence as Row
from flexinfer.engine.memory import memory_told
from flexinfer.engine.notices import weights_notices
from flexinfer.engine.requests.limits import refusal
from flexinfer.engine.requests.outputs import EngineStats, Request, RequestOutput, checked
from flexinfer.engine.requests.results import Results, Sample, samples_of
from flexinfer.engine.setup import set_up
from flexinfer.engine.sleep import sleep, wake
from flexinfer.engine.steps.graphs import DecodeRunner
from flexinfer.engine.steps.loop import Loop, Machinery, OnToken
from flexinfer.engine.steps.prefill import PrefillRunner
from flexinfer.engine.steps.state import kind_of
from flexinfer.engine.turn import Turn
from flexinfer.errors import UsageError
from flexinfer.weights.adapters.choice import AdapterSource
from flexinfer.weights.load import LoadedModel, load

RECOMPILE = {"recompile_limit": 1024, "accumulated_recompile_limit": 8192}
"""Compiled variants of one function: buckets times layer shapes; torch's default is 8."""
BUILDING = ("building the engine", "lower --max-batch-size, --max-seq-length or --kv-memory")
GENERATING = ("generating", "lower --kv-memory, --max-batch-size or --prefill-tokens")
"""What ran out of memory, and the cure: a smaller KV cache leaves more to activations."""


class Engine:
    """Generates from the weights of a loaded model, which it borrows and never changes.

    `notices` say what runs and why, and a refresh renews what they say of the adapter; `stats`
    count since the engine was built; `max_seq_length` bounds prompt and new tokens together (a
    request that asks for more new tokens ends there, with finish reason "length").
    """

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig | None = None, report: Report = quiet
    ) -> None:
        """Allocate KV cache and slots; raises EnvironmentUnfit or NotEnoughMemory."""
        self.config = config or EngineConfig()
        self.stats = EngineStats(load_s=loaded.load_s)
        self.model_name: str = loaded.name
        self.tokenizer: PreTrainedTokenizerBase = loaded.tokenizer
        self.generation_config: Mapping[str, object] = loaded.generation_config
        self.eos_ids = loaded.eos_ids
        with memory_told(*BUILDING):
            setup = set_up(loaded, self.config)
        self.max_seq_length = setup.max_seq_length
        self.vocab_size = setup.programs.decode_decoder.vocab_size
        self._notices = loaded.notices + setup.notices
        self.notices = self._notices + weights_notices(setup.weights)
        self.policy_version = 0
        slots = self.config.max_batch_size
        runner = DecodeRunner(setup.programs, slots, setup.graphs, self.stats)
        prefiller = PrefillRunner(setup.programs, setup.prefill_graphs, self.stats)
        self._machinery: Machinery | None = Machinery(
            setup.scheduler,
            setup.programs,
            setup.weights,
            runner,
            prefiller,
            self.stats,
            slots,
            report,
        )
        self._calls, self._turn = 0, Turn()

    @classmethod
    def from_pretrained(
        cls, options: ModelOptions, config: EngineConfig | None = None, report: Report = quiet
    ) -> Self:
        """Load a model by name and build an engine over it; raises UsageError as loading does."""
        if not isinstance(options, ModelOptions):
            raise UsageError(
                f"from_pretrained takes ModelOptions, not a {type(options).__name__}",
                hint=f"write from_pretrained(ModelOptions(model={options!r}))",
            )
        return cls(load(options, report), config, report)

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Return one output a request, in order; a refused one has `error` set."""
        return sorted(self.stream(requests), key=lambda output: output.index)

    def stream(
        self, requests: Sequence[Request], on_token: OnToken | None = None
    ) -> Iterator[RequestOutput]:
        """Yield outputs as they complete, refused requests first; close the iterator to give up.

        Samples without a seed of their own differ from call to call. Raises UsageError if the
        engine is closed, another call of it is not at its end, or something is no Request, and
        StaleWeights if a borrowed tensor has moved.
        """
        self._ready()
        good: dict[int, Request] = {}
        bounds = self.max_seq_length, self.vocab_size
        for index, request in enumerate(checked(requests)):
            if (error := refusal(request, *bounds)) is None:
                good[index] = request
            else:
                ids = request.prompt_token_ids
                yield RequestOutput(index=index, prompt_token_ids=ids, error=error)
        if good:
            with self._taken("stream") as machinery:
                wake(machinery)
                machinery.weights.check()
                self._calls += 1
                yield from self._run(machinery, good, on_token)

    def refresh(self, source: AdapterSource | None = None) -> None:
        """Roll out from the weights as they are now; the one point where a trainer's steps come in.

        `source` is an adapter of the same targets: a PEFT model, a folder, an Adapter; without it
        the one that the engine was built with is read anew. Raises StaleWeights where a borrowed
        tensor has moved, and UsageError for an adapter that does not fit, or while another call of
        the engine is not at its end, be it of another thread; the old weights stay.
        """
        started = time.perf_counter()
        with self._taken("refresh") as machinery:
            with memory_told("refreshing weights", "leave more memory free beside the engine"):
                machinery.weights.refresh(source)
            machinery.scheduler.reset()  # what a cache holds was computed with the old weights
            if machinery.device.type == "cuda":
                torch.cuda.synchronize()
            before, self.notices = self.notices, self._notices + weights_notices(machinery.weights)
            for line in (line for line in self.notices if line not in before):
                machinery.report(line, 0, 0)
            self.policy_version += 1
            self.stats.refresh_s.append(time.perf_counter() - started)

    def sleep(self) -> None:
        """Give the memory of the KV cache back until the next call, which takes it again.

        Weights, adapter and graphs stay. Raises UsageError while another call is not at its end.
        """
        with self._taken("sleep") as machinery:
            sleep(machinery)

    @property
    def adapter_sha(self) -> str | None:
        """sha256 of the adapter in use, None without one."""
        adapter = self._ready().weights.adapter
        return None if adapter is None else adapter.sha()

    @property
    def machinery(self) -> Machinery:
        """What calls run on, for who measures its parts between two calls; raises UsageError."""
        return self._ready()

    def _ready(self) -> Machinery:
        """Return what a call runs on; raises UsageError where no call can begin."""
        self._turn.check()
        return self._open()

    @contextmanager
    def _taken(self, whose: str) -> Iterator[Machinery]:
        """Have for a call what it runs on; raises UsageError as `_ready`, from any thread."""
        with self._turn.of(whose):
            yield self._open()

    def _open(self) -> Machinery:
        """Return what calls run on; raises UsageError where the engine is closed."""
        if self._machinery is None:
            raise UsageError("the engine is closed", hint="build another one over the same model")
        return self._machinery

    def _run(
        self, machinery: Machinery, requests: dict[int, Request], on_token: OnToken | None
    ) -> Iterator[RequestOutput]:
        """Run the loop over every sample; samples of the same prompt share its pages."""
        samples = self._samples(requests)
        results = Results(requests, self.tokenizer, self.eos_ids)
        kind = max(kind_of(request.sampling) for request in requests.values())
        loop = Loop(machinery, samples, results, kind, on_token).run()
        with closing(loop):
            while True:
                with (
                    torch.no_grad(),
                    torch._dynamo.config.patch(RECOMPILE),
                    memory_told(*GENERATING),
                ):
                    output = next(loop, None)
                if output is None:
                    return
                yield output

    def _samples(self, requests: dict[int, Request]) -> dict[Row, Sample]:
        """Make a row for every sample, the rows of equal prompts in one group."""
        groups = {r.prompt_token_ids: Group(r.prompt_token_ids) for r in requests.values()}
        samples: dict[Row, Sample] = {}
        for index, request in requests.items():
            prompt, call = request.prompt_token_ids, (self.config.seed, self._calls)
            for sample in samples_of(index, request, self.max_seq_length, *call):
                row = Row(groups[prompt], sample.max_new_tokens, (index, sample.number))
                samples[row] = sample
        return samples

    def close(self) -> None:
        """Give the KV cache, the graphs and the slots back; the model stays with its owner."""
        self._machinery = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def __enter__(self) -> Self:
        """Return the engine."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the engine."""
        self.close()
