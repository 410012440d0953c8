"""A run that was cut in two ends where an uncut one does, bit for bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from flexinfer.errors import UsageError, WriteFailed
from flexinfer.tasks.grpo.records import report as page
from flexinfer.tasks.grpo.records.record import GrpoReport, StepRecord
from flexinfer.tasks.grpo.run import _tell_despite
from flexinfer.tasks.grpo.saved.checkpoints import newest
from flexinfer.tasks.grpo.saved.folder import made
from flexinfer.tasks.grpo.training import trainer
from tests.support.grpo_runs import adapter, assert_same, rollouts, run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GrpoReport]:
    """Return the folder and the report of an uncut run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, run(folder)


def test_a_run_moves_and_is_told_apart(whole: tuple[Path, GrpoReport], tmp_path: Path) -> None:
    folder, report = whole
    assert [step.policy_version for step in report.steps] == [0, 1, 2, 3]
    assert len(rollouts(folder)) == 4 * 8
    assert any(line["advantage"] for line in rollouts(folder))
    assert any(bool(t.any()) for name, t in adapter(folder).items() if "lora_B" in name)


def test_resuming_at_a_checkpoint_goes_on_bit_for_bit(
    whole: tuple[Path, GrpoReport], tmp_path: Path
) -> None:
    folder, report = whole
    cut = tmp_path / "cut"
    run(cut, max_steps=2)
    again = run(cut, resume=True)
    assert_same(cut, folder)
    assert [step.loss for step in again.steps] == report.losses
    assert [step.step for step in again.steps] == [1, 2, 3, 4]
    assert again.train_wall_s == pytest.approx(sum(again.step_wall_s))


def test_an_interrupted_run_saves_and_goes_on_bit_for_bit(
    whole: tuple[Path, GrpoReport], tmp_path: Path
) -> None:
    """It comes after step 3, where no checkpoint is due."""
    cut = tmp_path / "cut"

    def interrupting(record: StepRecord) -> None:
        if record.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="step 3 is saved; --resume goes on from there"):
        run(cut, save_steps=4, on_step=interrupting)
    assert newest(cut) == cut / "checkpoint-3"
    document = json.loads((tmp_path / "cut.json").read_text())
    assert document["interrupted"]
    assert len(document["steps"]) == 3
    run(cut, resume=True)
    assert_same(cut, whole[0])


def test_a_run_whose_figures_cannot_be_written_keeps_its_steps(
    whole: tuple[Path, GrpoReport], tmp_path: Path
) -> None:
    """A folder takes the place of the file of statistics after step 2."""
    cut, figures = tmp_path / "cut", tmp_path / "cut.json"

    def losing(record: StepRecord) -> None:
        if record.step == 2:
            figures.unlink()
            figures.mkdir()

    with pytest.raises(WriteFailed) as failed:
        run(cut, save_steps=4, on_step=losing)
    assert failed.value.hint is not None
    assert failed.value.hint.endswith("step 3 is saved; --resume goes on from there")
    figures.rmdir()
    heard: list[str] = []
    report = run(cut, resume=True, notice=heard.append)
    assert [step.step for step in report.steps] == [4]
    assert f"no figures of steps 1 to 3: {figures} is not there" in heard
    assert_same(cut, whole[0])


def test_what_was_right_before_training_stays_known(tmp_path: Path) -> None:
    first = run(tmp_path / "run", max_steps=1, eval_size=5)
    assert first.accuracy_before is not None
    again = run(tmp_path / "run", max_steps=2, resume=True, eval_size=0)
    assert (again.accuracy_before, again.accuracy_after) == (first.accuracy_before, None)


def test_the_adapter_is_saved_before_it_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption of that would leave a run that has no adapter and cannot be resumed."""

    def interrupted(parts: Any, config: Any, when: str, notice: Any) -> None:
        if when == "after":
            raise KeyboardInterrupt

    monkeypatch.setattr("flexinfer.tasks.grpo.evaluate.scored", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", max_steps=1)
    assert adapter(tmp_path / "run")


def test_a_new_run_never_writes_over_an_old_one(whole: tuple[Path, GrpoReport]) -> None:
    folder, _ = whole
    held = adapter(folder)
    with pytest.raises(UsageError, match="holds a run already") as refused:
        run(folder)
    assert "--resume" in str(refused.value.hint)
    assert all(tensor.equal(held[name]) for name, tensor in adapter(folder).items())


def test_resuming_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no checkpoint"):
        run(tmp_path / "empty", resume=True)


def test_resuming_with_other_settings_is_refused(whole: tuple[Path, GrpoReport]) -> None:
    with pytest.raises(UsageError, match=r"--resume: the run was made with --lora-rank 4, not 8"):
        run(whole[0], resume=True, lora_rank=8)


def test_how_many_are_scored_may_change(whole: tuple[Path, GrpoReport], tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    assert run(cut, max_steps=2, eval_size=0).accuracy_after is None
    again = run(cut, resume=True, eval_size=3)
    assert None not in (again.accuracy_before, again.accuracy_after)
    assert_same(cut, whole[0])


@pytest.mark.parametrize("lost", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_that_lacks_a_part_is_none(
    lost: str, whole: tuple[Path, GrpoReport], tmp_path: Path
) -> None:
    """transformers would go on with a fresh optimizer, and say nothing."""
    cut = tmp_path / "cut"
    copytree(whole[0], cut)
    (cut / "checkpoint-4" / lost).unlink()
    assert newest(cut) == cut / "checkpoint-2"


def test_a_checkpoint_whose_writing_was_killed_is_none(
    whole: tuple[Path, GrpoReport], tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    copytree(whole[0], cut)
    state = cut / "checkpoint-4" / "trainer_state.json"
    state.write_text(state.read_text()[:300])
    assert newest(cut) == cut / "checkpoint-2"


def test_resuming_with_other_data_is_refused(tmp_path: Path) -> None:
    data, cut = tmp_path / "sums.jsonl", tmp_path / "cut"
    rows = [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values: dict[str, Any] = {"dataset": str(data), "gradient_accumulation_steps": 1}
    run(cut, max_steps=1, max_completion_length=4, **values)
    data.write_text(data.read_text().replace(": 4", ": 5"))
    with pytest.raises(UsageError, match=r"the rows of --dataset .* are not those"):
        run(cut, resume=True, max_completion_length=4, **values)


def test_two_runs_never_write_into_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with made(folder), pytest.raises(UsageError, match="another run is writing into it"):
        run(folder)
    assert not (folder / "rollouts.jsonl").exists()


def test_a_checkpoint_that_cannot_be_written_is_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("peft.peft_model.safe_save_file", full)
    with pytest.raises(WriteFailed, match=r"no checkpoint in .*No space left"):
        run(tmp_path / "run", max_steps=1)
    monkeypatch.setattr(trainer, "disk_usage", lambda folder: SimpleNamespace(free=4096))
    with pytest.raises(WriteFailed, match=r"no checkpoint in .*: no space is left on its disk"):
        run(tmp_path / "full", max_steps=1)


@pytest.mark.parametrize("ended", [KeyboardInterrupt("step 1 is saved"), WriteFailed("no step")])
def test_a_page_that_cannot_be_written_hides_nothing(
    ended: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What ended the run is what is told."""

    def full(*given: Any) -> None:
        raise WriteFailed("the page cannot be written")

    monkeypatch.setattr(page, "write_page", full)
    said, updates = list[str](), list[dict[str, Any]]()
    log: Any = SimpleNamespace(report=None, update=lambda **values: updates.append(values))
    _tell_despite(ended, log, tmp_path / "page.html", said.append)
    assert said == ["warning: the page cannot be written"]
    assert updates == [{"interrupted": True}] * isinstance(ended, KeyboardInterrupt)


def test_a_finished_run_is_not_resumed(whole: tuple[Path, GrpoReport]) -> None:
    folder, _ = whole
    lines = rollouts(folder)
    with pytest.raises(UsageError, match="has taken 4 steps already") as refused:
        run(folder, resume=True)
    assert "--max-steps" in str(refused.value.hint)
    assert rollouts(folder) == lines


def test_a_run_made_longer_goes_on_at_the_rate_of_its_longer_schedule(tmp_path: Path) -> None:
    """The checkpoint's own, at the end of its schedule, is 0: a step would change nothing."""
    decays = {"lr_scheduler": "linear", "learning_rate": 1e-3, "save_steps": 3}
    run(tmp_path / "long", max_steps=2, **decays)
    before = adapter(newest(tmp_path / "long") or tmp_path)
    longer = run(tmp_path / "long", resume=True, max_steps=4, **decays)
    whole = run(tmp_path / "whole", max_steps=4, **decays)
    rates = [step.learning_rate for step in longer.steps]
    assert rates[2:] == [step.learning_rate for step in whole.steps][2:]
    assert rates[2] > 0
    third = adapter(tmp_path / "long" / "checkpoint-3")
    assert any(not torch.equal(before[name], tensor) for name, tensor in third.items())
