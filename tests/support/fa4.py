"""A stand-in for flash_attn.cute: its varlen function in plain torch, as strict as the real one.

What the real one reads beyond a sequence (the rest of its last page) this one reads too, and where
nothing was asked for its result is NaN.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.engine import fa4
from flexinfer.engine.engine import Engine
from flexinfer.engine.fa4 import Facts

HOPPER = Facts((9, 0), "4.0.0b36", "2.11.0+cu130", True)
Calls = list[dict[str, Any]]
KEPT = ("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR")


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    seqused_k: Tensor,
    page_table: Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int | None, int | None],
) -> tuple[Tensor, None]:
    """Return [T, H, D] and no log-sum-exp."""
    count, page = len(seqused_k), k.shape[1]
    for index in (cu_seqlens_q, seqused_k, page_table):
        assert index.dtype == torch.int32
        assert index.is_contiguous()
    assert cu_seqlens_q.shape == (count + 1,)
    assert page_table.shape[0] == count
    assert k.shape == v.shape
    assert q.dtype == k.dtype == v.dtype
    for tensor in (q, k, v):
        assert tensor.stride(-1) == 1
        assert all(stride * tensor.element_size() % 16 == 0 for stride in tensor.stride()[:-1])
    assert q.shape[1] % k.shape[2] == 0
    starts, seen = cu_seqlens_q.tolist(), seqused_k.tolist()
    assert starts == sorted(starts)
    assert starts[0] == 0
    out = torch.full_like(q, torch.nan)
    for entry, (start, end) in enumerate(pairwise(starts)):
        if start < end:
            assert end - start <= seen[entry] <= page_table.shape[1] * page, "a query sees nothing"
            pages = page_table[entry, : -(-seen[entry] // page)].long()
            keys, values = (x[pages].flatten(0, 1) for x in (k, v))
            mask = _mask(end - start, seen[entry], len(keys), causal, window_size)
            out[start:end] = _attend(q[start:end], keys, values, mask, softmax_scale)
    return out, None


def _mask(
    queries: int, seen: int, keys: int, causal: bool, window: tuple[int | None, int | None]
) -> Tensor:
    """Return what is seen, bool [queries, keys]: the last query stands at key `seen` - 1."""
    at, key = torch.arange(seen - queries, seen)[:, None], torch.arange(keys)
    left, right = window
    mask = (key < seen).expand(queries, keys)
    if causal:
        mask = mask & (key <= at)
    if left is not None:
        mask = mask & (key >= at - left)
    return mask if right is None else mask & (key <= at + right)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return [queries, H, D]; a masked value still counts zero times itself."""
    ratio = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(ratio, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)


def install(
    monkeypatch: pytest.MonkeyPatch, facts: Facts = HOPPER, function: Any = flash_attn_varlen_func
) -> Calls:
    """Let engines find the stand-in, on a device of these facts; return what it is called with."""
    calls: Calls = []

    def watched(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Any:
        calls.append({"q": q, "k": k, "v": v} | given)
        return function(q, k, v, **given)

    module = ModuleType("flash_attn.cute")
    module.__dict__["flash_attn_varlen_func"] = watched
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
    monkeypatch.setattr(fa4, "facts_of", lambda weight: facts)
    for name in KEPT:  # what the engine sets goes with the test
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return calls


def notice(engine: Engine) -> str:
    """Return what is said of FA4."""
    (said,) = [line for line in engine.notices if "fa4" in line.lower()]
    return said
