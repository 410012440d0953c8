"""A back end is had or refused by name, before anything is loaded."""

from __future__ import annotations

import pytest

from flexinfer.backends.choose import check_backend, load_checkpoint
from flexinfer.config import ModelOptions
from flexinfer.errors import EnvironmentUnfit, UsageError


def test_vllm_without_its_package_is_exit_3_before_anything_is_loaded() -> None:
    with pytest.raises(EnvironmentUnfit, match="--backend vllm: vllm is not installed") as caught:
        load_checkpoint("vllm", ModelOptions(model="no-such-model"))
    assert caught.value.exit_code == 3
    said = "pip install -e '.[vllm]' in the checkout of flexinfer"
    assert caught.value.hint == said


def test_the_flag_is_the_callers() -> None:
    with pytest.raises(EnvironmentUnfit, match="--rollout vllm"):
        check_backend("vllm", flag="--rollout")
    with pytest.raises(UsageError, match="--rollout 'hff' is unknown"):
        check_backend("hff", flag="--rollout")


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


@pytest.mark.parametrize("name", ["flex", "hf", "hf-cb"])
def test_what_needs_no_package_of_its_own_passes(name: str) -> None:
    check_backend(name)
