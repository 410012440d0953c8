"""A back end is had or refused by name, before anything is loaded."""

from __future__ import annotations

import pytest

from flexinfer.backends.choose import check_backend, load_checkpoint
from flexinfer.config import ModelOptions
from flexinfer.errors import EnvironmentUnfit, UsageError


@pytest.mark.parametrize("name", ["hf", "hf-cb", "vllm"])
def test_a_planned_back_end_is_exit_3_and_says_so(name: str) -> None:
    with pytest.raises(EnvironmentUnfit, match="not in this version") as caught:
        load_checkpoint(name, ModelOptions(model="no-such-model"))
    assert f"--backend {name} " in caught.value.message
    assert "flex" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "near"), [("flexx", "flex"), ("VLLM", "vllm"), ("hf_cb", "hf-cb")]
)
def test_an_unknown_back_end_is_exit_2_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError, match="unknown") as caught:
        check_backend(name)
    assert caught.value.hint == f"did you mean {near}?"


def test_nothing_near_lists_all() -> None:
    with pytest.raises(UsageError) as caught:
        check_backend("zzzz")
    assert caught.value.hint == "known: flex, hf, hf-cb, vllm"


def test_flex_passes() -> None:
    check_backend("flex")
