"""What `--resume` makes of a folder that a crash or a disk has spoilt: nothing good is lost."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import torch

from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.records.record import GrpoReport
from tests.support.grpo_runs import adapter, assert_same, rollouts, run


def train(folder: Path, **values: Any) -> GrpoReport:
    """Train four steps that are long enough to change what is answered right."""
    return run(folder, learning_rate=3e-2, **values)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of four steps, with checkpoints at 2 and 4."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of it, with its statistics, to be spoilt."""
    copytree(whole, tmp_path / "cut")
    (tmp_path / "cut.json").write_bytes((whole.parent / "run.json").read_bytes())
    return tmp_path / "cut"


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files in a folder."""
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


PARTS = (
    *("optimizer.pt", "scheduler.pt", "rng_state.pth"),
    *("adapter_model.safetensors", "adapter_config.json"),
)


@pytest.mark.parametrize("left", [0, 100])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_was_cut_short_is_named(part: str, left: int, cut: Path) -> None:
    path = cut / "checkpoint-4" / part
    path.write_bytes(path.read_bytes()[:left])
    before = contents(cut)
    with pytest.raises(UsageError, match=rf"--resume: {path} is damaged: \S") as refused:
        train(cut, resume=True, max_steps=6)
    assert refused.value.exit_code == 2
    assert refused.value.hint == f"move {path.parent} away to go on from checkpoint-2"
    assert "\n" not in refused.value.message
    assert contents(cut) == before


@pytest.mark.parametrize("part", ["optimizer.pt", "rng_state.pth"])
def test_one_wrong_bit_is_damage(part: str, cut: Path) -> None:
    """torch.load takes it as it comes."""
    path = cut / "checkpoint-4" / part
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)
    with pytest.raises(UsageError, match=f"{path} is damaged"):
        train(cut, resume=True, max_steps=6)


@pytest.mark.parametrize(
    ("part", "held", "said"),
    [
        ("optimizer.pt", {"a": 1}, "it has no state"),
        ("scheduler.pt", [1], "it holds a list"),
        ("scheduler.pt", {}, "it has no last_epoch"),
        ("trainer_state.json", {"global_step": 4}, "it has no max_steps"),
    ],
)
def test_a_sound_file_of_something_else_is_damage(
    part: str, held: Any, said: str, cut: Path
) -> None:
    path = cut / "checkpoint-4" / part
    if part.endswith(".json"):
        path.write_text(json.dumps(held))
    else:
        torch.save(held, path)
    with pytest.raises(UsageError, match=f"{path} is damaged: {said}"):
        train(cut, resume=True, max_steps=6)


def test_an_older_one_is_named_only_where_it_is_whole(cut: Path) -> None:
    for checkpoint in ("checkpoint-2", "checkpoint-4"):
        (cut / checkpoint / "optimizer.pt").write_bytes(b"")
    with pytest.raises(UsageError, match=r"checkpoint-4.optimizer.pt is damaged") as refused:
        train(cut, resume=True, max_steps=6)
    assert "copy" in str(refused.value.hint)


def test_moving_it_away_goes_on_from_the_older_one(cut: Path, whole: Path) -> None:
    rmtree(cut / "checkpoint-4")
    train(cut, resume=True)
    assert_same(cut, whole)


def test_going_back_to_an_older_one_is_said(cut: Path, whole: Path) -> None:
    """A run that is killed while it writes a checkpoint leaves this."""
    state, said = cut / "checkpoint-4" / "trainer_state.json", list[str]()
    state.write_text(state.read_text()[:300])
    train(cut, resume=True, notice=said.append)
    broken, going = (line for line in said if "checkpoint-" in line)
    assert broken.startswith("checkpoint-4 was not written to its end (trainer_state.json cannot")
    assert going == f"going on from {cut / 'checkpoint-2'}"
    assert_same(cut, whole)


def test_why_no_checkpoint_can_be_used_is_told(cut: Path) -> None:
    rmtree(cut / "checkpoint-2")
    (cut / "checkpoint-4" / "optimizer.pt").unlink()
    with pytest.raises(UsageError, match=r"no checkpoint; checkpoint-4 .*it lacks optimizer.pt"):
        train(cut, resume=True)


@pytest.mark.parametrize("spoilt", ["lost", "older", "cut short"])
def test_a_run_killed_before_its_adapter_was_saved_is_finished(
    spoilt: str, cut: Path, whole: Path
) -> None:
    path = cut / "adapter_model.safetensors"
    if spoilt == "lost":
        path.unlink()
    elif spoilt == "older":
        path.write_bytes((cut / "checkpoint-2" / path.name).read_bytes())
    else:
        path.write_bytes(path.read_bytes()[:100])
    report = train(cut, resume=True)
    assert_same(cut, whole)
    assert [step.step for step in report.steps] == [1, 2, 3, 4]
    made = json.loads((whole.parent / "run.json").read_text())
    assert report.accuracy_after == made["accuracy_after"] != made["accuracy_before"]
    assert report.adapter_path == str(cut)
    with pytest.raises(UsageError, match="has taken 4 steps already"):
        train(cut, resume=True)


def test_a_run_killed_before_it_was_scored_is_finished(cut: Path, whole: Path) -> None:
    stats = cut.parent / "cut.json"
    document: dict[str, Any] = json.loads(stats.read_text())
    stats.write_text(json.dumps(document | {"accuracy_after": None}))
    report = train(cut, resume=True)
    assert report.accuracy_after == document["accuracy_after"]
    assert adapter(cut).keys() == adapter(whole).keys()
    assert rollouts(cut) == rollouts(whole)
