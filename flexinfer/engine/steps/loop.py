"""One call's loop: launch a step, read the one before, hand out what is complete.

The host never waits for the step it just launched: on CUDA the next step is launched before the
last one's tokens are read, so an end is seen one step late and the extra token is dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flexinfer.config import Report
from flexinfer.core.scheduler import Scheduler
from flexinfer.core.sequence import Sequence as Row
from flexinfer.core.step import Chunk, Step
from flexinfer.engine.requests.outputs import EngineStats, RequestOutput
from flexinfer.engine.requests.results import Results, Sample
from flexinfer.engine.steps.graphs import DecodeRunner, bucket_for
from flexinfer.engine.steps.nonfinite import NOT_FINITE, doomed, finite, scrub
from flexinfer.engine.steps.prefill import PrefillRunner
from flexinfer.engine.steps.programs import Programs
from flexinfer.kernels.sampler import SamplerKind
from flexinfer.weights.inference import InferenceWeights

OnToken = Callable[[int, int, int], None]
"""Called with (request index, sample index, token id) for every token, in order of a sample."""


@dataclass(frozen=True)
class Machinery:
    """What all calls of an engine share."""

    scheduler: Scheduler
    programs: Programs
    weights: InferenceWeights
    runner: DecodeRunner
    prefiller: PrefillRunner
    stats: EngineStats
    max_batch_size: int
    report: Report

    @property
    def device(self) -> torch.device:
        """Where everything lies."""
        return self.programs.tables.table.device


class Launched(NamedTuple):
    """A step under way: the rows it samples, int32 [3, rows or more] on the host, and its end."""

    rows: tuple[Row, ...]
    packed: Tensor
    end: torch.cuda.Event | None
    decoding: bool


class Loop:
    """Runs the samples of one call to their ends; `kind` is the sampler that serves all of them."""

    def __init__(
        self,
        machinery: Machinery,
        samples: dict[Row, Sample],
        results: Results,
        kind: SamplerKind,
        on_token: OnToken | None,
    ) -> None:
        """Take what the call consists of."""
        self._m, self._samples, self._results = machinery, samples, results
        self._kind, self._on_token = kind, on_token
        self._in_flight: deque[Launched] = deque()
        self._lag = 1 if machinery.device.type == "cuda" else 0
        self._rows = min(len(samples), machinery.max_batch_size)
        self._total = sum(sample.max_new_tokens for sample in samples.values())
        self._done, self._started, self._last = 0, time.perf_counter(), time.perf_counter()
        self._first: set[int] = set()

    def run(self) -> Generator[RequestOutput, None, None]:
        """Yield outputs as they complete; on any way out nothing of the call stays behind."""
        scheduler, ended = self._m.scheduler, False
        try:
            for row in self._samples:
                scheduler.add(row)
            self._prepare()
            while scheduler.has_work or self._in_flight:
                step = scheduler.next_step()
                if step is not None:
                    self._in_flight.append(self._launch(step))
                while len(self._in_flight) > (self._lag if step is not None else 0):
                    yield from self._collect(self._in_flight.popleft())
                    if step is None:
                        break
            ended = True
        finally:
            if not ended:
                self._abandon()

    def _prepare(self) -> None:
        """Compile and capture the call's bucket before the clock of any request runs."""
        if self._kind == SamplerKind.TRUNCATED:
            self._m.programs.state.track_seen()
        if self._m.runner.needs(self._rows, self._kind):
            bucket = bucket_for(self._rows, self._m.max_batch_size)
            self._m.report(f"compiling and capturing decode at batch {bucket}", 0, 0)
            self._m.runner.prepare(self._rows, self._kind)
        self._started = self._last = time.perf_counter()

    def _launch(self, step: Step) -> Launched:
        """Start a step on the device and the copy of its tokens to the host."""
        programs = self._m.programs
        programs.tables.apply(step.page_writes)
        programs.cache.copy_pages(step.page_copies)
        self._enter(step.entries)
        if step.chunks:
            rows = tuple(chunk.sequence for chunk in step.chunks if chunk.sampled)
            packed = self._prefill(step.chunks, rows)
        else:
            rows = step.decode
            columns = max(len(row.pages) for row in rows)
            packed = self._m.runner.run([_slot(row) for row in rows], self._kind, columns)
        return Launched(rows, *self._fetch(packed), bool(step.decode))

    def _prefill(self, chunks: tuple[Chunk, ...], rows: tuple[Row, ...]) -> Tensor:
        """Set up the slots that sample, then compute the chunks."""
        self._admit(rows)
        on_cuda = self._m.device.type == "cuda"
        kept = bucket_for(self._rows, self._m.max_batch_size) if on_cuda else len(rows)
        return self._m.prefiller.run(chunks, kept, self._kind)

    def _enter(self, rows: tuple[Row, ...]) -> None:
        """Set up slots that decode from a token which the device did not sample itself."""
        if rows:
            self._admit(rows)
            last = [row.token_ids(row.known - 1, row.known)[0] for row in rows]
            positions = [row.known - 1 for row in rows]
            self._m.programs.state.enter([_slot(row) for row in rows], last, positions)

    def _admit(self, rows: tuple[Row, ...]) -> None:
        """Tell the device how the rows' slots are sampled."""
        if not rows:
            return
        samples, state = [self._samples[row] for row in rows], self._m.programs.state
        slots = [_slot(row) for row in rows]
        state.admit(slots, [s.params for s in samples], [s.seed for s in samples])
        if self._kind == SamplerKind.TRUNCATED:
            for row, slot in zip(rows, slots, strict=True):
                if self._samples[row].params.repetition_penalty != 1.0:
                    state.remember(slot, row.token_ids(0, row.length))

    def _fetch(self, packed: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """Begin the copy to the host; the event tells when it is there (None: it is)."""
        if packed.device.type != "cuda":
            return packed, None
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's constructor
        event.record()
        return host, event

    def _collect(self, launched: Launched) -> Iterator[RequestOutput]:
        """Wait for a step, commit its tokens, and yield the requests they complete."""
        if launched.end is not None:
            launched.end.synchronize()
        tokens = launched.packed[0].tolist()
        logprobs, policy = launched.packed[1:].view(torch.float32).tolist()
        self._count(launched)
        for row, token, logprob, policy_logprob in zip(
            launched.rows, tokens, logprobs, policy, strict=False
        ):
            if self._m.scheduler.commit(row, token):
                yield from self._committed(row, token, logprob, policy_logprob)
        self._m.report("generating", self._done, self._total)

    def _committed(
        self, row: Row, token: int, logprob: float, policy_logprob: float
    ) -> Iterator[RequestOutput]:
        """Book one token; yield the request's output if it was the last one of all."""
        if not finite(logprob, policy_logprob):
            yield from self._refuse(row)
            return
        sample = self._samples[row]
        self._done += 1
        if sample.request not in self._first:
            self._first.add(sample.request)
            self._m.stats.ttft_s.append(time.perf_counter() - self._started)
        ended = self._results.add(sample, token, logprob, policy_logprob)
        if self._on_token is not None:
            self._on_token(sample.request, sample.number, token)
        if not ended:
            return
        self._m.scheduler.finish(row)
        self._done += sample.max_new_tokens - len(sample.token_ids)
        if (output := self._results.complete(sample)) is not None:
            yield output

    def _refuse(self, row: Row) -> Iterator[RequestOutput]:
        """End the request of a row that has no distribution to sample from; yield its error."""
        scheduler = self._m.scheduler
        rows = doomed(row, self._samples)
        scrub(rows, scheduler.pool, self._m.programs)
        scheduler.forget(row.group)
        for other in rows:
            scheduler.finish(other)
            sample = self._samples[other]
            self._done += sample.max_new_tokens - len(sample.token_ids)
        for request in dict.fromkeys(self._samples[other].request for other in rows):
            yield self._results.refuse(request, NOT_FINITE)

    def _count(self, launched: Launched) -> None:
        """Keep the statistics of a collected step."""
        now, stats = time.perf_counter(), self._m.stats
        if launched.decoding:
            stats.decode_steps += 1
            stats.decode_tokens += len(launched.rows)
            stats.step_s.append(now - self._last)
        stats.preemptions = self._m.scheduler.preemptions
        self._last = now

    def _abandon(self) -> None:
        """Forget the call, after an error, an interrupt or when the caller walks away."""
        if self._m.device.type == "cuda":
            torch.cuda.synchronize()
        self._m.scheduler.reset()
        self._in_flight.clear()


def _slot(row: Row) -> int:
    """Return the slot of a running row."""
    assert row.slot is not None, "a row without a slot"
    return row.slot
