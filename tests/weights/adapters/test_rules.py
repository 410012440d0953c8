"""Which options apply to a module: PEFT's own functions decide, precedence and all."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

from flexinfer.errors import UsageError
from flexinfer.weights.adapters.names import relative_name, trained_name
from flexinfer.weights.adapters.rules import LoraRules

MODULES = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.10.self_attn.q_proj",
    "model.layers.1.self_attn.k_proj",
    "model.layers.0.mlp.up_proj",
    "model.language_model.layers.3.mlp.down_proj",
    "model.layers.1.mlp.experts.0.up_proj",
    "layers.0.self_attn.q_proj",
    "q_proj",
]
PATTERNS: list[dict[str, int]] = [
    {},
    {"q_proj": 2},
    {"_proj": 2, "proj": 3},
    {".*": 2, "q_proj": 3},
    {"q_proj": 3, ".*": 2},
    {"layers.0.self_attn.q_proj": 2, r"layers\.\d+\.self_attn\..*": 3},
    {"^model.layers.0.self_attn.q_proj": 2},
    {"^layers.0.self_attn.q_proj": 2, "^q_proj$": 5},
    {r"0\..*": 2},
    {"q_proj|up_proj": 2, "down_proj": 4},
    {r"layers.(0|1).*(?<!k_proj)": 2},
]
SELECTIONS: list[dict[str, Any]] = [
    {"target_modules": ["q_proj", "up_proj"]},
    {"target_modules": ["proj"]},
    {"target_modules": ["layers.0.self_attn.q_proj", "mlp.up_proj"]},
    {"target_modules": r".*layers\.\d\..*_proj"},
    {"target_modules": "q_proj"},
    {"target_modules": r"model\.layers\.0"},
    {"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["0.self_attn.q_proj"]},
    {"target_modules": ["q_proj", "up_proj"], "exclude_modules": r"model\.layers\.1\..*"},
    {"target_modules": ["q_proj", "up_proj"], "exclude_modules": []},
    {"target_modules": ["q_proj", "k_proj", "up_proj"], "layers_to_transform": 1},
    {"target_modules": ["q_proj", "k_proj", "up_proj"], "layers_to_transform": [0, 10]},
    {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": []},
    {"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    {"target_modules": ["up_proj"], "layers_to_transform": [0], "layers_pattern": "experts"},
    {"target_modules": ["up_proj"], "layers_to_transform": 0, "layers_pattern": ["h", "layers"]},
    {"target_modules": ["model.layers.10.self_attn.q_proj"], "layers_to_transform": [3]},
]


def rules(**options: Any) -> LoraRules:
    return LoraRules("folder", options)


@pytest.mark.parametrize("patterns", PATTERNS, ids=map(str, PATTERNS))
def test_rank_and_scale_follow_the_pattern_that_peft_would_take(patterns: dict[str, int]) -> None:
    for module, rslora in product(MODULES, (False, True)):
        value = patterns.get(get_pattern_key(list(patterns), module), 7)
        root = math.sqrt if rslora else float
        held = rules(r=7, lora_alpha=5, rank_pattern=patterns, use_rslora=rslora)
        assert held.rank(module) == value
        assert held.scale(module) == 5 / root(value)
        held = rules(r=4, lora_alpha=7, alpha_pattern=patterns, use_rslora=rslora)
        assert held.scale(module) == value / root(4)


def test_the_patterns_of_this_test_tell_rules_apart() -> None:
    picked = {tuple(get_pattern_key(list(p), m) for m in MODULES) for p in PATTERNS}
    assert len(picked) == len(PATTERNS) - 1  # "_proj" is no whole part of a name: as no pattern


@pytest.mark.parametrize("options", SELECTIONS, ids=map(str, SELECTIONS))
def test_modules_are_selected_as_in_peft(options: dict[str, Any]) -> None:
    config = LoraConfig(**options)
    for module in MODULES:
        assert rules(**options).selects(module) == bool(check_target_module_exists(config, module))


def test_the_selections_of_this_test_tell_rules_apart() -> None:
    picked = {tuple(rules(**o).selects(m) for m in MODULES) for o in SELECTIONS}
    assert len(picked) > len(SELECTIONS) // 2


def test_all_linear_and_no_targets_select_everything() -> None:
    assert all(rules(target_modules="all-linear").selects(m) for m in MODULES)
    assert all(rules().selects(m) for m in MODULES)
    assert not rules(target_modules="all-linear", exclude_modules=["q_proj"]).selects(MODULES[0])


def test_defaults_are_those_of_peft() -> None:
    assert (rules().rank("x"), rules().scale("x")) == (LoraConfig().r, 1.0)
    assert LoraConfig().lora_alpha / LoraConfig().r == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"r": 0}, "r of x is 0"),
        ({"r": -1}, "r of x is -1"),
        ({"r": 1.5}, "r of x is 1.5"),
        ({"r": "8"}, "r of x is '8'"),
        ({"r": None}, "r of x is None"),
        ({"r": True}, "r of x is True"),
        ({"rank_pattern": {"x": 0}}, "r of x is 0"),
        ({"rank_pattern": {"x": [1]}}, "rank_pattern of x is [1]"),
        ({"rank_pattern": ["x"]}, "rank_pattern is no object"),
        ({"lora_alpha": float("nan")}, "lora_alpha of x is nan"),
        ({"lora_alpha": "16"}, "lora_alpha of x is '16'"),
        ({"alpha_pattern": {"(": 3}}, "'(.*\\\\.)?(()$' is no regular expression"),
        ({"target_modules": "*"}, "'*' is no regular expression"),
        ({"target_modules": 3}, "target_modules is neither a list"),
        ({"target_modules": [3]}, "target_modules is no list of names"),
        ({"exclude_modules": "["}, "'[' is no regular expression"),
    ],
)
def test_what_cannot_be_followed_is_said_in_one_line(options: dict[str, Any], said: str) -> None:
    held = rules(**options)
    with pytest.raises(UsageError) as error:
        assert held.selects("x") and held.scale("x")  # noqa: PT018 - either may raise
    assert said in error.value.message
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("name", "trained", "relative"),
    [
        ("base_model.model.model.layers.0.q", "model.layers.0.q", "layers.0.q"),
        ("module.base_model.model.model.layers.0.q", "model.layers.0.q", "layers.0.q"),
        ("base_model.model.module.model.layers.0.q", "model.layers.0.q", "layers.0.q"),
        ("base_model.model.layers.0.q", "layers.0.q", "layers.0.q"),
        ("layers.0.q", "layers.0.q", "layers.0.q"),
        ("model.layers.0.q", "model.layers.0.q", "layers.0.q"),
        (
            "base_model.model.model.language_model.layers.0.q",
            "model.language_model.layers.0.q",
            "layers.0.q",
        ),
        (
            "base_model.model.language_model.model.layers.0.q",
            "language_model.model.layers.0.q",
            "layers.0.q",
        ),
        ("_orig_mod.base_model.model.model.layers.0.q", "model.layers.0.q", "layers.0.q"),
        ("base_model.model.model.layers.0._orig_mod.q", "model.layers.0.q", "layers.0.q"),
        ("base_model.model.lm_head", "lm_head", "lm_head"),
        ("model.vision_tower.layers.0.q", "model.vision_tower.layers.0.q",
         "vision_tower.layers.0.q"),
    ],
)  # fmt: skip
def test_names_are_freed_from_wrappers(name: str, trained: str, relative: str) -> None:
    assert (trained_name(name), relative_name(name)) == (trained, relative)
