"""The completion scripts are those of the commands as they are, and shells can use them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flexinfer.cli.completions import SCRIPTS, main, read_commands

FOLDER = Path(__file__).parents[2] / "completions"
CHECKERS = {
    "flexinfer.bash": ["bash", "-n"],
    "_flexinfer": ["zsh", "-n"],
    "flexinfer.fish": ["fish", "-n"],
}


def test_the_scripts_in_the_tree_are_up_to_date(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "flexinfer.cli.completions", str(tmp_path)]
    subprocess.run(words, check=True, cwd=FOLDER.parent)
    assert {path.name for path in FOLDER.iterdir()} == set(SCRIPTS)
    for name in SCRIPTS:
        fresh = (tmp_path / name).read_text()
        cure = "python -m flexinfer.cli.completions"
        assert fresh == (FOLDER / name).read_text(), f"{name} is out of date: {cure}"


def test_what_cannot_be_written_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["n" * 300]) == 1
    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["file"], ["file/under"], ["--help"], ["a", "b"]])
def test_what_is_no_folder_is_wrong_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(words) == 2
    first, hint = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert words[0] in first
    assert hint == "hint: python -m flexinfer.cli.completions [FOLDER]"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_shells_can_read_them(name: str) -> None:
    if shutil.which(CHECKERS[name][0]) is None:
        pytest.skip(f"no {CHECKERS[name][0]} here")
    subprocess.run([*CHECKERS[name], str(FOLDER / name)], check=True)


def offered_by_bash(*words: str) -> list[str]:
    """Return what bash offers for the last of `words`."""
    script = (
        f"source {FOLDER / 'flexinfer.bash'}",
        "compopt() { :; }",
        f"COMP_WORDS=({' '.join(word or repr('') for word in words)})",
        f"COMP_CWORD={len(words) - 1}",
        "_flexinfer",
        'echo "${COMPREPLY[@]}"',
    )
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        check=True,
        capture_output=True,
        text=True,
        cwd=FOLDER.parent,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["gen"], ["generate"]),
        (["--ver"], ["--version"]),
        (["generate", "--max-s"], ["--max-seq-length"]),
        (["generate", "--dtype", "f"], ["float16", "float32"]),
        (["generate", "--model", "tin"], ["tiny-gemma4"]),
        (["generate", "--format", "j"], ["jsonl"]),
        (["bench", "--format", "j"], ["json"]),
        (["doctor", "--check", "bits"], ["bitsandbytes"]),
        (["generate", "--input", "pyproj"], ["pyproject.toml"]),
        (["generate", "--temperature", ""], []),
        (["generate", "pyproj"], []),
    ],
)
def test_bash_offers(words: list[str], offered: list[str]) -> None:
    assert offered_by_bash("flexinfer", *words) == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_offers() -> None:
    script = f"source {FOLDER / 'flexinfer.fish'}; complete -C 'flexinfer bench --format '"
    done = subprocess.run(["fish", "-c", script], check=True, capture_output=True, text=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [
        "csv",
        "json",
        "md",
        "table",
    ]


def test_every_command_and_option_is_in_every_script() -> None:
    for name in SCRIPTS:
        text = (FOLDER / name).read_text()
        for command in read_commands():
            assert command.name in text
            for option in command.options:
                long = max(option.names, key=len).removeprefix("--")
                assert long in text, (name, command.name, long)
