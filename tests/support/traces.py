"""Watching what the capture of a prefill step changes, apart from scratch and the pad slot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.engine.engine import Engine
from flexinfer.engine.steps import prefill
from tests.support.engines import machinery


def held(engine: Engine) -> list[Tensor]:
    """Return copies of all pages but scratch, the page table, and what the slots hold."""
    programs = machinery(engine).programs
    pad, page, seen = programs.tables.pad_slot, programs.cache.page_size, programs.state.seen
    slots = [*programs.state.tensors, *([] if seen is None else [seen])]
    pools = [
        pool[:, :, page:]
        for spec in programs.decode_decoder.specs
        if spec.owns_kv
        for pool in programs.cache.layer(spec)
    ]
    tables = [programs.tables.table, programs.tables.logical]
    return [tensor.clone() for tensor in (*pools, *tables, *(slot[:pad] for slot in slots))]


def watch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets, for every capture from now on, how many tensors it changed."""
    real, changed = prefill.capture, []

    def capture(step: Any, pool: Any, stats: Any) -> Any:
        before = held(engine)
        captured = real(step, pool, stats)
        pairs = zip(before, held(engine), strict=True)
        changed.append(sum(not torch.equal(*pair) for pair in pairs))
        return captured

    monkeypatch.setattr(prefill, "capture", capture)
    return changed
