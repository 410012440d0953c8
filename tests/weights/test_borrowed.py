"""Where a borrowed module's tensors lie: what moves is seen, also after PEFT changed the tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from flexinfer.errors import StaleWeights
from flexinfer.weights import borrowed
from flexinfer.weights.borrowed import Borrowed


def model() -> Any:
    made = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    return made.requires_grad_(False)


def inject(module: nn.Module) -> None:
    """Let PEFT wrap the linear maps, which moves nothing."""
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["0"]), module)


def base_of(module: Any) -> Any:
    return getattr(module[0], "base_layer", module[0])


def swap_parameter(module: Any) -> None:
    base_of(module).weight = nn.Parameter(base_of(module).weight.clone())


def move_data(module: Any) -> None:
    base_of(module).weight.data = base_of(module).weight.data.clone()


def cast(module: Any) -> None:
    module.half()


def swap_buffer(module: Any) -> None:
    module[1][1].running_mean = torch.zeros(4)


def swap_child(module: Any) -> None:
    module[1][0] = nn.Linear(4, 4)


def swap_branch(module: Any) -> None:
    module[1] = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def remove(module: Any) -> None:
    del module[1]


def swap_dict(module: Any) -> None:
    old = base_of(module)._parameters
    base_of(module)._parameters = {name: nn.Parameter(held.clone()) for name, held in old.items()}


def swap_children(module: Any) -> None:
    module[1]._modules = {"0": nn.Linear(4, 4), "1": nn.BatchNorm1d(4)}


def unpickle(module: Any) -> None:
    base_of(module).__setstate__(vars(nn.Linear(4, 4)))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        swap_parameter, move_data, cast, swap_buffer, swap_child, swap_branch, remove, swap_dict,
        swap_children, unpickle,
    ],
)  # fmt: skip
def test_what_moves_is_seen(change: Callable[[Any], None], wrapped: bool) -> None:
    module = model()
    held = Borrowed(module)
    held.check()
    if wrapped:
        inject(module)
        held.check()
    change(module)
    for _ in range(2):
        with pytest.raises(StaleWeights):
            held.check()


def test_another_parameter_over_the_same_memory_is_watched_from_then_on() -> None:
    module = model()
    held = Borrowed(module)
    module[0].weight = nn.Parameter(module[0].weight.data)
    held.check()
    module[0].weight.data = module[0].weight.data.clone()
    with pytest.raises(StaleWeights):
        held.check()


def test_values_may_change() -> None:
    module = model()
    held = Borrowed(module)
    module[0].weight.fill_(3.0)
    module[1][1](torch.ones(2, 4))
    held.check()


def test_a_tree_that_stays_is_walked_once_more_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    module, walks = model(), []
    walk = borrowed.base_tensors
    monkeypatch.setattr(borrowed, "base_tensors", lambda m: walks.append(m) or walk(m))
    held = Borrowed(module)
    walks.clear()
    held.check()
    assert len(walks) == 0
    inject(module)
    for _ in range(3):
        held.check()
    assert len(walks) == 1
