"""What tests of 4-bit models share: tiny models by flexinfer, and by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from flexinfer.config import ModelOptions
from flexinfer.errors import FlexinferError
from flexinfer.models.nf4 import is_4bit
from flexinfer.weights.load import LoadedModel, load
from flexinfer.weights.nf4.library import library
from tests.support.oracle import hf_logits
from tests.weights.folders import byte_tokenizer, save_folder

PROMPT = [4, 17, 300, 4, 99, 12, 7, 256, 31, 88, 401, 5]
SHAPE: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"attention_bias": True},
    "gemma4": {"hidden_size_per_layer_input": 64},
}
Q = "model.layers.1.self_attn.q_proj.weight"


def ours(folder: Path, **options: Any) -> LoadedModel:
    return load(ModelOptions(model=str(folder), **options))


def theirs(folder: Path, **changes: Any) -> PreTrainedModel:
    """Load by transformers, for a compute dtype of fp32, quantising where it is not yet."""
    options = {
        "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": torch.float32,
    }  # fmt: skip
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=BitsAndBytesConfig(**options | changes),
        dtype=torch.float32,
        attn_implementation="eager",
    )
    return unpacked(model)


def unpacked(model: PreTrainedModel) -> PreTrainedModel:
    """Keep bitsandbytes from rewriting weights for this CPU in the first forward."""
    for module in model.modules():
        if isinstance(module, library().nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
    return model.eval()


def quantised(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if is_4bit(p)}


def assert_same(found: PreTrainedModel, expected: PreTrainedModel) -> None:
    """Every tensor and statistic is the same, and so is the forward of transformers."""
    assert quantised(found).keys() == quantised(expected).keys() != set()
    left, right = found.state_dict(), expected.state_dict()
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
    torch.testing.assert_close(
        hf_logits(found, PROMPT), hf_logits(expected, PROMPT), atol=1e-4, rtol=1e-4
    )


def resaved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def refusal(kind: type[FlexinferError], folder: Path, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        ours(folder, **options)
    assert "\n" not in caught.value.message
    return f"{caught.value.message} | {caught.value.hint}"


def stored_folder(folder: Path) -> Path:
    """Make a checkpoint that transformers has stored in 4 bits, from one in `16` beside it."""
    save_folder("qwen3", folder / "16")
    return resaved(theirs(folder / "16"), folder / "4")
