"""Recorded operations: they return what the inner ones return, and their bytes are exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.kernels.heads import HeadNorms
from flexinfer.kernels.linear import Dense, Separate
from flexinfer.kernels.ops import PlainOps
from flexinfer.kernels.rope import Rope
from flexinfer.tasks.bench.profile.programs import QKV, WHOLE, WRITE, RecordingOps, recorded
from flexinfer.tasks.bench.profile.record import OTHER, Op, Recorder, size
from flexinfer.tasks.bench.profile.standing import Standing, stand
from tests.support.engines import make_engine, request, tiny
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES, VOCAB

T, E, D, G, H, INNER, P = 3, 64, 16, 2, 4, 128, 8
"""Rows, and sizes of the tiny models."""
WORD = 4
"""Bytes of a value: tiny models are fp32."""
families = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture
def held(family: str) -> Iterator[Standing]:
    """A batch of three rows at contexts 11, 15 and 23, in the middle of decoding."""
    with make_engine(family, max_batch_size=3) as engine:
        given = {"max_new_tokens": 12, "temperature": 1.0, "seed": 1}
        yield stand(engine, [request(p, **given) for p in prompts_of(5, 9, 17, 3)])


def ops_of(held: Standing) -> list[Op]:
    """Take one recorded step; return its operations without what lies between."""
    marks: list[int] = []
    recorder = Recorder(lambda: marks.append(1))
    program = recorded(held.machinery.programs, recorder, lambda window: held.reach(window, 0, 1))
    assert program is not None
    held.restore()
    with torch.no_grad():
        program.decode(held.slots, held.kind, held.columns)
    assert len(marks) == len(recorder.ops)
    return [op for op in recorder.ops if op != OTHER]


@families
def test_a_recorded_step_is_the_step(held: Standing) -> None:
    programs, recorder = held.machinery.programs, Recorder(lambda: None)
    program = recorded(programs, recorder, lambda window: 0.0)
    assert program is not None
    found = []
    for each in (programs, program):
        held.restore()
        with torch.no_grad():
            steps = [each.decode(held.slots, held.kind, held.columns).clone() for _ in range(3)]
        found.append(torch.stack(steps))
    assert torch.equal(*found)
    assert len(found[0][:, 0].unique()) > 1


def parameters(family: str) -> int:
    """Count the bytes of what a step reads whole, from the module."""
    model = tiny(family)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    total = 0
    for name, parameter in model.named_parameters():
        gathered = "embed_tokens_per_layer" in name or ("embed_tokens." in name and not tied)
        # layers 4 to 7 of the tiny Gemma read the KV of earlier ones
        shared = family == "gemma4" and any(
            f"layers.{i}.self_attn.{p}_" in name for i in (4, 5, 6, 7) for p in "kv"
        )
        total += 0 if gathered or shared else parameter.numel() * WORD
    return total


def llama_values() -> int:
    """Count the values that a step of four layers moves beside weights and the KV it reads."""
    layer = 12 * T * E + 4 * T * H * D + 2 * T * G * D + 2 * T * D + 2 * T * INNER
    ends = 3 * T * E + 2 * T * D + D // 2 + T * E + 2 * T * VOCAB + 3 * T
    return 4 * layer + ends


def gemma_values() -> int:
    """Count the same for Gemma: layers S S F S, then S F S F without KV and twice as wide."""
    total = 0
    for index, full in enumerate([0, 0, 1, 0, 0, 1, 0, 1]):
        dim, inner = (32 if full else D), (2 * INNER if index > 3 else INNER)
        total += 3 * T * H * dim + 2 * T * dim + (2 * T * G * dim if index < 4 else 0)
        total += T * E + T * H * dim + T * E + 4 * T * E + T * E + 2 * T * inner + T * E
        total += 3 * T * E + T * E + 2 * T * P + T * P + T * E + 4 * T * E + 1
    ropes = sum(2 * T * dim + dim // 2 for dim in (D, 32))
    per_layer = T * E + 4 * T * 8 * P
    return total + 3 * T * E + ropes + per_layer + T * E + 2 * T * VOCAB + 3 * T


IDS: dict[str, int] = {"qwen3": 2, "llama": 2, "gemma4": 4}
"""How often a step reads its int64 tokens or positions."""


def kv_read(family: str) -> int:
    """Count the KV values read: contexts 11, 15 and 23, windows of 8."""
    if family != "gemma4":
        return 4 * 2 * G * D * (11 + 15 + 23)
    return 5 * 2 * G * D * (8 + 8 + 8) + 3 * 2 * G * 32 * (11 + 15 + 23)


@families
def test_bytes_are_those_of_parameters_kv_and_activations(family: str, held: Standing) -> None:
    assert sorted(held.contexts) == [11, 15, 23]
    found = sum(op.reads + op.writes for op in ops_of(held) if op.name != "look-up")
    values = gemma_values() if family == "gemma4" else llama_values()
    expected = parameters(family) + WORD * (values + kv_read(family)) + IDS[family] * 8 * T
    assert found == expected


def test_names_in_order() -> None:
    with make_engine("gemma4", max_batch_size=2) as engine:
        held = stand(engine, [request(p, max_new_tokens=4) for p in prompts_of(5, 9)])
        ops = ops_of(held)
    layer = [
        WHOLE, "attention", "o product", "norm, add, norm", "gate, up, act", "down product",
        "norm, add", "per-layer gate", "per-layer out", "norm, add, norm",
    ]  # fmt: skip
    first = ["look-up", "embed, norm", "rope tables", "rope tables", "product once a step"]
    assert ops[0].reads == ops[0].writes > 0
    assert [op.name for op in ops] == [*first, "per-layer inputs", *layer * 8, "head", "sample"]


class Paged(PlainOps):
    """Takes the addresses after the product, as the fast form does."""

    def heads(self, x: Tensor, group: Any, head_dim: int, norms: Any, rope: Any, kv: Any) -> Tensor:
        kv.paged()
        return super().heads(x, group, head_dim, norms, rope, kv)


class Store:
    """Remembers that it was used."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def store(self, k: Tensor, v: Tensor, /) -> None:
        self.calls.append("store")

    def paged(self) -> Any:
        self.calls.append("paged")
        return ()


def test_heads_are_two_operations_where_addresses_are_taken_between_them() -> None:
    recorder, store = Recorder(lambda: None), Store()
    weights = [Dense(torch.randn(rows, 6)) for rows in (8, 4, 4)]
    rope = Rope(torch.randn(3, 4), torch.randn(3, 4))
    given = (torch.randn(3, 6), Separate(tuple(weights)), 4, HeadNorms(None, None, False, 0, False))
    found = RecordingOps(Paged(), recorder).heads(*given, rope, store)
    assert torch.equal(found, PlainOps().heads(*given, rope, Store()))
    assert store.calls == ["paged", "store"]
    raw = 4 * 3 * 16
    assert recorder.ops == [
        Op(QKV, "3x6 -> 8+4+4", 4 * (3 * 6 + 16 * 6), raw, True),
        Op(WRITE, "8+4+4", 4 * 2 * 3 * 4 + raw, 4 * (3 * 8 + 2 * 3 * 4), True),
        OTHER,
    ]


def test_a_tensor_counts_once() -> None:
    x = torch.zeros(2, 3, dtype=torch.bfloat16)
    assert size(x, (x, None, (x.clone(), 7))) == 12 + 12
