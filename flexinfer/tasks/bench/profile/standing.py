"""A full batch in the middle of decoding, held there so that its steps can be taken again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Request
from flexinfer.engine.steps.loop import Machinery
from flexinfer.engine.steps.state import kind_of
from flexinfer.kernels.sampler import SamplerKind
from flexinfer.tasks.roofline import LayerRead, StepCost

MOST_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The slots (int64 [bucket], padded as the runner pads them) of a batch and where they stand.

    `contexts` are the tokens each live row attends to in the next step; `steps` and one to warm up
    can be taken from there before a row leaves its page table. `tokens` and `positions` are those
    of all slots.
    """

    machinery: Machinery
    kind: SamplerKind
    slots: Tensor
    contexts: tuple[int, ...]
    steps: int
    tokens: Tensor
    positions: Tensor

    @property
    def columns(self) -> int:
        """The page table's columns, all of which a captured step reads."""
        return int(self.machinery.programs.tables.table.shape[1])

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return len(self.machinery.programs.decode_decoder.specs)

    def restore(self) -> None:
        """Put every slot back to where it stood; nobody will read what it writes from there on."""
        held = self.machinery.programs.state.tensors
        held.tokens.copy_(self.tokens)
        held.positions.copy_(self.positions)

    def kv_read(self, cost: StepCost, first: int, count: int) -> float:
        """Return the bytes of KV a step must read: the mean of steps [first, first + count)."""
        starts = [context + first for context in self.contexts]
        return sum(cost.kv_read(start, start + count) for start in starts) / count

    def reach(self, window: int | None, first: int, count: int) -> float:
        """Return the tokens that all rows attend to within `window`, in the mean of those steps."""
        return self.kv_read(StepCost(0, (LayerRead(1, window, True),)), first, count)


def stand(engine: Engine, requests: Sequence[Request]) -> Standing:
    """Decode half of what a full batch of `requests` asks for, and hold the slots there.

    After a call its slots still say on the device where their rows ended, and nobody writes to the
    pages before the next call. Requests must ask for two new tokens at least. Raises UsageError
    where the engine is busy or closed.
    """
    machinery = engine.machinery
    batch = _full_batch(requests, machinery.max_batch_size)
    kind = max(kind_of(request.sampling) for request in batch)
    held = machinery.programs.state.tensors
    held.positions.zero_()
    engine.generate(batch)
    live = held.positions[: machinery.programs.tables.pad_slot].nonzero()[:, 0]
    contexts = tuple((held.positions[live] + 1).tolist())
    assert contexts, "no row was decoded"
    assert max(contexts) < engine.max_seq_length, "no room for a step"
    missing = machinery.runner.bucket(len(contexts), kind) - len(contexts)
    pad = live.new_full((missing,), machinery.programs.tables.pad_slot)
    return Standing(
        machinery=machinery,
        kind=kind,
        slots=torch.cat((live, pad)),
        contexts=contexts,
        steps=min(MOST_STEPS, engine.max_seq_length - max(contexts)),
        tokens=held.tokens.clone(),
        positions=held.positions.clone(),
    )


def _full_batch(requests: Sequence[Request], rows: int) -> list[Request]:
    """Return the first requests for `rows` samples in all, each with half its new tokens."""
    batch: list[Request] = []
    for request in requests:
        given = request.sampling
        half = max(given.max_new_tokens // 2, 1)
        cut = replace(given, n=min(given.n, rows), max_new_tokens=half, ignore_eos=True, stop=())
        batch.append(replace(request, sampling=cut))
        rows -= cut.n
        if not rows:
            break
    return batch
