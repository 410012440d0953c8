"""What an adapter makes of a base equals what PEFT makes of it, for every option PEFT has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, inject_adapter_in_model

from flexinfer.weights.adapters.folder import read_folder
from flexinfer.weights.adapters.live import read_live
from tests.support.tiny import tiny_gemma4, tiny_qwen3
from tests.weights.adapters.cases import (
    CASES,
    QV,
    Case,
    adapted,
    edit,
    merged_by_peft,
    merged_by_us,
    save,
    targets_of,
)


def close(ours: dict[str, torch.Tensor], peft: dict[str, torch.Tensor]) -> None:
    """Assert that two state dicts agree within the rounding of fp32, in every tensor."""
    assert ours.keys() == peft.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, peft[name], rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_folder_and_a_live_model_merge_as_in_peft(case: Case, tmp_path: Path) -> None:
    base, options = case.base(), case.options
    model = adapted(base, **options)
    folder = save(model, tmp_path)
    saved, live = read_folder(folder, targets_of(base)), read_live(model, targets_of(base))
    merged = merged_by_peft(base, folder)
    assert any(not torch.equal(merged[name], tensor) for name, tensor in base.state_dict().items())
    close(merged_by_us(base, saved), merged)
    close(merged_by_us(base, live), merged_by_peft(base, model))
    assert saved.sha() == live.sha()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_file_keeps_its_dtype_and_its_values(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    base = tiny_qwen3()
    folder = save(adapted(base), tmp_path)
    edit(folder, tensors=lambda held: {key: tensor.to(dtype) for key, tensor in held.items()})
    adapter = read_folder(folder, targets_of(base))
    assert {t.dtype for pair in adapter.pairs.values() for t in (pair.a, pair.b)} == {dtype}
    close(merged_by_us(base, adapter), merged_by_peft(base, folder))


def test_fp32_masters_on_a_bf16_base_stay_fp32() -> None:
    model = adapted(tiny_qwen3().bfloat16())
    adapter = read_live(model, targets_of(tiny_qwen3()))
    for name, pair in adapter.pairs.items():
        layer = model.get_submodule(f"base_model.model.model.{name}")
        assert pair.a.dtype == torch.float32
        delta = layer.get_delta_weight("default")
        torch.testing.assert_close(pair.scale * pair.b @ pair.a, delta, rtol=1e-6, atol=1e-7)


def test_a_live_adapter_shares_storage_and_leaves_the_model_alone() -> None:
    model = adapted(tiny_qwen3())
    before = {name: (p.data_ptr(), p.requires_grad) for name, p in model.named_parameters()}
    adapter = read_live(model, targets_of(tiny_qwen3()))
    pair = adapter.pairs["layers.0.mlp.up_proj"]
    layer = model.get_submodule("base_model.model.model.layers.0.mlp.up_proj")
    assert pair.a.data_ptr() == layer.lora_A["default"].weight.data_ptr()
    assert not pair.a.requires_grad
    assert not pair.b.requires_grad
    assert before == {name: (p.data_ptr(), p.requires_grad) for name, p in model.named_parameters()}


def test_of_several_adapters_the_active_one_is_read(tmp_path: Path) -> None:
    base = tiny_qwen3()
    model = adapted(base)
    config = LoraConfig(r=2, target_modules=QV, use_rslora=True, init_lora_weights=False)
    model.add_adapter("other", config)
    first = read_live(model, targets_of(base))
    model.set_adapter("other")
    other = read_live(model, targets_of(base))
    assert (len(first.pairs), first.rank) == (len(targets_of(base)), 4)
    assert (len(other.pairs), other.rank) == (8, 2)
    close(merged_by_us(base, other), merged_by_peft(base, model))
    save(model, tmp_path)
    assert read_folder(tmp_path / "other", targets_of(base)).sha() == other.sha()
    assert read_folder(tmp_path, targets_of(base)).sha() == first.sha()


def test_an_injected_adapter_is_read() -> None:
    base, injected = tiny_qwen3(), tiny_qwen3()
    config = LoraConfig(r=4, target_modules=QV, init_lora_weights=False)
    inject_adapter_in_model(config, injected, "mine")
    adapter = read_live(injected, targets_of(base))
    layer = injected.get_submodule("model.layers.3.self_attn.v_proj")
    ours = merged_by_us(base, adapter)["model.layers.3.self_attn.v_proj.weight"]
    layer.merge()
    torch.testing.assert_close(ours, layer.get_base_layer().weight, rtol=1e-6, atol=1e-6)
    assert len(adapter.pairs) == 8


def test_a_scale_that_was_set_by_hand_counts() -> None:
    base = tiny_qwen3()
    model = adapted(base)
    layer = model.get_submodule("base_model.model.model.layers.1.mlp.up_proj")
    layer.set_scale("default", 0.5)
    adapter = read_live(model, targets_of(base))
    close(merged_by_us(base, adapter), merged_by_peft(base, model))
    assert adapter.pairs["layers.1.mlp.up_proj"].scale == 0.75
    assert "scale 0.75 to 1.5" in adapter.notices[0]


def test_a_trainers_step_is_seen_in_a_live_adapter() -> None:
    model = adapted(tiny_qwen3())
    adapter = read_live(model, targets_of(tiny_qwen3()))
    before = adapter.sha()
    with torch.no_grad():
        model.get_submodule("base_model.model.model.layers.0.mlp.up_proj").lora_B.default.weight[
            0, 0
        ] += 1
    assert adapter.sha() != before


@pytest.mark.parametrize("shared", [2, 4])
def test_tensors_of_linear_maps_that_kv_sharing_layers_lack_are_noted(
    shared: int, tmp_path: Path
) -> None:
    base = tiny_gemma4(num_kv_shared_layers=shared)
    folder = save(adapted(base), tmp_path)
    lacking = [f"layers.{i}.self_attn.{x}_proj" for i in range(8 - shared, 8) for x in "kv"]
    assert not targets_of(base).keys() & set(lacking)

    def older(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for name in lacking:
            held[f"base_model.model.model.{name}.lora_A.weight"] = torch.ones(4, 64)
            held[f"base_model.model.model.{name}.lora_B.weight"] = torch.ones(32, 4)
        return held

    edit(folder, {"target_modules": "all-linear"}, older)
    adapter = read_folder(folder, targets_of(base))
    n = len(targets_of(base))
    assert adapter.notices[0].startswith(f"adapter: {n} of {n + 2 * shared} modules matched, rank")
    assert f"{2 * shared} modules are not in the text model" in adapter.notices[1]
    assert lacking[0] in adapter.notices[1]
    close(merged_by_us(base, adapter), merged_by_peft(base, folder))


def test_a_live_adapter_of_all_linear_invents_nothing_for_kv_sharing_layers() -> None:
    base = tiny_gemma4()
    adapter = read_live(adapted(base), targets_of(base))
    assert adapter.pairs.keys() == targets_of(base).keys()
    assert len(adapter.notices) == 1


def test_what_target_modules_does_not_name_is_left_out_as_in_peft(tmp_path: Path) -> None:
    base = tiny_qwen3()
    folder = edit(save(adapted(base), tmp_path), {"target_modules": QV})
    adapter = read_folder(folder, targets_of(base))
    assert len(adapter.pairs) == 8
    assert "target_modules does not name" in adapter.notices[1]
    close(merged_by_us(base, adapter), merged_by_peft(base, folder))


def test_the_order_of_patterns_is_that_of_the_file(tmp_path: Path) -> None:
    base = tiny_qwen3()
    folder = save(adapted(base), tmp_path)
    first = {"alpha_pattern": {".*": 2, "q_proj": 40}}
    second = {"alpha_pattern": {"q_proj": 40, ".*": 2}}
    for patterns, scale in ((first, 0.5), (second, 10.0)):
        adapter = read_folder(edit(folder, patterns), targets_of(base))
        assert adapter.pairs["layers.0.self_attn.q_proj"].scale == scale
        close(merged_by_us(base, adapter), merged_by_peft(base, folder))


def test_an_adapter_in_the_older_file_format_is_the_same(tmp_path: Path) -> None:
    base = tiny_qwen3()
    model = adapted(base)
    safe = read_folder(save(model, tmp_path / "safe"), targets_of(base))
    model.save_pretrained(tmp_path / "bin", safe_serialization=False)
    assert (tmp_path / "bin" / "adapter_model.bin").is_file()
    assert read_folder(tmp_path / "bin", targets_of(base)).sha() == safe.sha()


def test_a_folder_that_is_written_anew_does_not_change_an_adapter_in_use(tmp_path: Path) -> None:
    base = tiny_qwen3()
    adapter = read_folder(save(adapted(base), tmp_path), targets_of(base))
    before = adapter.sha()
    path = tmp_path / "adapter_model.safetensors"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(1000))
    assert adapter.sha() == before
    assert read_folder(tmp_path, targets_of(base)).sha() != before


def test_peft_itself_is_the_forward_of_what_is_read(tmp_path: Path) -> None:
    """The merged weights in the HF model give PEFT's logits, and not the base's."""
    base = tiny_gemma4()
    folder = save(adapted(base, use_rslora=True), tmp_path)
    adapter = read_folder(folder, targets_of(base))
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        plain = base(input_ids=ids, use_cache=False).logits
        peft = PeftModel.from_pretrained(tiny_gemma4(), folder)(input_ids=ids, use_cache=False)
        base.load_state_dict(merged_by_us(base, adapter))
        ours = base(input_ids=ids, use_cache=False).logits
    assert (ours - plain).abs().max() > 1e-3
    torch.testing.assert_close(ours, peft.logits, rtol=1e-3, atol=2e-3)
