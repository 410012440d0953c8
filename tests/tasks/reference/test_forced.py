"""The reference of output gate and verify-drift: the full forward in a wider dtype, its noise."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from flexinfer.tasks.reference import forced
from flexinfer.tasks.reference.forced import Widened, teacher_forced
from flexinfer.tasks.reference.samples import Checked
from tests.support.engines import tiny
from tests.support.oracle import hf_logits
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES, VOCAB, tiny_gemma4


def in_bfloat16(family: str) -> PreTrainedModel:
    return copy.deepcopy(tiny(family)).bfloat16()


def samples_of(*lengths: int, new: int = 5) -> list[Checked]:
    """Make samples of random tokens: prompts of those lengths, `new` tokens each."""
    ids = [tuple(prompt) for prompt in prompts_of(*(length + new for length in lengths))]
    return [Checked(row[:-new], row[-new:], (0.0,) * new) for row in ids]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_is_the_whole_forward_in_a_wider_dtype(family: str, attention: str) -> None:
    module = FAMILIES[family](attn_implementation=attention).bfloat16()
    wide = copy.deepcopy(module).float()
    samples = samples_of(1, 17, 30)
    reference = teacher_forced(module, samples)
    for sample, scores, own in zip(samples, *reference[:2], strict=True):
        rows, plain = (
            hf_logits(model, [*sample.prompt, *sample.token_ids])[len(sample.prompt) - 1 : -1]
            for model in (wide, module)
        )
        ids = torch.tensor(sample.token_ids)[:, None]
        top, chosen = rows.topk(2).values, rows.gather(1, ids)[:, 0]
        best, margin, behind, logprob = (list(column) for column in zip(*scores, strict=True))
        assert best == rows.argmax(-1).tolist()
        for found, expected in (
            (margin, top[:, 0] - top[:, 1]),
            (behind, top[:, 0] - chosen),
            (logprob, chosen - rows.logsumexp(-1)),
            (own, plain.log_softmax(-1).gather(1, ids)[:, 0]),
        ):
            torch.testing.assert_close(torch.tensor(found), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_module_is_left_alone_and_projects_few_rows(family: str) -> None:
    module = FAMILIES[family]()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    shapes: list[tuple[int, ...]] = []
    hook = module.lm_head.register_forward_hook(lambda m, i, out: shapes.append(tuple(out.shape)))
    state = torch.random.get_rng_state()
    teacher_forced(module, samples_of(40, 60))
    assert torch.equal(state, torch.random.get_rng_state())
    hook.remove()
    assert shapes == [(1, 6, VOCAB)] * 4
    assert not module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_widened_arithmetic_never_becomes_narrow_again() -> None:
    narrow = torch.full((3,), 1 / 3, dtype=torch.bfloat16)
    with Widened(torch.float64):
        made = (narrow * 1, narrow.to(torch.float32), torch.zeros(2, dtype=torch.bfloat16))
        counted = torch.arange(3) + torch.tensor([True, False, True])
    assert [tensor.dtype for tensor in made] == [torch.float64] * 3
    assert torch.equal(made[0], narrow.double())
    assert counted.dtype == torch.int64
    assert narrow.dtype == torch.bfloat16


class Largest(TorchDispatchMode):
    """Notes the largest tensor in elements."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def test_no_more_than_one_weight_is_widened_at_a_time_and_no_table() -> None:
    module = tiny_gemma4(vocab_size=4000, hidden_size_per_layer_input=16)
    with Largest() as watched:
        teacher_forced(module, samples_of(20))
    assert watched.elements == 4000 * 64 > 20 * 4000


def test_noise_is_what_rounding_does() -> None:
    samples = samples_of(12, 30)
    exact = teacher_forced(tiny("qwen3"), samples)
    coarse = teacher_forced(in_bfloat16("qwen3"), samples)
    assert (exact.dtype, coarse.dtype) == ("float32", "bfloat16")
    assert 1e-6 < exact.noise < 1e-3
    assert 1e-2 < coarse.noise < 2.0


def test_noise_is_never_less_than_a_unit_in_the_last_place(monkeypatch: Any) -> None:
    monkeypatch.setattr(forced, "_span", lambda plain, exact: 0.0)
    samples = samples_of(12)
    noise = teacher_forced(tiny("qwen3"), samples).noise
    ids = [*samples[0].prompt, *samples[0].token_ids]
    largest = float(hf_logits(tiny("qwen3"), ids)[11:-1].abs().max())
    assert noise == pytest.approx(largest * 2**-23, rel=1e-3)
