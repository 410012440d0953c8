"""4-bit models: bit for bit what transformers loads, one weight at a time, in shared buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4VisionConfig,
)

from flexinfer.kernels.nf4 import stacked
from flexinfer.models.layers import packed_view
from flexinfer.models.nf4 import is_4bit, nf4_leaf
from tests.support.tiny import FAMILIES, tiny_gemma4
from tests.weights.folders import save_folder
from tests.weights.live import LiveBytes
from tests.weights.nf4.models import (
    SHAPE,
    assert_same,
    ours,
    quantised,
    resaved,
    stored_folder,
    theirs,
    unpacked,
)

bnb: Any = pytest.importorskip("bitsandbytes")
families = pytest.mark.parametrize("family", FAMILIES)


@families
def test_quantising_while_loading_is_what_transformers_does(family: str, tmp_path: Path) -> None:
    folder = save_folder(family, tmp_path, **SHAPE[family])
    loaded = ours(folder, load_in_4bit=True)
    assert_same(loaded.module, theirs(folder))
    count = len(quantised(loaded.module))
    assert f"4-bit: {count} linear maps as NF4, quantised while loading" in loaded.notices
    assert not is_4bit(loaded.module.lm_head.weight)


@families
@pytest.mark.parametrize("double", [True, False])
def test_a_stored_checkpoint_is_loaded_as_it_is(family: str, double: bool, tmp_path: Path) -> None:
    save_folder(family, tmp_path / "16", **SHAPE[family])
    skip = ["model.layers.0.mlp", "o_proj", "lm_head"]
    model = theirs(tmp_path / "16", bnb_4bit_use_double_quant=double, llm_int8_skip_modules=skip)
    loaded = ours(resaved(model, tmp_path / "4"))
    assert_same(loaded.module, model)
    assert type(loaded.module.model.layers[0].mlp.up_proj) is nn.Linear
    assert type(loaded.module.model.layers[1].self_attn.o_proj) is nn.Linear
    assert any("as stored" in notice for notice in loaded.notices)
    assert quantised(ours(tmp_path / "4", load_format="dummy").module).keys() == (
        quantised(model).keys()
    )


def test_stored_weights_are_dequantised_to_the_dtype_asked_for(tmp_path: Path) -> None:
    folder = stored_folder(tmp_path)
    fine, coarse = (ours(folder, dtype=d).module for d in ("float32", "bfloat16"))
    wide, narrow = (m.model.layers[0].mlp.up_proj.weight for m in (fine, coarse))
    assert narrow.quant_state.dtype == torch.bfloat16
    found = bnb.functional.dequantize_4bit(narrow.data, narrow.quant_state)
    expected = bnb.functional.dequantize_4bit(wide.data, wide.quant_state).bfloat16()
    assert torch.equal(found, expected)


def test_a_multimodal_checkpoint_gives_its_text_model(tmp_path: Path) -> None:
    text = tiny_gemma4(**SHAPE["gemma4"])
    vision = {
        "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64,
        "num_attention_heads": 2, "num_key_value_heads": 2, "position_embedding_size": 64,
    }  # fmt: skip
    config = Gemma4Config(
        text_config=text.config.to_dict(), vision_config=Gemma4VisionConfig(**vision)
    )
    with torch.random.fork_rng():
        shell = Gemma4ForConditionalGeneration(config).float().eval()
    shell.model.language_model.load_state_dict(text.model.state_dict())
    shell.save_pretrained(tmp_path / "16")
    options = {"bnb_4bit_use_double_quant": True, "bnb_4bit_quant_type": "nf4"}
    skip = ["lm_head", "model.vision_tower", "model.language_model.layers.1.mlp"]
    whole = Gemma4ForConditionalGeneration.from_pretrained(
        tmp_path / "16",
        dtype=torch.float32,
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, llm_int8_skip_modules=skip, **options
        ),
    )
    loaded = ours(resaved(whole, tmp_path / "4"))
    found, expected = loaded.module.model.state_dict(), whole.model.language_model.state_dict()
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    assert type(loaded.module.model.layers[1].mlp.up_proj) is nn.Linear
    assert loaded.module.lm_head.weight is loaded.module.get_input_embeddings().weight
    assert any("other towers left out" in notice for notice in loaded.notices)


@families
def test_bytes_of_a_group_lie_in_one_buffer_and_are_the_modules_own(
    family: str, tmp_path: Path
) -> None:
    module = ours(save_folder(family, tmp_path, **SHAPE[family]), load_in_4bit=True).module
    for layer in module.model.layers:
        attention = dict(layer.self_attn.named_children())
        names = [name for name in ("q_proj", "k_proj", "v_proj") if name in attention]
        for group in ([attention[n] for n in names], [layer.mlp.gate_proj, layer.mlp.up_proj]):
            leaves = [nf4_leaf(linear) for linear in group]
            whole = packed_view(*(leaf.packed for leaf in leaves))
            assert whole is not None
            assert all(
                leaf.packed.data_ptr() == linear.weight.data_ptr()
                for leaf, linear in zip(leaves, group, strict=True)
            )
            x = torch.randn(5, group[0].in_features, generator=torch.Generator().manual_seed(1))
            expected = torch.cat([linear(x) for linear in group], -1)
            biases = [leaf.bias for leaf in leaves if leaf.bias is not None]
            bias = packed_view(*biases) if biases else None
            assert (bias is None) == (not biases)
            found = stacked(leaves, whole, None, bias)(x)
            torch.testing.assert_close(found, expected.detach())


def test_dummy_weights_are_those_of_16_bits_quantised(tmp_path: Path) -> None:
    folder = save_folder("qwen3", tmp_path, hidden_size=512, intermediate_size=1024)
    plain = ours(folder, load_format="dummy").module
    with LiveBytes() as live:
        packed = ours(folder, load_format="dummy", load_in_4bit=True).module
    sizes = {name: p.numel() * 4 for name, p in plain.named_parameters()}
    weights = quantised(packed)
    kept = sum(size for name, size in sizes.items() if name not in weights)
    assert live.peak < kept + sum(sizes[name] for name in weights) / 6 + 3 * max(sizes.values())
    assert live.peak < sum(sizes.values()) / 2
    for name, tensor in packed.named_parameters():
        expected = plain.get_parameter(name)
        if name in weights:
            _, state = bnb.functional.quantize_4bit(
                expected.detach(), compress_statistics=True, quant_type="nf4"
            )
            assert torch.equal(tensor.quant_state.absmax, state.absmax)
            assert torch.equal(tensor, _)
        else:
            assert torch.equal(tensor, expected)


def test_saving_and_loading_still_work(tmp_path: Path) -> None:
    folder = save_folder("gemma4", tmp_path / "16", **SHAPE["gemma4"])
    first = ours(folder, load_in_4bit=True).module
    resaved(first, tmp_path / "4")
    again = unpacked(AutoModelForCausalLM.from_pretrained(tmp_path / "4", dtype=torch.float32))
    assert_same(ours(tmp_path / "4").module, first)
    assert_same(again, first)


def test_rows_that_hold_no_whole_blocks_stay_as_they_are(tmp_path: Path) -> None:
    module = ours(save_folder("gemma4", tmp_path), load_in_4bit=True).module
    assert type(module.model.layers[0].per_layer_projection) is nn.Linear
    assert is_4bit(module.model.layers[0].per_layer_input_gate.weight)
