"""Which back end and which kernel options, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from flexinfer.attention.choose import (
    choose_attention,
    decode_options,
    prefill_options,
    triton_obstacle,
)
from flexinfer.errors import EnvironmentUnfit, UsageError


@pytest.mark.parametrize(
    ("wanted", "device", "compiler", "obstacle", "chosen"),
    [
        ("auto", "cuda", None, None, "triton"),
        ("auto", "cuda", None, "old card", "flex"),
        ("auto", "cpu", "/usr/bin/g++", "no card", "dense"),
        ("auto", "cpu", None, "no card", "dense"),
        ("flex", "cpu", "/usr/bin/g++", "no card", "flex"),
        ("flex", "cuda", None, None, "flex"),
        ("triton", "cuda", None, None, "triton"),
        ("dense", "cpu", None, "no card", "dense"),
        ("dense", "cuda", None, None, "dense"),
    ],
)
def test_chosen(
    wanted: str, device: str, compiler: str | None, obstacle: str | None, chosen: str
) -> None:
    choice = choose_attention(wanted, device, compiler, obstacle)
    assert choice.name == chosen
    assert (choice.reason == "asked for") == (wanted != "auto")
    assert choice.reason


def test_flex_on_a_cpu_without_a_compiler_is_refused() -> None:
    with pytest.raises(EnvironmentUnfit, match=r"--attention flex") as caught:
        choose_attention("flex", "cpu", None, "no card")
    assert "g++" in str(caught.value.hint)


def test_triton_is_refused_rather_than_ignored() -> None:
    with pytest.raises(EnvironmentUnfit, match=r"--attention triton .*old card"):
        choose_attention("triton", "cuda", None, "old card")


@pytest.mark.parametrize(
    ("device", "capability", "dims", "size", "installed", "says"),
    [
        ("cuda", (9, 0), [128], 2, True, None),
        ("cuda", (8, 0), [256, 512], 2, True, None),
        ("cpu", (0, 0), [128], 2, True, "CUDA"),
        ("cuda", (7, 5), [128], 2, True, "7.5"),
        ("cuda", (9, 0), [128, 96], 2, True, "head_dim 96"),
        ("cuda", (9, 0), [128], 4, True, "bfloat16"),
        ("cuda", (9, 0), [128], 2, False, "not installed"),
    ],
)
def test_what_stands_in_the_way_of_the_own_kernels(
    device: str,
    capability: tuple[int, int],
    dims: list[int],
    size: int,
    installed: bool,
    says: str | None,
) -> None:
    found = triton_obstacle(device, capability, dims, size, installed)
    assert (found is None) == (says is None)
    assert says is None or says in (found or "")


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


@pytest.mark.parametrize(
    ("wanted", "tuned", "reason"),
    [("auto", True, "kernel options are flex_attention's"), ("flex", True, "asked for")],
)
def test_kernel_options_ask_for_flex_and_the_reason_says_so(
    wanted: str, tuned: bool, reason: str
) -> None:
    assert choose_attention(wanted, "cpu", "/usr/bin/g++", "no CUDA", tuned) == ("flex", reason)


def test_kernel_options_without_a_compiler_name_what_needs_one() -> None:
    with pytest.raises(EnvironmentUnfit, match="kernel options need flex_attention"):
        choose_attention("auto", "cpu", None, "no CUDA", tuned=True)


@pytest.mark.parametrize("wanted", ["dense", "triton"])
def test_kernel_options_go_with_flex_alone(wanted: str) -> None:
    with pytest.raises(UsageError, match=f"--attention {wanted}"):
        choose_attention(wanted, "cuda", None, None, tuned=True)
