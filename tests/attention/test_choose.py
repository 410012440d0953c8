"""Which back end and which kernel options, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer.attention.choose import choose_attention, decode_options, prefill_options
from flexinfer.errors import EnvironmentUnfit


@pytest.mark.parametrize(
    ("wanted", "device", "compiler", "chosen"),
    [
        ("auto", "cuda", None, "flex"),
        ("auto", "cpu", "/usr/bin/g++", "dense"),
        ("auto", "cpu", None, "dense"),
        ("flex", "cpu", "/usr/bin/g++", "flex"),
        ("flex", "cuda", None, "flex"),
        ("dense", "cpu", None, "dense"),
        ("dense", "cuda", None, "dense"),
    ],
)
def test_chosen(wanted: str, device: str, compiler: str | None, chosen: str) -> None:
    choice = choose_attention(wanted, device, compiler)
    assert choice.name == chosen
    assert (choice.reason == "asked for") == (wanted != "auto")
    assert choice.reason


def test_flex_on_a_cpu_without_a_compiler_is_refused() -> None:
    with pytest.raises(EnvironmentUnfit, match=r"--attention flex") as caught:
        choose_attention("flex", "cpu", None)
    assert "g++" in str(caught.value.hint)


def test_triton_is_refused_rather_than_ignored() -> None:
    with pytest.raises(EnvironmentUnfit, match=r"--attention triton"):
        choose_attention("triton", "cuda", None)


@pytest.mark.parametrize("choose", [decode_options, prefill_options])
def test_a_cpu_gets_only_what_was_given(choose: Any) -> None:
    assert choose(128, 32, False, {}) == {}
    assert choose(128, 32, False, {"num_warps": 2}) == {"num_warps": 2}


@pytest.mark.parametrize("choose", [decode_options, prefill_options])
@pytest.mark.parametrize("head_dim", [16, 64, 128, 256, 512])
@pytest.mark.parametrize("page", [8, 16, 32, 64, 128])
def test_tiles_fit_a_page(choose: Any, head_dim: int, page: int) -> None:
    options = choose(head_dim, page, True, {})
    assert page % options["BLOCK_N"] == 0
    assert options["num_warps"] in (2, 4, 8)


@pytest.mark.parametrize("choose", [decode_options, prefill_options])
def test_what_is_given_wins(choose: Any) -> None:
    options = choose(128, 32, True, {"num_stages": 7, "NEW": 1})
    assert options["num_stages"] == 7
    assert options["NEW"] == 1
    assert options["num_warps"] == choose(128, 32, True, {})["num_warps"]


def test_the_decode_kernel_is_asserted() -> None:
    assert decode_options(128, 32, True, {})["BACKEND"] == "TRITON_DECODE"
    assert "BACKEND" not in prefill_options(128, 32, True, {})


@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_prefill_fits_shared_memory(head_dim: int) -> None:
    options = prefill_options(head_dim, 128, True, {})
    m, n, stages = options["BLOCK_M"], options["BLOCK_N"], options["num_stages"]
    bf16 = 2 * head_dim * (m + 2 * n * max(stages - 1, 1))
    assert bf16 <= 227 * 1024
