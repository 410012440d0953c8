"""4-bit weights on CUDA: products to the bit, and whole engines against what the weights stand for.

bitsandbytes must be installed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.engine.engine import Engine
from flexinfer.kernels.fast.nf4.lora import nf4_lora_matmul
from flexinfer.kernels.fast.nf4.tile import untuned
from flexinfer.kernels.nf4 import CODE, Nf4
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.load import load
from tests.support.cuda import LIMITS, WIDE
from tests.support.engines import OVERRIDES, complete, logprobs_by, logprobs_of
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES
from tests.weights.folders import byte_tokenizer

pytestmark = pytest.mark.gpu
OUTPUTS, INPUTS = 512, 1024
MANY = prompts_of(*range(2, 66, 2))
NEW = 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("ranks", [8, 96])
@pytest.mark.parametrize("rows", [1, 8, 16, 32, 64])
def test_beside_ranks_no_weight_changes(rows: int, ranks: int, dtype: torch.dtype) -> None:
    """One input a row is 1, so each product is one weight, or one number of A."""
    draw = torch.Generator().manual_seed(0)
    packed = torch.randint(256, (OUTPUTS, INPUTS // 2), generator=draw).to(torch.uint8).cuda()
    absmax = (torch.rand(OUTPUTS, INPUTS // 64, generator=draw) + 0.5).cuda()
    leaf = Nf4(packed, absmax, torch.tensor(CODE).cuda(), dtype)
    a = torch.randn(ranks, INPUTS, generator=draw).to(dtype).cuda()
    x = torch.eye(INPUTS, dtype=dtype, device="cuda")[:: INPUTS // rows].contiguous()
    tile = untuned(rows, OUTPUTS, INPUTS, split=True)
    assert tile is not None
    found = nf4_lora_matmul(x, leaf, a, tile).sum(0).to(dtype)
    both = torch.cat((leaf.weight(), a)).T[:: INPUTS // rows]
    assert torch.equal(found, both)


def folder_of(family: str, folder: Path) -> Path:
    """Write a checkpoint whose weights are bf16 numbers, in shapes that the own kernels take."""
    extra = {"global_head_dim": 128, "hidden_size_per_layer_input": 64}
    wide = dict(OVERRIDES.get(family, {})) | dict(WIDE) | (extra if family == "gemma4" else {})
    FAMILIES[family](**wide).to(torch.bfloat16).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def exact_of(folder: Path, packed: Any) -> Any:
    """Return the model in fp32 with the numbers that 4-bit weights stand for."""
    from bitsandbytes.functional import dequantize_4bit

    options = ModelOptions(model=str(folder), dtype="float32", device="cuda")
    module: Any = load(options).module
    held = dict(packed.named_parameters())
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            state = getattr(held[name], "quant_state", None)
            if state is not None:
                parameter.copy_(dequantize_4bit(held[name].data, state))
    return module


@pytest.mark.parametrize("adapter", [None, "random:8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_is_as_near_as_bf16_can_be(
    family: str, adapter: str | None, tmp_path: Path
) -> None:
    """The trainer's own distance in bf16, on the same tokens, is the yardstick.

    See test_adapters_cuda for 1.5. An adapter has an effect; refreshed to one of scale zero, its
    side path runs and adds nothing.
    """
    folder = folder_of(family, tmp_path)
    options = ModelOptions(model=str(folder), load_in_4bit=True, dtype="bfloat16", device="cuda")
    loaded = load(options)
    given = replace(loaded, adapter=AdapterChoice(adapter) if adapter else None)
    config = EngineConfig(attention="triton", **dict(LIMITS))
    with Engine(given, config) as engine:
        found = complete(engine, MANY, max_new_tokens=NEW)
        told = logprobs_of(found)
        if adapter:
            again = complete(engine, MANY, max_new_tokens=NEW)
            assert again == found
            before = told
            engine.refresh(replace(engine.machinery.weights.adapter, pairs=zeroed(engine)))
            found = complete(engine, MANY, max_new_tokens=NEW)
            told = logprobs_of(found)
            assert not torch.equal(told, before), "the adapter has no effect"
    exact = logprobs_by(exact_of(folder, loaded.module), MANY, found)
    allowed = float((logprobs_by(loaded.module, MANY, found) - exact).abs().mean())
    gap = float((told - exact).abs().mean())
    assert gap < 1.5 * allowed + 0.01, (gap, allowed)


def zeroed(engine: Engine) -> Any:
    """Return the adapter's pairs with a scale of zero: the side path runs and adds nothing."""
    adapter = engine.machinery.weights.adapter
    assert adapter is not None
    return {name: pair._replace(scale=0.0) for name, pair in adapter.pairs.items()}
