"""Gemma-4 checkpoints with vision and audio: the text model alone is loaded, straight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma4AudioConfig,
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4VisionConfig,
)

from flexinfer.config import ModelOptions
from flexinfer.errors import UsageError
from flexinfer.weights.load import LoadedModel, load
from tests.support.oracle import hf_logits
from tests.support.tiny import tiny_gemma4
from tests.weights.folders import byte_tokenizer, edit_config
from tests.weights.live import LiveBytes

PROMPT = [4, 17, 300, 4, 99, 12, 7, 256, 31, 88, 401, 5]
VISION = {
    "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 64, "position_embedding_size": 64,
}  # fmt: skip
AUDIO = {"hidden_size": 64, "num_hidden_layers": 2, "output_proj_dims": 64}


@pytest.fixture
def shell(tmp_path: Path) -> Gemma4ForConditionalGeneration:
    """A multimodal model around the tiny text model, saved to tmp_path."""
    text = tiny_gemma4()
    config = Gemma4Config(
        text_config=text.config.to_dict(),
        vision_config=Gemma4VisionConfig(**VISION),
        audio_config=Gemma4AudioConfig(**AUDIO),
    )
    with torch.random.fork_rng():
        model = Gemma4ForConditionalGeneration(config).float().eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return model


def load_folder(folder: Path, **options: Any) -> LoadedModel:
    return load(ModelOptions(model=str(folder), **options))


def test_the_text_model_is_loaded_and_the_towers_are_not(
    shell: Gemma4ForConditionalGeneration, tmp_path: Path
) -> None:
    with LiveBytes() as live:
        loaded = load_folder(tmp_path)
    assert type(loaded.module) is Gemma4ForCausalLM
    torch.testing.assert_close(
        loaded.module.state_dict(), tiny_gemma4().state_dict(), rtol=0, atol=0
    )
    text = sum(parameter.numel() * 4 for parameter in loaded.module.parameters())
    towers = sum(parameter.numel() * 4 for parameter in shell.parameters()) - text
    assert towers > text
    assert live.peak < 1.5 * text
    assert [notice for notice in loaded.notices if "other towers left out" in notice]


def test_the_layer_scalars_come_from_the_checkpoint(
    shell: Gemma4ForConditionalGeneration, tmp_path: Path
) -> None:
    layers = load_folder(tmp_path).module.model.layers
    theirs = shell.model.language_model.layers
    assert [float(a.layer_scalar) for a in layers] == [float(b.layer_scalar) for b in theirs]
    assert {float(layer.layer_scalar) for layer in layers} != {1.0}


def test_stored_keys_of_layers_that_share_are_left_out_without_a_word(
    shell: Gemma4ForConditionalGeneration, tmp_path: Path
) -> None:
    before = load_folder(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("k_proj", "v_proj", "k_norm"):
        tensors[f"model.language_model.layers.6.self_attn.{name}.weight"] = torch.ones(4)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = load_folder(tmp_path)
    assert loaded.notices == before.notices
    assert torch.equal(hf_logits(loaded.module, PROMPT), hf_logits(before.module, PROMPT))


@pytest.mark.usefixtures("shell")
def test_a_multimodal_config_alone_gives_dummy_weights_of_the_text_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").unlink()
    module = load_folder(tmp_path, load_format="dummy").module
    assert type(module) is Gemma4ForCausalLM
    assert module.config.num_hidden_layers == 8
    assert module.config.eos_token_id == [1, 2, 3]


@pytest.mark.usefixtures("shell")
def test_a_multimodal_config_without_a_text_part_is_refused(tmp_path: Path) -> None:
    edit_config(tmp_path, text_config=None)
    with pytest.raises(UsageError, match="no text_config"):
        load_folder(tmp_path)


@pytest.mark.usefixtures("shell")
def test_the_outer_dtype_and_tying_count_for_the_text_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").unlink()
    edit_config(tmp_path, dtype="bfloat16")
    loaded = load_folder(tmp_path, load_format="dummy")
    assert any("stored as bfloat16" in notice for notice in loaded.notices)
    assert loaded.module.lm_head.weight is loaded.module.get_input_embeddings().weight


@pytest.mark.usefixtures("shell")
def test_what_is_saved_again_is_a_text_checkpoint_that_transformers_loads(tmp_path: Path) -> None:
    first = load_folder(tmp_path).module
    first.save_pretrained(tmp_path / "text")
    again = Gemma4ForCausalLM.from_pretrained(tmp_path / "text")
    assert torch.equal(hf_logits(again, PROMPT), hf_logits(first, PROMPT))
