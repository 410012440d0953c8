"""Packing: one buffer a group, one copy in memory, edits and files seen from both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from flexinfer.config import ModelOptions
from flexinfer.models.layers import packed_view
from flexinfer.weights.load import load
from tests.support.oracle import hf_logits
from tests.support.tiny import FAMILIES
from tests.weights.folders import byte_tokenizer, save_folder

PROMPT = [1, 17, 300, 4, 99, 12, 7, 256, 31, 88]
PARTS = (("self_attn", ("q_proj", "k_proj", "v_proj")), ("mlp", ("gate_proj", "up_proj")))


def grouped(module: torch.nn.Module, kind: str = "weight") -> list[list[torch.Tensor]]:
    """Return the tensors of each group of two or more, read by name."""
    found = []
    for layer in module.model.layers:
        for block, names in PARTS:
            children = dict(layer.get_submodule(block).named_children())
            found.append([getattr(children[name], kind) for name in names if name in children])
    return [group for group in found if len(group) > 1]


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_lie_in_one_buffer_in_order(family: str, tmp_path: Path) -> None:
    module = load(ModelOptions(model=str(save_folder(family, tmp_path)))).module
    groups = grouped(module)
    owners = 4 if family == "gemma4" else len(module.model.layers)
    assert len(groups) == owners + len(module.model.layers)
    for group in groups:
        whole = packed_view(*group)
        assert whole is not None
        assert torch.equal(whole, torch.cat(group))
        assert all(weight.is_leaf and weight.is_contiguous() for weight in group)


def test_biases_are_packed_too(tmp_path: Path) -> None:
    folder = save_folder("llama", tmp_path, attention_bias=True)
    module = load(ModelOptions(model=str(folder))).module
    biases = [
        [layer.self_attn.q_proj.bias, layer.self_attn.k_proj.bias] for layer in module.model.layers
    ]
    assert all(packed_view(*pair) is not None for pair in biases)


def test_global_layers_without_a_value_projection_pack_queries_and_keys(tmp_path: Path) -> None:
    shape = {"num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_kv_shared_layers": 0}
    module = load(ModelOptions(model=str(save_folder("gemma4", tmp_path, **shape)))).module
    full = module.model.layers[2].self_attn
    assert full.v_proj is None
    assert packed_view(full.q_proj.weight, full.k_proj.weight) is not None


def test_an_edit_is_seen_from_both_sides(tmp_path: Path) -> None:
    module = load(ModelOptions(model=str(save_folder("qwen3", tmp_path)))).module
    group = grouped(module)[0]
    whole = packed_view(*group)
    assert whole is not None
    with torch.no_grad():
        group[1].add_(1.0)
        assert torch.equal(whole, torch.cat(group))
        whole[-1].fill_(5.0)
    assert bool((group[-1][-1] == 5.0).all())


def test_an_optimizer_step_stays_in_the_buffer(tmp_path: Path) -> None:
    module = load(ModelOptions(model=str(save_folder("llama", tmp_path)))).module
    whole = packed_view(*grouped(module)[0])
    assert whole is not None
    before = whole.detach().clone()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    module(input_ids=torch.tensor([PROMPT]), labels=torch.tensor([PROMPT])).loss.backward()
    optimizer.step()
    assert torch.equal(whole, torch.cat(grouped(module)[0]))
    assert not torch.equal(whole, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_saving_and_loading_still_work(family: str, tmp_path: Path) -> None:
    folder = save_folder(family, tmp_path / "in")
    module = load(ModelOptions(model=str(folder))).module
    with torch.no_grad():
        grouped(module)[0][1].mul_(1.5)
    module.save_pretrained(tmp_path / "out")
    byte_tokenizer().save_pretrained(tmp_path / "out")
    wanted = hf_logits(module, PROMPT)
    assert not torch.equal(wanted, hf_logits(AutoModelForCausalLM.from_pretrained(folder), PROMPT))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ours = load(ModelOptions(model=str(tmp_path / "out"))).module
    assert torch.equal(hf_logits(theirs, PROMPT), wanted)
    assert torch.equal(hf_logits(ours, PROMPT), wanted)


def test_load_state_dict_fills_the_buffer(tmp_path: Path) -> None:
    folder = save_folder("qwen3", tmp_path)
    module = load(ModelOptions(model=str(folder), load_format="dummy")).module
    whole = packed_view(*grouped(module)[0])
    assert whole is not None
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    module.load_state_dict(theirs.state_dict())
    assert torch.equal(whole, torch.cat(grouped(theirs)[0]))
