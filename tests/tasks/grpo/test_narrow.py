"""Micro-batches are as wide as their longest rows, and lose nothing by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flexinfer.tasks.grpo.training import trainer as trainers
from flexinfer.tasks.grpo.training.narrow import narrowed
from tests.support.grpo import config, parts


def batch(prompts: Any, completions: Any) -> dict[str, Any]:
    """Return what a loss takes, of masks."""
    prompt, completion = torch.tensor(prompts), torch.tensor(completions)
    numbers = torch.arange(completion.numel()).view(completion.shape)
    return {
        "prompt_ids": torch.arange(prompt.numel()).view(prompt.shape),
        "prompt_mask": prompt,
        "completion_ids": numbers,
        "completion_mask": completion,
        "sampling_per_token_logps": numbers * -0.5,
        "advantages": torch.ones(len(prompt)),
        "num_items_in_batch": completion.sum(),
    }


def test_only_columns_of_padding_go() -> None:
    whole = batch([[0, 0, 1], [0, 1, 1]], [[1, 1, 0, 0], [1, 0, 0, 0]])
    (made,) = narrowed([whole])
    assert made["prompt_ids"].tolist() == [[1, 2], [4, 5]]
    assert made["prompt_mask"].tolist() == [[0, 1], [1, 1]]
    assert made["completion_ids"].tolist() == [[0, 1], [4, 5]]
    assert made["completion_mask"].tolist() == [[1, 1], [1, 0]]
    assert made["sampling_per_token_logps"].tolist() == [[0, -0.5], [-2.0, -2.5]]
    assert made["advantages"] is whole["advantages"]
    assert made["num_items_in_batch"] is whole["num_items_in_batch"]


def test_a_hole_is_no_end_and_a_column_is_always_left() -> None:
    tools = batch([[1]], [[1, 0, 1, 0]]) | {"tool_mask": torch.tensor([[1, 0, 1, 1]])}
    (made,) = narrowed([tools])
    assert made["completion_mask"].tolist() == [[1, 0, 1]]
    assert made["tool_mask"].tolist() == [[1, 0, 1]]
    (masked,) = narrowed([batch([[1, 1]], [[0, 0, 0]])])
    assert masked["prompt_ids"].shape == (1, 2)
    assert masked["completion_ids"].shape == (1, 1)


def test_what_else_may_have_columns_is_left_alone() -> None:
    whole = batch([[0, 1]], [[1, 0]]) | {"mm_token_type_ids": torch.zeros(1, 4)}
    assert narrowed([whole])[0] is whole


def test_each_is_as_wide_as_its_own_rows_by_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy to the host waits for the device: one a rollout, not one a micro-batch."""
    copies, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda t: copies.append(t) or tolist(t))
    made = narrowed([batch([[0, 0, 1]], [[1, 0]]), batch([[0, 1, 1]], [[1, 1]])])
    assert [tuple(b["prompt_ids"].shape) for b in made] == [(1, 1), (1, 2)]
    assert [tuple(b["completion_ids"].shape) for b in made] == [(1, 1), (1, 2)]
    assert len(copies) == 1


def uneven(rollout: Any) -> Any:
    """Return a rollout whose completions have 1, 2, 5, 4, ... tokens."""

    def cut(prompts: Any, trainer: Any) -> dict[str, Any]:
        made: dict[str, Any] = rollout(prompts, trainer)
        for name in ("completion_ids", "logprobs"):
            made[name] = [row[: i * i % 6 + 1] for i, row in enumerate(made[name])]
        return made

    return cut


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "bnpo"])
def test_the_loss_is_the_same_over_fewer_tokens(
    loss_type: str, beta: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {"loss_type": loss_type, "beta": beta, "max_steps": 1}
    step = {"per_device_batch_size": 2, "gradient_accumulation_steps": 4, "num_generations": 2}
    settings = config(tmp_path, **values | step)
    logs, shapes = [], []
    for cut in (True, False):
        if not cut:
            monkeypatch.setattr(trainers, "narrowed", lambda inputs: inputs)
        with parts("qwen3", settings) as ready:
            trainer: Any = ready.trainer
            trainer.rollout_func = uneven(ready.rollout)
            widths: list[int] = []
            forward = trainer.model.base_model.model.model.forward

            def seeing(*args: Any, seen: Any = widths, inner: Any = forward, **kwargs: Any) -> Any:
                if torch.is_grad_enabled():
                    seen.append(kwargs["input_ids"].shape[1])
                return inner(*args, **kwargs)

            trainer.model.base_model.model.model.forward = seeing
            trainer.train()
            logs.append(trainer.state.log_history[0])
            shapes.append(widths)
    assert len(shapes[0]) == len(shapes[1]) == 4
    assert sum(shapes[0]) < sum(shapes[1])
    assert len(set(shapes[1])) == 1 < len(set(shapes[0]))
    assert logs[0]["grad_norm"] > 1e-3
    # advantages of size one cancel out in the losses: what is left may differ by their rounding
    rounding = 8 * torch.finfo(torch.float32).eps
    for name in ("loss", "grad_norm", "entropy"):
        assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-5, abs=rounding)
