"""One graph for all layers of a shape: no layer index, no weight is baked into a compiled block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from flexinfer.attention.spec import LayerSpec
from flexinfer.kernels.linear import Dense, Leaf
from flexinfer.models.catalog import build_decoder
from flexinfer.models.source import ModuleSource
from tests.support.packed import pack_projections
from tests.support.tiny import FAMILIES, tiny_gemma4
from tests.support.torch_compile import fresh_dynamo

GRAPHS = {"llama": 3, "qwen3": 3, "gemma4": 6}
"""Embed, head, and the block once a shape: Gemma has {sliding, full} x {own, shared}."""


@dataclass
class StaticLayer:
    """A traceable hole: attention within the step, without mask, over keys kept at an address."""

    k_TGD: Tensor
    v_TGD: Tensor
    scale: float

    def store(self, k_TGD: Tensor, v_TGD: Tensor) -> None:
        """Keep keys and values."""
        self.k_TGD.copy_(k_TGD)
        self.v_TGD.copy_(v_TGD)

    def __call__(self, q_THD: Tensor) -> Tensor:
        """Attend."""
        ratio = q_THD.shape[1] // self.k_TGD.shape[1]
        k, v = (x.repeat_interleave(ratio, 1) for x in (self.k_TGD, self.v_TGD))
        scores = torch.einsum("thd,shd->hts", q_THD, k) * self.scale
        return torch.einsum("hts,shd->thd", scores.softmax(-1), v)


@dataclass
class StaticAttend:
    """Holes for steps of `tokens` rows."""

    tokens: int
    store: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, spec: LayerSpec) -> StaticLayer:
        """Bind a layer to the keys and values it reads."""
        shape = (self.tokens, spec.kv_heads, spec.head_dim)
        new = torch.zeros(shape), torch.zeros(shape)
        return StaticLayer(*self.store.setdefault(spec.kv_layer, new), spec.scale)


def counting(graphs: list[int]) -> Callable[..., Callable[..., object]]:
    """Return a compile backend that runs graphs as they are and notes each one's input count."""

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(len(inputs))
        return graph.forward

    return backend


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_one_shape_share_a_graph(family: str, packed: bool) -> None:
    model, graphs = FAMILIES[family](), list[int]()
    if packed:
        pack_projections(model)
    decoder = build_decoder(model)
    wrap = functools.partial(torch.compile, backend=counting(graphs), fullgraph=True, dynamic=False)
    with fresh_dynamo(), torch.no_grad():
        compiled = decoder.transformed(wrap)
        for step in range(3):
            tokens = torch.arange(5) + step
            expected = decoder(tokens, tokens, StaticAttend(5))
            torch.testing.assert_close(compiled(tokens, tokens, StaticAttend(5)), expected)
        assert len(graphs) == GRAPHS[family]
        compiled(torch.arange(3), torch.arange(3), StaticAttend(3))
        assert len(graphs) == 2 * GRAPHS[family]


class LowRank(NamedTuple):
    """A leaf with a low-rank side path, as LoRA has it."""

    base: Dense
    down: Tensor
    up: Tensor

    @property
    def rows(self) -> int:
        """Number of outputs."""
        return self.base.rows

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        return self.base(x) + x @ self.down @ self.up


class LowRankSource(ModuleSource):
    """A source of such leaves; the side path is zero except in the down projection of layer 1."""

    def linear(self, name: str) -> Leaf:
        """Return `name` with a side path of rank 2."""
        base = super().linear(name)
        assert isinstance(base, Dense)
        down = torch.full((base.weight.shape[1], 2), 0.05 if "1.mlp.down" in name else 0.0)
        return LowRank(base, down, torch.ones(2, base.rows))


@pytest.mark.parametrize("family", FAMILIES)
def test_leaves_of_another_kind_share_a_graph_too(family: str) -> None:
    model, graphs, tokens = FAMILIES[family](), list[int](), torch.arange(5)
    plain, decoder = build_decoder(model), build_decoder(model, LowRankSource)
    wrap = functools.partial(torch.compile, backend=counting(graphs), fullgraph=True, dynamic=False)
    with fresh_dynamo(), torch.no_grad():
        expected = decoder(tokens, tokens, StaticAttend(5))
        found = decoder.transformed(wrap)(tokens, tokens, StaticAttend(5))
    torch.testing.assert_close(found, expected)
    assert len(graphs) == GRAPHS[family]
    assert not torch.allclose(expected, plain(tokens, tokens, StaticAttend(5)))


def test_aot_autograd_sees_one_graph_a_shape_too() -> None:
    decoder = build_decoder(tiny_gemma4())
    wrap = functools.partial(torch.compile, backend="aot_eager", fullgraph=True, dynamic=False)
    tokens = torch.arange(5)
    with fresh_dynamo() as counters, torch.inference_mode():
        found = decoder.transformed(wrap)(tokens, tokens, StaticAttend(5))
        torch.testing.assert_close(found, decoder(tokens, tokens, StaticAttend(5)))
        assert counters["stats"]["unique_graphs"] == GRAPHS["gemma4"]
        assert not counters["graph_break"]


def test_the_original_stays_as_it_is() -> None:
    decoder = build_decoder(tiny_gemma4())
    called: list[str] = []

    def wrap(function: Callable[..., object]) -> Callable[..., object]:
        def inner(*args: object) -> object:
            called.append(function.__name__)
            return function(*args)

        return inner

    tokens = torch.arange(5)
    copy = decoder.transformed(wrap)
    decoder(tokens, tokens, StaticAttend(5))
    assert not called
    copy(tokens, tokens, StaticAttend(5))
    assert called == ["embed", *["block"] * 8, "head"]
