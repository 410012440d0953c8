"""FA4 or not, over what was asked for, devices, the families' head shapes and versions."""

from __future__ import annotations

from itertools import product

import pytest

from flexinfer.attention import choose_fa4 as home
from flexinfer.attention.choose_fa4 import HeadShape, beta, choose_fa4, choose_for, fa4_obstacle
from flexinfer.errors import EnvironmentUnfit

B36, TORCH, LONG = "4.0.0b36", "2.11.0+cu130", 8192
SHAPES = {
    "qwen3-4b": (HeadShape(128, 4),),
    "qwen3-0.6b": (HeadShape(128, 2),),
    "llama-3.2-3b": (HeadShape(128, 3),),
    "llama-3.2-1b": (HeadShape(64, 4),),
    "smollm2-135m": (HeadShape(64, 3),),
    "gemma-4-E2B": (HeadShape(256, 8), HeadShape(512, 8)),
}
CAN = {
    (None, "qwen3-4b"): "needs a CUDA device",
    ((8, 0), "qwen3-4b"): "sm_80",
    ((9, 0), "gemma-4-E2B"): "no pages at head dim 512 on sm_90",
    ((10, 0), "gemma-4-E2B"): "no pages at head dim 512 on sm_100",
    ((12, 0), "qwen3-4b"): "no KV pages on sm_120",
}
DEVICES = ((8, 0), (8, 9), (9, 0), (10, 0), (12, 0))
every = pytest.mark.parametrize(("capability", "model"), list(product(DEVICES, SHAPES)), ids=str)


def able(capability: tuple[int, int], model: str) -> bool:
    """Whether FA4 reads pages there at every head shape of the model."""
    return capability in ((9, 0), (10, 0)) and model != "gemma-4-E2B"


@every
def test_forced_on(capability: tuple[int, int], model: str) -> None:
    if capability >= (9, 0) and not able(capability, model):
        with pytest.raises(EnvironmentUnfit, match="--fa4-prefill cannot be had: ") as caught:
            choose_for(True, capability, SHAPES[model], B36, TORCH, LONG, False)
        assert caught.value.exit_code == 3
        return
    choice = choose_for(True, capability, SHAPES[model], B36, TORCH, LONG, False)
    assert choice.use is able(capability, model)
    assert choice.warning is (capability < (9, 0))
    assert ("asked for" if choice.use else "needs Hopper or newer") in choice.reason


@every
def test_forced_off(capability: tuple[int, int], model: str) -> None:
    choice = choose_for(False, capability, SHAPES[model], B36, TORCH, LONG, False)
    assert choice == (False, "--no-fa4-prefill", False)
    assert choose_for(False, capability, SHAPES[model], None, TORCH, LONG, False) == choice


@every
def test_auto_takes_it_where_it_was_measured_faster(
    capability: tuple[int, int], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "MEASURED_FASTER", {})
    never = choose_for(None, capability, SHAPES[model], B36, TORCH, LONG, False)
    assert (never.use, never.warning) == (False, False)
    assert ("not measured faster" in never.reason) is able(capability, model)
    measured = {(capability, *shape): LONG for shape in SHAPES[model]}
    monkeypatch.setattr(home, "MEASURED_FASTER", measured)
    choice = choose_for(None, capability, SHAPES[model], B36, TORCH, LONG, False)
    assert choice.use is able(capability, model)
    if choice.use:
        assert choice.reason.startswith(f"measured faster on sm_{capability[0]}0 with head dim")
        shorter = choose_for(None, capability, SHAPES[model], B36, TORCH, LONG - 1, False)
        assert (shorter.use, shorter.warning) == (False, False)
        assert "from sequences of 8192 tokens on, and the limit here is 8191" in shorter.reason
        assert not choose_for(None, capability, (HeadShape(96, 5),), B36, TORCH, LONG, False).use
        assert not choose_for(None, capability, SHAPES[model], None, TORCH, LONG, False).use


def test_what_was_measured() -> None:
    """On an H200, head dim 128 with 4 (Qwen3-4B) and 3 (Llama-3.2-3B) query heads a kv head."""
    taken = {
        (model, capability)
        for model, capability in product(SHAPES, DEVICES)
        if choose_for(None, capability, SHAPES[model], B36, TORCH, LONG, False).use
    }
    assert taken == {("qwen3-4b", (9, 0)), ("llama-3.2-3b", (9, 0))}
    for less in ({"longest": LONG - 1}, {"fa4": "4.0.0b35"}, {"windows": True}):
        given = {"fa4": B36, "torch": TORCH, "longest": LONG, "windows": False} | less
        assert not any(choose_for(None, (9, 0), s, **given).use for s in SHAPES.values())


@pytest.mark.parametrize(("case", "said"), CAN.items(), ids=str)
def test_the_obstacle_is_named(case: tuple[tuple[int, int] | None, str], said: str) -> None:
    capability, model = case
    found = [fa4_obstacle(capability, *shape, B36) for shape in SHAPES[model]]
    assert any(said in (why or "") for why in found)
    assert said in choose_for(None, capability, SHAPES[model], B36, TORCH, LONG, False).reason


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
def test_forced_without_the_package_says_how_to_get_it(capability: tuple[int, int]) -> None:
    with pytest.raises(EnvironmentUnfit, match="not installed") as caught:
        choose_fa4(True, capability, 128, 4, None, TORCH, LONG)
    assert "flash-attn-4[cu13]" in (caught.value.hint or "")


def test_forced_without_the_package_on_an_older_device_is_a_warning() -> None:
    assert choose_fa4(True, (8, 0), 128, 4, None, TORCH, LONG)[::2] == (False, True)


def test_forced_without_a_device_is_refused() -> None:
    with pytest.raises(EnvironmentUnfit, match="CUDA device") as caught:
        choose_fa4(True, None, 128, 4, None, TORCH, LONG)
    assert "pip" not in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("capability", "head_dim", "ratio", "fa4", "able"),
    [
        ((9, 0), 128, 4, "4.0.0b4", False),
        ((9, 0), 128, 4, "4.0.0b5", True),
        ((9, 0), 128, 3, "4.0.0b9", True),
        ((9, 0), 256, 4, "4.0.0b25", False),
        ((9, 0), 256, 4, "4.0.0b26", True),
        ((9, 0), 256, 4, "4.0.0", True),
        ((9, 0), 512, 4, B36, False),
        ((9, 0), 72, 4, B36, False),
        ((9, 0), 8, 4, B36, False),
        ((10, 0), 128, 4, "4.0.0b9", True),
        ((10, 0), 128, 3, "4.0.0b10", False),
        ((10, 0), 128, 3, "4.0.0b11", True),
        ((10, 0), 256, 2, "4.0.0b30", False),
        ((10, 0), 256, 2, "4.0.0b31", True),
        ((9, 0), 192, 4, "4.0.0b25", False),
        ((9, 0), 192, 4, "4.0.0b26", True),
        ((9, 0), 144, 4, B36, False),
        ((9, 0), 240, 4, B36, False),
        ((10, 0), 192, 2, B36, False),
        ((10, 3), 128, 4, B36, True),
        ((11, 0), 128, 4, B36, True),
        ((12, 1), 128, 4, B36, False),
    ],
)
def test_versions_and_head_dims(
    capability: tuple[int, int], head_dim: int, ratio: int, fa4: str, able: bool
) -> None:
    assert (fa4_obstacle(capability, head_dim, ratio, fa4) is None) is able


@pytest.mark.parametrize(
    ("fa4", "torch", "fits"),
    [
        ("4.0.0b16", TORCH, True),
        ("4.0.0b17", TORCH, False),
        (B36, TORCH, False),
        ("4.0.0", TORCH, False),
        (B36, "2.12.0", True),
        (B36, "2.13.0+cpu", True),
    ],
)
def test_flex_s_back_end_that_does_not_fit_is_named(fa4: str, torch: str, fits: bool) -> None:
    """It is called directly either way."""
    reason = choose_fa4(True, (9, 0), 128, 4, fa4, torch, LONG).reason
    assert "called directly" in reason
    assert ("does not fit" in reason) is not fits


def test_beta() -> None:
    assert (beta("4.0.0b36"), beta("4.0.0.b9"), beta("4.0.0")) == (36, 9, None)
    assert (beta("4.0.0b36+g3b12cde"), beta("4.0.0+g3b12cde")) == (36, None)
