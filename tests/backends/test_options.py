"""Options of the Hugging Face rollouts are refused where they mean nothing, before any weights."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer.backends.base.options import COMPILE_MODES, RolloutOptions
from flexinfer.errors import UsageError

GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("--attn-impl", {"attn_impl": "sdpa"}),
    ("--persistent-cb", {"persistent_cb": True}),
    ("--compile-mode", {"compile_mode": "default"}),
    ("--compile-dynamic", {"compile_dynamic": False}),
]


@pytest.mark.parametrize("backend", ["flex", "vllm"])
@pytest.mark.parametrize(("flag", "given"), GIVEN)
def test_other_back_ends_refuse_each_by_name(
    backend: str, flag: str, given: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=f"^{flag} is for .*not for {backend}"):
        RolloutOptions(**given).check(backend)


@pytest.mark.parametrize(("flag", "given"), GIVEN)
def test_continuous_batching_takes_all(flag: str, given: dict[str, Any]) -> None:
    RolloutOptions(**given).check("hf-cb")


def test_generate_has_no_manager_to_keep() -> None:
    RolloutOptions(attn_impl="sdpa", compile_mode="default", compile_dynamic=True).check("hf")
    with pytest.raises(UsageError, match="--persistent-cb is for hf-cb, not for hf"):
        RolloutOptions(persistent_cb=True).check("hf")


@pytest.mark.parametrize("backend", ["flex", "hf", "hf-cb", "vllm"])
def test_nothing_given_is_taken_by_all(backend: str) -> None:
    RolloutOptions().check(backend)


@pytest.mark.parametrize(
    ("given", "words"), [({"compile_mode": "fast"}, "fast.*default"), ({"attn_impl": " "}, "empty")]
)
def test_values_are_checked(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RolloutOptions(**given)


def test_either_option_turns_compilation_on() -> None:
    assert not RolloutOptions().compiles
    assert RolloutOptions(compile_dynamic=False).compiles
    assert all(RolloutOptions(compile_mode=mode).compiles for mode in COMPILE_MODES)
