"""What fails before its first step leaves nothing behind, and takes nothing of anybody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexinfer.errors import EnvironmentUnfit
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.saved.unbegun import files_unmade, folder_unmade

NAMES = ("train_grpo.json", "rollouts.jsonl", "stats.json")


def broken_off(config: GrpoConfig, learned: str, error: type[BaseException]) -> None:
    """Do what a run does that writes its files, and in them what was `learned`, then fails."""
    with folder_unmade(config.output_dir):
        config.output_dir.mkdir(parents=True, exist_ok=True)
        with files_unmade(config):
            for name in NAMES:
                (config.output_dir / name).write_text(learned if "rollouts" in name else "{}")
            if config.report is not None:
                config.report.write_text("page")
            raise error("no")


def fails(config: GrpoConfig, learned: str = "", error: type[BaseException] = OSError) -> None:
    """Fail so, and go on."""
    with pytest.raises(error):
        broken_off(config, learned, error)


@pytest.mark.parametrize("error", [EnvironmentUnfit, OSError, AssertionError])
def test_nothing_is_left(tmp_path: Path, error: type[BaseException]) -> None:
    page = tmp_path / "page.html"
    fails(GrpoConfig(output_dir=tmp_path / "a" / "b", report=page), error=error)
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    kept = {folder / "notes.txt", folder / "stats.json"}
    for path in kept:
        path.write_text("mine")
    fails(GrpoConfig(output_dir=folder))
    assert set(folder.iterdir()) == kept


def test_what_was_learned_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fails(GrpoConfig(output_dir=folder), learned="{}\n")
    assert {path.name for path in folder.iterdir()} == set(NAMES)


def test_an_interrupted_run_tells_how_far_it_came(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fails(GrpoConfig(output_dir=folder), error=KeyboardInterrupt)
    assert {path.name for path in folder.iterdir()} == set(NAMES)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_empty_folder_is_taken_away_however_it_ended(
    error: type[BaseException], tmp_path: Path
) -> None:
    folder = tmp_path / "above" / "run"

    def fail() -> None:
        folder.mkdir(parents=True)
        raise error

    with pytest.raises(error), folder_unmade(folder):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_went_well_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = GrpoConfig(output_dir=folder)
    with folder_unmade(folder):
        folder.mkdir()
        with files_unmade(config):
            (folder / "rollouts.jsonl").touch()
    assert [path.name for path in folder.iterdir()] == ["rollouts.jsonl"]
