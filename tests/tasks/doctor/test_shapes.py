"""Parameters and cache counted from a config, against the model itself, for every family."""

import json

import pytest
import torch

from flexinfer.tasks.doctor.facts.shapes import shapes
from flexinfer.tasks.doctor.target import text_part
from flexinfer.weights import families
from flexinfer.weights.names import ALIASES, config_file, tiny_folder
from tests.support.tiny import FAMILIES


def count(model) -> tuple[int, int, int]:
    """Return (parameters, weights of linear layers but the head, elements adapters may change)."""
    named = dict(model.named_parameters())
    kinds = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    linear = {n: named[f"{n}.weight"].numel() for n in kinds if n != "lm_head"}
    projections = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    targets = sum(size for n, size in linear.items() if n.endswith(projections))
    return sum(p.numel() for p in named.values()), sum(linear.values()), targets


def counted(config) -> tuple[int, int, int]:
    made = shapes(config)
    return made.parameters, made.linear, made.targets


@pytest.mark.parametrize("alias", [alias for alias in ALIASES if alias != "tiny-gemma4"])
def test_every_embedded_config(alias):
    raw = text_part(json.loads(config_file(alias).read_text()))
    config = families.text_config(raw, alias)
    with torch.device("meta"):
        model = families.causal_lm(config)(config)
    assert counted(raw) == count(model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_tiny_models_as_they_are_saved(family, tied, tmp_path):
    """A saved config differs from a published one: Gemma-4's head dims stand layer by layer."""
    extra = {} if family == "gemma4" else {"attention_bias": not tied}
    extra |= {"mlp_bias": not tied} if family == "llama" else {}
    model = FAMILIES[family](tie_word_embeddings=tied, **extra)
    model.config.save_pretrained(tmp_path)
    assert counted(json.loads((tmp_path / "config.json").read_text())) == count(model)


def test_shared_values_and_global_heads():
    """The larger dense Gemma-4: values are the keys, and full layers have kv heads of their own."""
    model = FAMILIES["gemma4"](
        attention_k_eq_v=True, num_global_key_value_heads=1, use_double_wide_mlp=False
    )
    raw = model.config.to_dict()
    assert counted(json.loads(json.dumps(raw))) == count(model)


def test_the_embedded_model_s_own_config():
    raw = json.loads((tiny_folder() / "config.json").read_text())
    config = families.text_config(raw, "tiny")
    assert counted(raw) == count(families.causal_lm(config)(config))


@pytest.mark.parametrize(
    ("alias", "kv_bytes"),
    [("gemma-4-E2B-it", 18432), ("qwen3-4b", 147456), ("llama-3.2-3b-instruct", 114688)],
)
def test_cache_bytes_per_token(alias, kv_bytes):
    assert (
        shapes(text_part(json.loads(config_file(alias).read_text()))).kv_per_token * 2 == kv_bytes
    )
