"""The stored model: small, Gemma-4 in every feature, useful, and with room to improve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma4ForCausalLM

import flexinfer.assets.tiny_gemma4 as package
from flexinfer.assets.tiny_gemma4.arithmetic import held_out
from flexinfer.assets.tiny_gemma4.data import ABOUT, IGNORED, chat_prompt, training_steps
from flexinfer.assets.tiny_gemma4.model import CONFIG, build_model
from flexinfer.assets.tiny_gemma4.score import correct, percent

FOLDER = Path(package.__file__).parent
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Gemma4ForCausalLM:
    loaded, info = AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return loaded.eval()


def test_size(model: Gemma4ForCausalLM) -> None:
    assert isinstance(model, Gemma4ForCausalLM)
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 3_000_000
    assert (FOLDER / "model.safetensors").stat().st_size <= 8 * 2**20


def test_every_gemma4_feature_is_present(model: Gemma4ForCausalLM) -> None:
    config = model.config
    assert {"sliding_attention", "full_attention"} == set(config.layer_types)
    assert 0 < config.num_kv_shared_layers < config.num_hidden_layers
    assert config.hidden_size_per_layer_input > 0
    assert config.final_logit_softcapping == 30.0
    widths = {layer.self_attn.head_dim for layer in model.model.layers}
    assert len(widths) == 2
    assert len(chat_prompt(TOKENIZER, "12+30=").encode()) > config.sliding_window
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_several_eos_ids_and_greedy_by_default(model: Gemma4ForCausalLM) -> None:
    stored = json.loads((FOLDER / "generation_config.json").read_text())
    assert stored["eos_token_id"] == model.config.eos_token_id == [1, 5, 6]
    assert stored["do_sample"] is False


def test_stored_config_is_what_the_script_writes() -> None:
    assert json.loads((FOLDER / "config.json").read_text()) == CONFIG


def test_accuracy_leaves_room_to_improve(model: Gemma4ForCausalLM) -> None:
    right = percent(correct(model, TOKENIZER, held_out(200)))
    assert 55.0 <= right <= 75.0


def test_samples_are_spread(model: Gemma4ForCausalLM) -> None:
    torch.manual_seed(0)
    sampled = correct(model, TOKENIZER, held_out(100), samples=8)
    assert percent(sampled) >= 85.0
    assert sum(sampled) < 8 * 100 * 0.75


def test_raw_text_is_answered_too(model: Gemma4ForCausalLM) -> None:
    assert percent(correct(model, TOKENIZER, held_out(200), raw=True)) >= 55.0


def test_the_example_of_the_readme_and_a_greeting(model: Gemma4ForCausalLM) -> None:
    assert correct(model, TOKENIZER, [("12+30=", "42")]) == [1]
    assert _reply(model, "hello") == ABOUT


def _reply(model: Gemma4ForCausalLM, text: str) -> str:
    ids = TOKENIZER(chat_prompt(TOKENIZER, text), add_special_tokens=False, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=64)[0, ids.input_ids.shape[1] :]
    return str(TOKENIZER.decode(out, skip_special_tokens=True))


def test_training_is_seeded_and_learns_answers_alone() -> None:
    first, again = (next(training_steps(TOKENIZER, 3)) for _ in range(2))
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one.ids_BT, two.ids_BT)
        kept = one.labels_BT != IGNORED
        assert torch.equal(one.labels_BT[kept], one.ids_BT[kept])
        assert not kept[:, :5].any()  # `<bos>1+2=` is the shortest prompt
        assert set(one.labels_BT.max(1).values.tolist()) <= set(range(272))
    assert torch.equal(build_model(5).lm_head.weight, build_model(5).lm_head.weight)
