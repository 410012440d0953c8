"""The plan's bytes are those of the real things: module, PEFT, optimizer, engine, autograd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from flexinfer.config import EngineConfig, LoraMode, ModelOptions
from flexinfer.engine.setup import set_up
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.batch import batch_plan
from flexinfer.tasks.grpo.plan.model import Outline, outline
from flexinfer.tasks.grpo.plan.passing import activation_bytes, kept_bytes, kv_of, layer_bytes
from flexinfer.tasks.grpo.plan.standing import (
    Inference,
    adapter_bytes,
    adapter_tensors,
    optimizer_bytes,
    weight_bytes,
)
from flexinfer.weights.adapters.choice import AdapterChoice
from flexinfer.weights.load import LoadedModel, load
from tests.support.tiny import FAMILIES, save_tiny

RANK = 4
DTYPES = ["float32", "bfloat16"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each family."""
    root = tmp_path_factory.mktemp("models")
    return {family: save_tiny(family, root / family) for family in FAMILIES}


def options(folder: Path, dtype: Any = "float32", **more: Any) -> ModelOptions:
    return ModelOptions(
        model=str(folder), load_format="dummy", dtype=dtype, device="cpu", **more
    )  # fmt: skip


def loaded(asked: ModelOptions) -> tuple[LoadedModel, Any]:
    """The loaded model and PEFT's over it, as train-grpo makes it."""
    model = load(asked)
    lora = LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    module: Any = model.module
    return model, get_peft_model(module, lora)


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors, those in the same memory once."""
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def trained(peft: nn.Module) -> list[Any]:
    return [p for p in peft.parameters() if p.requires_grad]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_the_loaded_modules(folders: dict[str, Path], family: str, dtype: str) -> None:
    asked = options(folders[family], dtype)
    module = load(asked).module
    whole = size([*module.parameters(), *module.buffers()])
    assert weight_bytes(outline(asked)) == whole


def quantised(module: nn.Module) -> Iterator[Tensor]:
    """What bitsandbytes keeps beside its packed weights."""
    for parameter in module.parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            yield from (state.absmax, state.code, state.offset)
            yield from (state.state2.absmax, state.state2.code)


@pytest.mark.parametrize("family", ["qwen3", "gemma4"])
def test_weights_in_4_bit_are_those_of_bitsandbytes(folders: dict[str, Path], family: str) -> None:
    asked = options(folders[family], load_in_4bit=True)
    module = load(asked).module
    found = [*module.parameters(), *module.buffers(), *quantised(module)]
    model = outline(asked)
    assert weight_bytes(model) == size(found)
    assert weight_bytes(model) < 0.9 * weight_bytes(outline(options(folders[family])))
    names = {n for n, p in module.named_parameters() if type(p).__name__ == "Params4bit"}
    assert {f"{name}.weight" for name in model.packed} == names


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_adapter_is_pefts_own_and_its_states_are_adamws(
    folders: dict[str, Path], family: str, dtype: str
) -> None:
    asked = options(folders[family], dtype)
    _, peft = loaded(asked)
    parameters, model = trained(peft), outline(asked)
    assert sorted(adapter_tensors(model, RANK)) == sorted(p.numel() for p in parameters)
    assert adapter_bytes(model, RANK) == size(parameters)
    optimizer = torch.optim.AdamW(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = [t for state in optimizer.state.values() for t in state.values()]
    assert optimizer_bytes(model, RANK, "adamw_torch") == size(states)
    assert adapter_bytes(model, RANK) == size(p.grad for p in parameters)


def test_states_in_8_bit_are_those_of_bitsandbytes() -> None:
    import bitsandbytes as bnb

    model = outline(ModelOptions(model="tiny-gemma4", device="cpu"))
    sizes = list(adapter_tensors(model, 32))
    parameters = [nn.Parameter(torch.ones(n)) for n in sizes]
    assert min(sizes) < 4096 < max(sizes)
    optimizer = bnb.optim.AdamW8bit(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = [
        t
        for state in optimizer.state.values()
        for name, t in state.items()
        if isinstance(t, Tensor) and not name.startswith("qmap")
    ]
    assert optimizer_bytes(model, 32, "adamw_8bit") == pytest.approx(size(states), rel=0.01)


@pytest.mark.parametrize("mode", ["merged", "runtime"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_keeps_what_is_planned(
    folders: dict[str, Path], family: str, mode: LoraMode, packed: bool
) -> None:
    asked = options(folders[family], load_in_4bit=packed)
    config = EngineConfig(max_batch_size=3, max_seq_length=50, page_size=8)
    model, peft = loaded(asked)
    setup = set_up(replace(model, adapter=AdapterChoice(peft, mode)), config)
    inference, weights = Inference(outline(asked), RANK, mode), setup.weights
    assert weights.weights is not None
    assert weights.adapter is not None
    held = [t for pair in weights.adapter.pairs.values() for t in (pair.a, pair.b)]
    scales = 0
    if packed:
        shared = [p.quant_state for p in model.module.parameters() if hasattr(p, "quant_state")]
        scales = sum(4 * state.absmax.numel() for state in shared)
    assert inference.n_bytes == weights.weights.n_bytes + size(held) + scales
    cache = setup.programs.cache
    kv = [t for s in weights.decoder.specs if s.owns_kv for t in cache.layer(s)]
    planned = kv_of(outline(asked), inference.decoder, config, 50)
    assert planned.wanted == size(kv)
    assert (planned.columns, planned.sequences) == (7, 3)


def test_the_mode_is_the_engines_choice(folders: dict[str, Path]) -> None:
    for packed, mode in ((False, "merged"), (True, "runtime")):
        asked = options(folders["qwen3"], load_in_4bit=packed)
        model, peft = loaded(asked)
        setup = set_up(replace(model, adapter=AdapterChoice(peft)), EngineConfig(max_batch_size=2))
        assert setup.weights.mode == Inference(outline(asked), RANK, None).mode == mode


@cache
def kept(family: str, dtype: torch.dtype, checkpointing: bool) -> float:
    """Bytes a token that autograd keeps of a training forward pass of 4 x 64 tokens."""
    module: Any = FAMILIES[family](attn_implementation="sdpa").to(dtype)
    if checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    peft: Any = get_peft_model(module, LoraConfig(r=RANK, target_modules="all-linear"))
    peft.enable_input_require_grads()
    peft.train()
    own = {t.untyped_storage().data_ptr() for t in (*peft.parameters(), *peft.buffers())}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            seen[memory.data_ptr()] = memory.nbytes()
        return tensor

    ids = torch.arange(256).view(4, 64)
    half = dtype != torch.float32
    with saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", dtype, enabled=half):
        out = module.model(ids, use_cache=False).last_hidden_state
    assert out.requires_grad
    return sum(seen.values()) / 256


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_forward_pass_keeps_is_near_what_autograd_keeps(
    folders: dict[str, Path], family: str, dtype: str, checkpointing: bool
) -> None:
    model = outline(options(folders[family], dtype))
    real = kept(family, model.dtype, checkpointing)
    assert 0.85 < kept_bytes(model, checkpointing) / real < 1.5


def test_checkpointing_pays_and_a_batch_costs(folders: dict[str, Path]) -> None:
    model: Outline = outline(options(folders["gemma4"]))
    config = GrpoConfig(per_device_batch_size=4, num_generations=4).filled("tiny-gemma4")
    one, two = (batch_plan(replace(config, per_device_batch_size=size), 32) for size in (4, 8))
    assert activation_bytes(model, two, False) == 2 * activation_bytes(model, one, False)
    assert activation_bytes(model, one, True) < activation_bytes(model, one, False)
    assert activation_bytes(model, one, True) > 2 * one.tokens_per_pass * max(layer_bytes(model))
