"""What cannot be served exactly is refused by name, in one line, from folders and live models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

from flexinfer.errors import UsageError
from flexinfer.weights.adapters.folder import read_folder
from flexinfer.weights.adapters.live import read_live
from flexinfer.weights.adapters.options import HARMLESS, HONOURED, KNOWN, REFUSED
from tests.support.tiny import tiny_gemma4, tiny_qwen3
from tests.weights.adapters.cases import (
    QV,
    adapted,
    edit,
    merged_by_peft,
    merged_by_us,
    save,
    targets_of,
)

BASE = tiny_qwen3()
TARGETS = targets_of(BASE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(adapted(BASE), tmp_path)


def refusal(read: Callable[[], object]) -> str:
    """Return the message and the hint of the UsageError that `read` raises."""
    with pytest.raises(UsageError) as error:
        read()
    text = f"{error.value.message} / {error.value.hint}"
    assert "\n" not in text
    return text


def test_every_option_of_peft_is_known() -> None:
    assert set(LoraConfig().to_dict()) | {"runtime_config"} <= KNOWN
    assert not (HONOURED | REFUSED.keys()) & HARMLESS


def test_a_default_config_switches_nothing_on_that_is_refused() -> None:
    assert not any(LoraConfig().to_dict()[option] for option in REFUSED)


@pytest.mark.parametrize("option", sorted(REFUSED))
def test_an_option_that_is_not_served_is_refused_by_name(option: str, folder: Path) -> None:
    edit(folder, {option: {"x": 1} if option.endswith("config") else [1]})
    assert f"{option} is not supported" in refusal(lambda: read_folder(folder, TARGETS))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"peft_type": "ADALORA"}, "peft_type ADALORA"),
        ({"peft_type": None}, "no peft_type"),
        ({"use_something": True}, "the option use_something is not known"),
        ({"use_something": 3}, "the option use_something is not known"),
        ({"something": True}, "the option something is not known"),
        ({"something_config": {"a": 1}}, "the option something_config is not known"),
        ({"bias": "some"}, "bias is 'some'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' changed"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights 'pissa_niter_16' changed"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights 'OLoRA' changed"),
        ({"init_lora_weights": "corda"}, "init_lora_weights 'corda' changed"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights 'loftq' changed"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights 'lora_ga' changed"),
        ({"init_lora_weights": "new"}, "init_lora_weights 'new' changed"),
    ],
)
def test_options_that_are_not_served(options: dict[str, Any], said: str, folder: Path) -> None:
    assert said in refusal(lambda: read_folder(edit(folder, options), TARGETS))


@pytest.mark.parametrize(
    "options",
    [{"use_something": False}, {"something": None}, {"something": {}}, {"init_lora_weights": None}],
)
def test_unknown_options_that_are_off_say_nothing(options: dict[str, Any], folder: Path) -> None:
    assert len(read_folder(edit(folder, options), TARGETS).notices) == 1


def test_unknown_numbers_and_words_are_noted(folder: Path) -> None:
    adapter = read_folder(edit(folder, {"group_size": 16, "author": "me"}), TARGETS)
    assert "adapter: unknown options are ignored: author, group_size" in adapter.notices


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_an_initialisation_that_changed_its_base_would_be_wrong_on_the_base(
    init: str, tmp_path: Path
) -> None:
    """PEFT changes the base anew when it loads such a folder; live, the base is at hand."""
    model = adapted(BASE, init_lora_weights=init)
    folder = save(model, tmp_path)
    assert init in refusal(lambda: read_folder(folder, TARGETS))
    served = read_folder(edit(folder, {"init_lora_weights": True}), TARGETS)
    name = "model.layers.0.mlp.up_proj.weight"
    right = merged_by_peft(BASE, model)[name]
    assert (merged_by_us(BASE, served)[name] - right).abs().max() > 0.1
    changed = copy.deepcopy(model).unload()
    ours = merged_by_us(changed, read_live(model, TARGETS))[name]
    torch.testing.assert_close(ours, right, rtol=1e-6, atol=1e-6)


def test_an_initialisation_that_was_converted_at_save_is_a_plain_adapter(tmp_path: Path) -> None:
    model = adapted(BASE, init_lora_weights="olora")
    start = tmp_path / "start"
    torch.manual_seed(0)
    initial = get_peft_model(
        copy.deepcopy(BASE),
        LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", init_lora_weights="olora"),
    )
    initial.peft_config["default"].init_lora_weights = True
    initial.save_pretrained(start)
    right = merged_by_peft(BASE, model)
    model.save_pretrained(tmp_path / "out", path_initial_model_for_weight_conversion=str(start))
    ours = merged_by_us(BASE, read_folder(tmp_path / "out", TARGETS))
    for name, tensor in right.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("lm_head.weight", "whole weights beside LoRA"),
        ("model.embed_tokens.weight", "whole weights beside LoRA"),
        ("model.embed_tokens.lora_embedding_A", "LoRA on an embedding"),
        ("model.embed_tokens.token_adapter.trainable_tokens_delta", "trainable_token_indices"),
        ("model.layers.0.mlp.up_proj.lora_magnitude_vector", "DoRA"),
        ("model.layers.0.mlp.up_proj.lora_B.bias", "lora_bias"),
        ("model.layers.0.mlp.up_proj.lora_diag", "no tensor of LoRA"),
        ("model.layers.0.mlp.up_proj.lora_A.other.weight", "no tensor of LoRA"),
        ("model.layers.0.mlp.up_proj.bias", "is not where PEFT puts it"),
        ("model.layers.0.mlp.nothing.base_layer.bias", "has a bias but no lora_A"),
        ("model.layers.0.input_layernorm.bias", "is no linear map of the text model"),
    ],
)
def test_tensors_that_are_not_served(key: str, said: str, folder: Path) -> None:
    full = f"base_model.model.{key}"

    def with_key(held: dict[str, Tensor]) -> dict[str, Tensor]:
        return held | {full: torch.ones(4)}

    text = refusal(lambda: read_folder(edit(folder, tensors=with_key), TARGETS))
    assert said in text
    assert key.removesuffix(".base_layer.bias").removesuffix(".bias") in text


@pytest.mark.parametrize("read", ["folder", "live"])
def test_lora_on_the_head_is_refused(read: str, tmp_path: Path) -> None:
    model = adapted(BASE, target_modules=["lm_head", "q_proj"])
    folder = edit(save(model, tmp_path), tensors=lambda held: {
        key: tensor for key, tensor in held.items() if "lora_" in key
    })  # fmt: skip
    reads = {
        "folder": lambda: read_folder(folder, TARGETS),
        "live": lambda: read_live(model, TARGETS),
    }
    assert "LoRA on lm_head is not supported" in refusal(reads[read])


LIVE: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "use_dora is not supported"),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
    "tokens": ({"trainable_token_indices": [1, 2]}, "trainable_token_indices is not supported"),
    "embedding": ({"target_modules": ["embed_tokens", "q_proj"]}, "LoRA on embed_tokens"),
    "lora_bias": ({"lora_bias": True}, "lora_bias is not supported"),
    "kasa": ({"kasa_config": {"beta": 1e-4}}, "kasa_config is not supported"),
    "alora": ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is not supported"),
    "parameters": (
        {"target_modules": [], "target_parameters": ["up_proj.weight"]},
        "target_parameters is not supported",
    ),
}


@pytest.mark.parametrize("case", LIVE)
def test_live_options_that_are_not_served(case: str) -> None:
    options, said = LIVE[case]
    model = adapted(BASE, **options)
    assert said in refusal(lambda: read_live(model, TARGETS))


def test_a_live_variant_is_refused_even_if_its_config_hides_it() -> None:
    model = adapted(BASE, use_dora=True)
    model.peft_config["default"].use_dora = False
    assert "DoraLinearVariant on layers.0" in refusal(lambda: read_live(model, TARGETS))


def test_another_kind_of_layer_is_refused_by_its_name() -> None:
    model = adapted(BASE, target_modules=[], target_parameters=["up_proj.weight"])
    model.peft_config["default"].target_parameters = None
    assert "ParamWrapper" in refusal(lambda: read_live(model, TARGETS))
    convolution = nn.Sequential(nn.Conv1d(4, 4, 3))
    wrapped = get_peft_model(convolution, LoraConfig(target_modules=["0"]))
    assert "PEFT's Conv1d on 0" in refusal(lambda: read_live(wrapped, TARGETS))


def test_another_method_is_refused_by_its_name() -> None:
    config = IA3Config(target_modules=QV, feedforward_modules=[])
    model = get_peft_model(copy.deepcopy(BASE), config)
    assert "PEFT's peft.tuners.ia3.layer.Linear is not supported" in refusal(
        lambda: read_live(model, TARGETS)
    )


def test_another_method_beside_lora_is_refused_by_its_name() -> None:
    config = LoraConfig(target_modules=QV, trainable_token_indices=[1])
    model = get_peft_model(copy.deepcopy(BASE), config)
    config.trainable_token_indices = None
    assert "TrainableTokensLayer on base_model" in refusal(lambda: read_live(model, TARGETS))


def test_a_model_without_an_adapter_is_refused() -> None:
    assert "the model has no PEFT layers" in refusal(lambda: read_live(BASE, TARGETS))
    model = adapted(BASE)
    inner = model.get_submodule("base_model.model.model.layers.0")
    assert "is not on the model" in refusal(lambda: read_live(inner, TARGETS))


def test_merged_adapters_are_refused_even_of_another_name() -> None:
    model = adapted(BASE)
    model.merge_adapter()
    assert "default is merged into base_model" in refusal(lambda: read_live(model, TARGETS))
    model.unmerge_adapter()
    model.add_adapter("other", LoraConfig(target_modules=QV))
    model.merge_adapter(["other"])
    assert "other is merged into" in refusal(lambda: read_live(model, TARGETS))
    model.unmerge_adapter()
    assert read_live(model, TARGETS).rank == 4


def test_disabled_adapters_are_refused() -> None:
    model = adapted(BASE)
    with model.disable_adapter():
        assert "adapters are disabled" in refusal(lambda: read_live(model, TARGETS))
    assert read_live(model, TARGETS).rank == 4


def test_several_active_adapters_are_refused() -> None:
    model = adapted(BASE)
    model.add_adapter("other", LoraConfig(target_modules=QV))
    model.base_model.set_adapter(["default", "other"])
    text = refusal(lambda: read_live(model, TARGETS))
    assert "2 adapters are active: default, other / call set_adapter" in text


def test_dropout_of_a_model_in_training_is_noted() -> None:
    model = adapted(BASE, lora_dropout=0.1).train()
    assert any("lora_dropout 0.1" in line for line in read_live(model, TARGETS).notices)
    assert len(read_live(model.eval(), TARGETS).notices) == 1


def test_an_adapter_of_another_tower_is_noted_and_one_of_another_model_is_refused(
    folder: Path,
) -> None:
    def towers(held: dict[str, Tensor]) -> dict[str, Tensor]:
        tower = "base_model.model.model.vision_tower.encoder.layers.0.q_proj"
        return held | {f"{tower}.lora_{x}.weight": torch.ones(4, 4) for x in "AB"}

    adapter = read_folder(edit(folder, {"target_modules": "all-linear"}, towers), TARGETS)
    assert "1 module is not in the text model" in adapter.notices[1]
    gemma = {f"blocks.{name}": shape for name, shape in targets_of(tiny_gemma4()).items()}
    text = refusal(lambda: read_folder(folder, gemma))
    assert "none of its 29 modules is in the model" in text
    assert "the model has blocks.layers.0." in text


@pytest.mark.parametrize("prefix", ["", "model.", "module.base_model.model.model.", "_orig_mod."])
def test_extra_prefixes_do_not_matter(prefix: str, folder: Path) -> None:
    plain = read_folder(folder, TARGETS)

    def renamed(held: dict[str, Tensor]) -> dict[str, Tensor]:
        bare = {k.removeprefix("base_model.model.model."): t for k, t in held.items()}
        return {prefix + key.replace(".weight", ".default.weight"): t for key, t in bare.items()}

    assert read_folder(edit(folder, tensors=renamed), TARGETS).sha() == plain.sha()


def test_quantised_layers_are_read(tmp_path: Path) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    model = copy.deepcopy(BASE)
    for layer in model.model.layers:
        linear = layer.mlp.up_proj
        four = bnb.nn.Linear4bit(64, 128, bias=False, quant_type="nf4")
        four.load_state_dict(linear.state_dict())
        layer.mlp.up_proj = four.to("cpu")
    model.is_loaded_in_4bit = True
    config = LoraConfig(r=4, target_modules=["up_proj", "q_proj"], init_lora_weights=False)
    wrapped = PeftModel(model, config)
    assert type(wrapped.get_submodule("base_model.model.model.layers.0.mlp.up_proj")) is (
        peft.tuners.lora.bnb.Linear4bit
    )
    adapter = read_live(wrapped, TARGETS)
    assert len(adapter.pairs) == 8
    assert read_folder(save(wrapped, tmp_path), TARGETS).sha() == adapter.sha()
