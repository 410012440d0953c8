"""Back ends and forms of weights beside each other: what each is asked, and what fails where."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.tasks.bench.lanes.lanes import lanes_of
from flexinfer.tasks.bench.lanes.weights import FORMS, options_of, parse_weights
from flexinfer.tasks.bench.run import BenchConfig, Rig, run_bench
from tests.support.fake_backend import OPTIONS, FakeBackend, FakeCheckpoint, fake_rig, small

INTERNAL, DEBUG = "internal error: RuntimeError: ", "(--debug shows the traceback)"
ADAPTED = ModelOptions(model="fake-model", adapter="random:8")


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


def side_by_side(
    rig: Rig,
    names: Sequence[str] = ("flex", "hf"),
    engine: EngineConfig | None = None,
    **given: Any,
) -> Any:
    """Run several back ends over one rig, in this process."""
    config = small(backends=tuple(names), **given)
    return run_bench(OPTIONS, engine or EngineConfig(), config, rig=rig)


def rig_of(failing: dict[str, BaseException], loads: list[str] | None = None) -> Rig:
    """A rig that names its back ends, of which some cannot be loaded."""
    rig, held = fake_rig()

    def load(name: str, options: ModelOptions, report: Any) -> FakeCheckpoint:
        if loads is not None:
            loads.append(name)
        if name in failing:
            raise failing[name]
        return replace(held, backend_name=name)

    return replace(rig, load=load)


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (EnvironmentUnfit("vllm is not installed", hint="pip"), "vllm is not installed (pip)", 3),
        (RuntimeError("an illegal\naccess"), f"{INTERNAL}an illegal access {DEBUG}", 1),
        (OutOfMemoryError("9 GiB"), "out of memory: 9 GiB (lower --max-batch-size,", 4),
        (ModuleNotFoundError("no", name="peft.x"), "the package peft is missing (pip install", 3),
    ],
)
def test_a_back_end_that_cannot_be_loaded_is_rows_and_the_next_goes_on(
    error: Exception, reason: str, code: int
) -> None:
    loads: list[str] = []
    report = side_by_side(rig_of({"vllm": error}, loads), ("vllm", "flex"), batch_sizes=(1, 8))
    assert loads == ["vllm", "flex"]
    rows = [(row.backend, row.max_batch_size) for row in report.results]
    assert rows == [("vllm", 1), ("vllm", 8), ("flex", 1), ("flex", 8)]
    assert all((row.error or "").startswith(reason) for row in report.results[:2])
    assert [row.error for row in report.results[2:]] == [None, None]
    assert {row.error_code for row in report.results} == {code, None}
    assert (report.verdict, report.exit_code) == ("failed", 1)


def test_lanes_that_all_run_out_of_memory_end_as_one_does() -> None:
    missing = OutOfMemoryError("9 GiB")
    report = side_by_side(rig_of({"flex": missing, "hf": missing}))
    assert (report.verdict, report.exit_code) == ("failed", 4)


@pytest.mark.parametrize("debug", [False, True])
def test_a_traceback_of_a_lane_is_for_debug(
    debug: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = rig_of({"hf": RuntimeError("an illegal access")})
    config = small(backends=("flex", "hf"))
    run_bench(OPTIONS, EngineConfig(), config, rig=rig, debug=debug)
    out, err = capsys.readouterr()
    assert ("Traceback" in err, out) == (debug, "")


def test_a_back_end_that_breaks_between_rows_keeps_the_finished_ones() -> None:
    rig, held = fake_rig()

    def backend(config: EngineConfig) -> FakeBackend:
        if config.max_batch_size == 8:
            raise RuntimeError("an illegal access")
        return FakeBackend(config, rig.clock)  # the rig's is a FakeClock

    held.open_backend = backend
    report = side_by_side(rig, ("flex", "hf"), batch_sizes=(1, 8, 16))
    errors = [row.error for row in report.results]
    assert errors == [None, *[f"{INTERNAL}an illegal access {DEBUG}"] * 2] * 2
    assert report.ended_by is None


def test_settings_of_one_back_end_are_not_asked_of_another_and_that_is_said() -> None:
    engine = EngineConfig(attention="dense", page_size=16, cuda_graphs=True, seed=3)
    config = small(backends=("flex", "hf", "hf-cb"))
    flex, hf, cb = lanes_of(OPTIONS, engine, config, fake_rig()[0])
    assert (flex.engine, flex.notices) == (engine, ())
    assert hf.engine == EngineConfig(seed=3)
    assert hf.notices == (
        "hf: --attention, --page-size, --cuda-graphs left out, they mean nothing to it",
    )
    assert cb.engine == EngineConfig(page_size=16, cuda_graphs=True, seed=3)
    assert cb.notices == ("hf-cb: --attention left out, it means nothing to it",)
    (alone,) = lanes_of(OPTIONS, engine, small(backends=("hf",)), fake_rig()[0])
    assert alone.engine == engine, "alone it is asked, and refuses aloud"


def test_what_was_left_out_is_kept_in_the_rows() -> None:
    report = side_by_side(rig_of({}), engine=EngineConfig(attention="dense"))
    said = [any("left out" in line for line in row.notices) for row in report.results]
    assert said == [False, True]


def test_forms_of_weights_are_lanes_and_their_rows_say_which() -> None:
    config = small(weights=tuple(FORMS), backends=("flex", "hf"), batch_sizes=(1, 8))
    lanes = lanes_of(ADAPTED, EngineConfig(), config, fake_rig()[0])
    found = [(x.backend, x.options.load_in_4bit, x.options.lora_mode) for x in lanes]
    assert found == [
        ("flex", False, None), ("flex", False, "merged"), ("flex", False, "runtime"),
        ("flex", True, None), ("flex", True, "merged"), ("flex", True, "runtime"),
        ("hf", False, None), ("hf", False, "runtime"), ("hf", True, None), ("hf", True, "runtime"),
    ]  # fmt: skip
    assert [x.options.adapter is None for x in lanes[:3]] == [True, False, False]
    assert [x.notices for x in lanes[:6]] == [()] * 6
    left_out = "hf: merged weights left out, hf runs an adapter beside its base"
    assert [x.notices for x in lanes[6:]] == [(left_out,)] * 4
    assert [x.name for x in lanes[5:8]] == ["flex nf4 LoRA runtime", "hf", "hf LoRA runtime"]
    blank = lanes[4].blanks[1]
    assert (blank.quantization, blank.lora_mode, blank.max_batch_size) == ("nf4", "merged", 8)


def test_a_back_end_that_is_left_with_nothing_to_measure_is_refused() -> None:
    config = small(weights=("merged", "4bit+merged"), backends=("flex", "hf"))
    with pytest.raises(UsageError, match="nothing to measure: hf runs an adapter beside"):
        lanes_of(ADAPTED, EngineConfig(), config, fake_rig()[0])


def test_lengths_are_rows_of_one_lane_with_prompts_of_their_own() -> None:
    rig, held = fake_rig()
    config = small(prompt_length="5,9", new_tokens=(2, 3), batch_sizes=(1, 4))
    report = run_bench(OPTIONS, EngineConfig(), config, rig=rig)
    rows = [(r.prompt_length, r.max_new_tokens, r.max_batch_size) for r in report.results]
    assert rows == [(p, n, b) for p in ("5", "9") for n in (2, 3) for b in (1, 4)]
    asked = [
        (len(b.calls[0][0].prompt_token_ids), b.calls[0][0].sampling.max_new_tokens)
        for b in held.opened
    ]
    assert asked == [(p, n) for p in (5, 9) for n in (2, 3) for _ in (1, 4)]
    assert [row.n_decoded_tokens for row in report.results[:4]] == [8, 8, 12, 12]


def test_what_fails_leaves_a_row_for_every_length() -> None:
    rig = rig_of({"vllm": EnvironmentUnfit("vllm is not installed")})
    report = side_by_side(rig, ("vllm", "flex"), prompt_length="5,9", new_tokens=(2, 3))
    rows = [(row.backend, row.prompt_length, row.max_new_tokens) for row in report.results]
    assert rows == [(b, p, n) for b in ("vllm", "flex") for p in ("5", "9") for n in (2, 3)]


@pytest.mark.parametrize(
    ("options", "names", "told"),
    [
        (ModelOptions(model="m"), ("plain", "merged"), "--weights plain,merged needs an adapter"),
        (ModelOptions(model="m", load_in_4bit=True), ("plain",), "--load-in-4bit is what"),
        (replace(ADAPTED, lora_mode="runtime"), ("plain",), "--lora-mode is what"),
    ],
)
def test_what_is_swept_cannot_be_asked_for_too(
    options: ModelOptions, names: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        options_of(options, names)


def test_weights_are_read_from_a_list() -> None:
    assert parse_weights(None) == ()
    assert parse_weights("plain, 4bit+runtime") == ("plain", "4bit+runtime")
    with pytest.raises(UsageError, match="--weights is 'plain,8bit'; allowed: plain, merged"):
        parse_weights("plain,8bit")


def test_two_back_ends_run_apart_and_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fresh processes over the embedded model: figures, gates, one against the other.

    A third one is found, whatever is installed here, and is broken.
    """
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    config = BenchConfig(
        backends=("flex", "hf", "vllm"), n_prompts=2, n_rounds=1, max_new_tokens=3,
        prompt_length="4:6", batch_sizes=(2,),
    )  # fmt: skip
    engine = EngineConfig(attention="dense")
    said: list[str] = []
    options = ModelOptions(model="tiny-gemma4", device="cpu")
    report = run_bench(options, engine, config, notice=said.append, debug=True)
    assert "Traceback" in capfd.readouterr().err, "of the third, from its process"
    assert [line for line in said if line.startswith("measuring")] == [
        "measuring flex", "measuring hf", "measuring vllm",
    ]  # fmt: skip
    flex, hf, vllm = report.results
    assert flex.error is hf.error is None
    assert (vllm.error, vllm.error_code) == ("vllm: module 'vllm' has no attribute 'LLM'", 3)
    for row in (flex, hf):
        assert row.gate is not None
        assert row.gate.problem is None
        assert row.decode_tps_median
    (held,) = report.agreements
    assert (held.label, held.against, held.tokens, held.agreed) == (
        "hf batch 2",
        "flex batch 2",
        6,
        6,
    )
    assert report.environment["device"]
    assert report.verdict == "failed", "vllm is asked for and refuses"
