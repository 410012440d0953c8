"""Kernel options: torch's own names, the nearest one for others, and what has no effect."""

from __future__ import annotations

from typing import Any

import pytest
from torch.nn.attention.flex_attention import FlexKernelOptions

from flexinfer.attention.options import KNOWN, check_options, idle_options
from flexinfer.errors import UsageError

FLAG = "--decode-kernel-options"


def test_the_names_are_torchs() -> None:
    assert set(KNOWN) == set(FlexKernelOptions.__annotations__)


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ({"num_warp": 4}, "'num_warp' is no kernel option", "did you mean num_warps?"),
        ({"num_warps": 4, "block_m": 16}, "'block_m'", "did you mean BLOCK_M?"),
        ({"OUTPUT_MAX": True}, "'OUTPUT_MAX'", None),
        ({"zzz": 1}, "'zzz'", "known: num_warps, num_stages"),
        ({"num_warps": "4"}, "num_warps is '4'; allowed: 1 or more", None),
        ({"num_warps": True}, "num_warps is True", None),
        ({"BLOCK_N": 0}, "BLOCK_N is 0", None),
        ({"BLOCK_N": 16.0}, "BLOCK_N is 16.0", None),
        ({"PRESCALE_QK": 1}, "PRESCALE_QK is 1; allowed: true or false", None),
        ({"BACKEND": "triton"}, "BACKEND is 'triton'; allowed: AUTO, TRITON", None),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        check_options(FLAG, given)
    assert caught.value.message.startswith(f"{FLAG}: {said}")
    assert hint is None or str(caught.value.hint).startswith(hint)


def test_what_is_known_passes() -> None:
    check_options(FLAG, {})
    check_options(FLAG, {"num_warps": 4, "PRESCALE_QK": False, "BACKEND": "TRITON"})


def test_what_has_no_effect_is_said() -> None:
    given = {"num_warps": 4, "BLOCK_N1": 16}
    (on_cpu,) = idle_options(FLAG, given, on_cuda=False)
    (on_cuda,) = idle_options(FLAG, given, on_cuda=True)
    assert on_cpu.startswith(f"{FLAG}: num_warps, BLOCK_N1 without effect on a CPU")
    assert on_cuda.startswith(f"{FLAG}: BLOCK_N1 without effect")
    assert idle_options(FLAG, {"num_warps": 4}, on_cuda=True) == ()
    assert idle_options(FLAG, {}, on_cuda=False) == ()
