"""The digest sees every bit of every base tensor, and nothing that an adapter adds."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from flexinfer.weights import digest as module_under_test
from flexinfer.weights.digest import digest
from tests.support.tiny import tiny_gemma4, tiny_qwen3


def test_the_same_weights_have_the_same_digest() -> None:
    assert digest(tiny_qwen3()) == digest(tiny_qwen3())
    assert digest(tiny_qwen3()) != digest(tiny_qwen3(seed=1))


def test_one_bit_of_any_tensor_is_seen() -> None:
    model = tiny_gemma4()
    before = digest(model)
    for tensor in model.state_dict().values():
        bits = tensor.view(torch.int32).flatten()[-1:]
        bits.bitwise_xor_(1)
        assert digest(model) != before
        bits.bitwise_xor_(1)
    assert digest(model) == before


def test_an_untied_head_counts() -> None:
    tied = tiny_qwen3()
    loose = tiny_qwen3()
    loose.lm_head.weight = torch.nn.Parameter(tied.lm_head.weight.detach().clone())
    assert digest(loose) == digest(tied)
    with torch.no_grad():
        loose.lm_head.weight[0, 0] += 1
    assert digest(loose) != digest(tied)


def test_the_layout_in_memory_and_the_chunks_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_qwen3()
    before = digest(model)
    parameter = model.model.layers[0].mlp.up_proj.weight
    parameter.data = parameter.data.t().contiguous().t()
    monkeypatch.setattr(module_under_test, "CHUNK", 1000)
    assert digest(model) == before


def test_the_dtype_and_the_shape_count_where_the_bytes_are_equal() -> None:
    assert digest(tiny_qwen3()) != digest(tiny_qwen3().bfloat16())
    zeros = [torch.zeros(6, dtype=torch.bfloat16), torch.zeros(6, dtype=torch.float16)]
    zeros.append(torch.zeros(2, 3, dtype=torch.bfloat16))
    modules = [torch.nn.ParameterDict({"w": zero}) for zero in zeros]
    assert len({digest(module) for module in modules}) == 3


def test_an_adapter_does_not_count_but_a_merge_does() -> None:
    model = tiny_qwen3()
    before = digest(model)
    config = LoraConfig(target_modules="all-linear", init_lora_weights=False, r=4)
    wrapped = get_peft_model(model, config)
    assert digest(wrapped) == before
    wrapped.merge_adapter()
    assert digest(wrapped) != before
