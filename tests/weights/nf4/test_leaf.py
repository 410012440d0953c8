"""4-bit leaves over bitsandbytes modules, and what a trainer does with these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flexinfer.errors import UsageError
from flexinfer.models.nf4 import nf4_leaf
from flexinfer.weights.digest import digest
from tests.support.oracle import hf_logits
from tests.weights.folders import save_folder
from tests.weights.nf4.models import PROMPT, ours, unpacked

bnb: Any = pytest.importorskip("bitsandbytes")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_leaf_is_its_module_in_16_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    name = str(dtype).removeprefix("torch.")
    module = ours(save_folder("qwen3", tmp_path), load_in_4bit=True, dtype=name).module
    linear = module.model.layers[0].mlp.down_proj
    leaf = nf4_leaf(linear)
    assert leaf.dtype == dtype == linear.compute_dtype
    reference = bnb.functional.dequantize_4bit(linear.weight.data, linear.weight.quant_state)
    assert torch.equal(leaf.weight(), reference)
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch.testing.assert_close(leaf(x), linear(x))


def test_forward_leaves_the_weights_alone(tmp_path: Path) -> None:
    module = ours(save_folder("qwen3", tmp_path), load_in_4bit=True).module
    before, places = digest(module), [p.data_ptr() for p in module.parameters()]
    hf_logits(module, PROMPT)
    assert digest(module) == before
    assert [p.data_ptr() for p in module.parameters()] == places
    module.to("cpu")
    assert [p.data_ptr() for p in module.parameters()] == places
    with torch.no_grad():
        module.model.layers[0].mlp.up_proj.weight.quant_state.absmax.add_(1)
    assert digest(module) != before


def test_lora_trains_over_it(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora.bnb import Linear4bit

    module = ours(save_folder("llama", tmp_path), load_in_4bit=True).module
    before = digest(module)
    model = get_peft_model(module, LoraConfig(r=4, target_modules="all-linear"))
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    assert type(layer) is Linear4bit
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    ids = torch.tensor([PROMPT])
    first = model(input_ids=ids, labels=ids).loss
    first.backward()
    optimizer.step()
    assert float(model(input_ids=ids, labels=ids).loss) < float(first)
    assert digest(module) == before
    assert torch.equal(nf4_leaf(layer.base_layer).packed, nf4_leaf(layer.base_layer.weight).packed)


def linear(**options: Any) -> Any:
    """Return a Linear4bit of bitsandbytes' own making, 128 to 32."""
    layer = bnb.nn.Linear4bit(128, 32, **{"quant_type": "nf4", **options})
    return layer.to("cpu")


def test_a_leaf_of_larger_blocks() -> None:
    weight = torch.randn(32, 128, generator=torch.Generator().manual_seed(1))
    own = bnb.nn.Params4bit(weight, blocksize=128, quant_type="nf4").to("cpu")
    leaf = nf4_leaf(own)
    assert leaf.absmax.shape == (32, 2)
    assert torch.equal(leaf.weight(), bnb.functional.dequantize_4bit(own.data, own.quant_state))


def test_a_leaf_has_the_modules_bias_and_compute_dtype() -> None:
    layer = linear(compute_dtype=torch.float64).requires_grad_(False)
    assert nf4_leaf(layer).dtype == torch.float64 != layer.weight.quant_state.dtype
    layer.compute_dtype = torch.float32
    leaf = nf4_leaf(layer)
    assert leaf.bias is not None
    assert leaf.bias.data_ptr() == layer.bias.data_ptr()
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(leaf(x), unpacked(layer)(x))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: linear(quant_type="fp4"), "quantised to fp4"),
        (lambda: nn.Linear(128, 32), "float32 without a quantisation state"),
        (
            lambda: bnb.nn.Params4bit(torch.ones(8, 32), quant_type="nf4").to("cpu"),
            "blocks of 64 over rows of 32",
        ),
    ],
)
def test_what_no_leaf_can_hold_is_named(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=rf"layers\.0\.q_proj .*{said}"):
        nf4_leaf(make(), "layers.0.q_proj")


def test_a_weight_repacked_for_the_cpu_is_refused() -> None:
    layer = linear()
    layer.weight.data, layer.weight.quant_state = bnb.functional._convert_weight_packed_for_cpu(
        layer.weight.data, layer.weight.quant_state
    )
    with pytest.raises(UsageError, match="repacked by bitsandbytes"):
        nf4_leaf(layer)
