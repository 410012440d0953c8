"""`bench --tune`: refused where it cannot be, done between loading and measuring, and told."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from flexinfer.backends.base.protocol import Checkpoint
from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.tasks.bench.measure import tuning
from flexinfer.tasks.bench.run import Rig, run_bench
from tests.support.fake_backend import OPTIONS, fake_rig, small


def test_tiles_are_tuned_before_an_engine_is_opened() -> None:
    rig, held = fake_rig()
    opened: list[int] = []
    told: list[str] = []

    def tune(checkpoint: Checkpoint, report: Report) -> tuple[str, ...]:
        assert checkpoint is held
        opened.append(len(held.opened))
        report("tuning", 1, 2)
        return ("tuning: 7 trials",)

    progress: list[tuple[str, int, int]] = []
    report = run_bench(
        OPTIONS, EngineConfig(), small(tune=True), lambda *line: progress.append(line),
        told.append, rig=replace(rig, tune=tune),
    )  # fmt: skip
    assert opened == [0]
    assert "tuning: 7 trials" in told
    assert ("tuning", 1, 2) in progress
    assert report.config["bench"]["tune"]
    assert report.results[0].decode_tps_median


def test_without_the_flag_nothing_is_tuned() -> None:
    rig, _ = fake_rig()
    run_bench(OPTIONS, EngineConfig(), small(), rig=replace(rig, tune=pytest.fail))


@pytest.mark.parametrize(
    ("engine", "bench", "said"),
    [
        ({"attention": "flex"}, {}, "--attention flex"),
        ({"attention": "dense"}, {}, "--attention dense"),
        ({"decode_kernel_options": {"num_warps": 4}}, {}, "the kernel options"),
        ({"prefill_kernel_options": {"num_warps": 4}}, {}, "the kernel options"),
    ],
)
def test_what_would_not_run_is_not_tuned(engine: Any, bench: Any, said: str) -> None:
    """Nothing is loaded for it."""
    rig, _ = fake_rig()
    rig = replace(rig, load=pytest.fail, tune=pytest.fail)
    with pytest.raises(UsageError, match=f"^--tune .*{said}"):
        run_bench(OPTIONS, EngineConfig(**engine), small(tune=True, **bench), rig=rig)


@pytest.mark.parametrize("attention", ["auto", "triton"])
def test_own_kernels_are_tuned(attention: Any) -> None:
    rig, held = fake_rig()
    seen: list[Checkpoint] = []

    def tune(checkpoint: Checkpoint, report: Report) -> tuple[str, ...]:
        seen.append(checkpoint)
        return ()

    run_bench(
        OPTIONS, EngineConfig(attention=attention), small(tune=True), rig=replace(rig, tune=tune)
    )
    assert seen == [held]


def test_a_cpu_has_nothing_to_tune() -> None:
    """Nor is anything loaded for it."""
    model = ModelOptions(model="tiny-gemma4", device="cpu")
    with pytest.raises(EnvironmentUnfit, match=r"^--tune .*it needs a CUDA device$"):
        run_bench(model, EngineConfig(), small(tune=True), rig=Rig(load=pytest.fail))


@pytest.mark.parametrize(
    ("given", "cuda", "said"),
    [
        ({"device": "cpu"}, True, "it needs a CUDA device"),
        ({}, False, "it needs a CUDA device"),
        ({"dtype": "float32"}, True, "it needs bfloat16 or float16"),
        ({}, True, None),
    ],
)
def test_what_is_known_before_loading_is_said_before_it(
    monkeypatch: pytest.MonkeyPatch, given: Any, cuda: bool, said: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(tuning, "find_spec", lambda name: name)
    expected = pytest.raises(EnvironmentUnfit, match=f"{said}$") if said else nullcontext()
    with expected:
        tuning.check_device(ModelOptions(model="tiny-gemma4", **given))
