"""A decode program of which every operation is recorded; the one it is made from is untouched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, cast

from torch import Tensor

from flexinfer.attention.kernel import AttentionKernels, RowKernel, TileKernel
from flexinfer.attention.spec import LayerSpec
from flexinfer.engine.programs import Feed, Programs
from flexinfer.engine.state import SlotTensors
from flexinfer.kernels.sampler import SamplerKind
from flexinfer.models.decoder import F, Walker, unchanged
from flexinfer.tasks.bench.profile.ops import ATTEND, RecordingOps
from flexinfer.tasks.bench.profile.record import Op, Recorder, size

Reach = Callable[[int | None], float]
"""reach(window): tokens that all rows of a step together attend to."""


def recorded(programs: Programs, recorder: Recorder, reach: Reach) -> Programs | None:
    """Return programs whose decode is recorded; None where its blocks are compiled as a whole."""
    decoder = programs.decode_decoder
    if programs.transform is not unchanged or not isinstance(decoder, Walker):
        return None
    return replace(
        programs,
        decode_decoder=decoder.with_ops(RecordingOps(decoder.ops, recorder)),
        kernels=RecordingKernels(programs.kernels, recorder, reach),
        transform=RecordingTransform(recorder),
        feed=_recorded_feed(programs.feed, recorder),
    )


@dataclass(frozen=True)
class RecordingKernels:
    """See attention.kernel.AttentionKernels: decode attention is recorded."""

    inner: AttentionKernels
    recorder: Recorder
    reach: Reach

    def row_mask(self, rows_BP: Tensor, positions_B: Tensor, window: int | None) -> Any:
        """See AttentionKernels."""
        return self.inner.row_mask(rows_BP, positions_B, window)

    def tile_mask(
        self, rows_NP: Tensor, positions_NQ: Tensor, logical: Tensor, window: int | None
    ) -> Any:
        """See AttentionKernels."""
        return self.inner.tile_mask(rows_NP, positions_NQ, logical, window)

    def tiles(self, spec: LayerSpec) -> TileKernel:
        """See AttentionKernels."""
        return self.inner.tiles(spec)

    def rows(self, spec: LayerSpec) -> RowKernel:
        """See AttentionKernels; reads queries, and of the cache what the rows attend to."""
        kernel = self.inner.rows(spec)
        sight = "" if spec.window is None else f", window {spec.window}"
        heads = f"{spec.heads}/{spec.kv_heads} heads of {spec.head_dim}{sight}"
        values = 2 * spec.kv_heads * spec.head_dim * self.reach(spec.window)

        def attend(q_BHD: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
            reads = size(q_BHD) + round(values * k.element_size())
            op = Op(ATTEND, f"{q_BHD.shape[0]} x {heads}", reads, layered=True)
            return self.recorder.run(op, lambda: kernel(q_BHD, k, v, mask))

        return attend


@dataclass(frozen=True)
class RecordingTransform:
    """See models.decoder.Transform: records the look-up before the decoder."""

    recorder: Recorder

    def __call__(self, function: F, /) -> F:
        """Return the recorded function; a look-up reads what it writes."""

        @wraps(function)
        def run(*given: Any) -> Any:
            result = self.recorder.run(Op("look-up", ""), lambda: function(*given))
            ops = self.recorder.ops
            ops[-2] = ops[-2]._replace(reads=ops[-2].writes)
            return result

        return cast(F, run)


def _recorded_feed(feed: Feed, recorder: Recorder) -> Feed:
    """Return the sampler, recorded."""

    def run(
        logits_BV: Tensor, slots_B: Tensor, positions_B: Tensor, state: SlotTensors,
        kind: SamplerKind,
    ) -> Tensor:  # fmt: skip
        given = (logits_BV, slots_B, positions_B, state, kind)
        return recorder.run(_sample(logits_BV), lambda: feed(*given))

    return run


def _sample(logits_BV: Tensor) -> Op:
    """Return the operation of sampling from logits."""
    return Op("sample", f"{logits_BV.shape[0]}x{logits_BV.shape[1]}", size(logits_BV))
