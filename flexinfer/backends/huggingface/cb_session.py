"""One session of transformers' continuous batching: requests in, one result each, or its error.

`generate_batch` logs what goes wrong and returns what it has; here nothing is lost. All requests
are queued before the loop starts, so its batches, and with them its samples, are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from flexinfer.backends.huggingface.cb_api import Work, hold_attention, workload_hints
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory, one_line

LOST = "continuous batching ended before this request was complete"

UNSERVED = (ValueError, LookupError, AttributeError, ImportError, RuntimeError)
"""What transformers raises for models and attentions that it has no paged cache for."""


NO_ROOM = "Invalid values"
"""How transformers' ValueError begins where memory holds not one block."""


class Wanted(NamedTuple):
    """One sample: `key` is for the caller; `eos_ids` empty is none."""

    key: str
    prompt: Sequence[int]
    max_new_tokens: int
    eos_ids: Sequence[int]


class Got(NamedTuple):
    """What became of one: tokens and their log-probabilities, or the `error`.

    `first_s` is when the first token was there, on time.perf_counter's clock.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    error: str | None = None
    first_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Session:
    """How to serve one group of samples.

    `holds` keeps the module's attention, `shrinks` takes what memory there is where the blocks that
    `batching` asks for do not fit.
    """

    generation: GenerationConfig
    batching: ContinuousBatchingConfig
    work: Work
    persistent: bool
    seed: int
    holds: bool = False
    shrinks: bool = False


class Served(NamedTuple):
    """The results by key, the steps of the loop and whether CUDA graphs ran them.

    `attention` is what transformers took, `ahead` whether it batched without waiting for results.
    """

    results: dict[str, Got]
    steps: int
    graphs: bool
    attention: str
    ahead: bool

    def said(self, on_gpu: bool) -> str:
        """Say what transformers decided, and what would be faster."""
        attention = self.attention.removeprefix("paged|")
        slow = on_gpu and "flash" not in attention
        return (
            f"continuous batching ran with {attention}, {'' if self.graphs else 'no '}CUDA graphs, "
            f"{'batching ahead' if self.ahead else 'waiting for each step'}"
            f"{'; with flash attention (pip install kernels) it is faster' if slow else ''}"
        )


def serve(
    module: PreTrainedModel,
    session: Session,
    wanted: Sequence[Wanted],
    told: Callable[[int], None],
) -> Served:
    """Run all samples to their end; `told` hears how many are done.

    Raises EnvironmentUnfit for an attention that continuous batching has not, NotEnoughMemory
    where its cache does not fit.
    """
    with _manager(module, session) as manager:
        results = {one.key: Got(error=LOST) for one in wanted}
        for one in wanted:
            if _add(manager, one) is None:
                results[one.key] = Got(error="continuous batching did not take the request")
        waiting = {key for key, got in results.items() if got.error == LOST}
        torch.manual_seed(session.seed)
        manager.start()
        try:
            for result in _finished(manager, waiting):
                results[result.request_id] = _read(result)
                told(len(results) - len(waiting))
        except BaseException:
            for key in waiting:
                manager.cancel_request(key)
            raise
        ran = manager.continuous_batching_config
        return Served(
            results,
            int(vars(manager).get("current_batch", 0)),
            graphs=any(ran.cuda_graph_booleans),
            attention=str(module.config._attn_implementation),
            ahead=bool(ran.use_async_batching),
        )


def _add(manager: Any, one: Wanted) -> str | None:
    """Queue a sample; None where the manager would not have it."""
    key: str | None = manager.add_request(
        list(one.prompt),
        request_id=one.key,
        max_new_tokens=one.max_new_tokens,
        record_timestamps=True,
        eos_token_id=list(one.eos_ids) or -1,
    )
    return key


def _finished(manager: Any, waiting: set[str]) -> Iterator[Any]:
    """Yield results as they end, taking them from `waiting`, until all did or the loop is gone."""
    while waiting:
        running = manager.is_running()  # asked first: what it delivers and then dies is read still
        result = manager.get_result(timeout=1.0 if running else 0.01)
        if result is None:
            if not running:
                return
        elif result.is_finished() and result.request_id in waiting:
            waiting.discard(result.request_id)
            yield result


def _read(result: Any) -> Got:
    """Return a result's tokens, or why there are none."""
    tokens, logprobs = tuple(result.generated_tokens), tuple(result.logprobs)
    if result.error is not None:
        return Got(error=f"continuous batching failed: {' '.join(result.error.split())}")
    if len(tokens) != len(logprobs):
        return Got(error=f"{len(logprobs)} log-probabilities came back for {len(tokens)} tokens")
    return Got(tokens, logprobs, None, result.timestamps[0] if result.timestamps else None)


@contextmanager
def _manager(module: PreTrainedModel, session: Session) -> Iterator[Any]:
    """Open a manager, or the one that was kept, that has not started; stop it on leaving."""
    try:
        if session.holds:
            hold_attention(module)
        manager = _warm(module, session)
        manager.background_thread_status.clear()  # a kept one takes no request before
    except torch.OutOfMemoryError:
        raise  # told by who called: it is a RuntimeError
    except MemoryError as error:
        raise NotEnoughMemory(
            f"continuous batching: {one_line(error)}", hint="lower --max-batch-size"
        ) from error
    except UNSERVED as error:
        model, why = module.config.model_type, one_line(error).partition(". ")[0]
        raise EnvironmentUnfit(
            f"transformers' continuous batching cannot run this {model}: {why}",
            hint="take another back end",
        ) from error
    try:
        yield manager
    finally:
        manager.stop(block=True, keep_for_next_session=session.persistent)
        if not session.persistent:
            manager.destroy()


def _warm(module: PreTrainedModel, session: Session) -> Any:
    """Return a manager with its cache; raises MemoryError where that does not fit."""
    manager: Any = module.init_continuous_batching(
        generation_config=session.generation,
        continuous_batching_config=session.batching,
        workload_hints=workload_hints(session.work),
    )
    try:
        if not manager.warmed_up:
            manager.warmup()
    except (MemoryError, ValueError) as error:
        if type(error) is ValueError and not str(error).startswith(NO_ROOM):
            raise
        if not session.shrinks or session.batching.num_blocks is None:
            raise MemoryError(str(error)) from error
        return _warm(module, replace(session, batching=replace(session.batching, num_blocks=None)))
    return manager
