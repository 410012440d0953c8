"""The `environment` of every document: of this package, whatever the place it is run from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import flexinfer
from flexinfer.tasks.environment import environment

PACKAGE = Path(flexinfer.__file__).parent


def git(*words: str, cwd: Path) -> str:
    """Return what git says, with an author and without the reader's own settings."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *who, *words]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in another repository, which also has a flexinfer/__init__.py at its commit."""
    (tmp_path / "flexinfer").mkdir()
    (tmp_path / "flexinfer/__init__.py").touch()
    (tmp_path / "__init__.py").touch()
    git("init", "-q", cwd=tmp_path)
    git("add", ".", cwd=tmp_path)
    git("commit", "-qm", "another", cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commit_of_the_package() -> str | None:
    try:
        git("ls-files", "--error-unmatch", "__init__.py", cwd=PACKAGE)
        return git("rev-parse", "HEAD", cwd=PACKAGE).strip()
    except subprocess.CalledProcessError:
        return None


def test_the_commit_is_that_of_the_packages_own_checkout(elsewhere: Path) -> None:
    assert elsewhere
    expected = commit_of_the_package()
    found = environment()["commit"]
    assert (found and found.removesuffix("-dirty")) == expected
    assert found is None or not found.startswith(git("rev-parse", "HEAD", cwd=elsewhere).strip())


def test_a_git_hook_of_another_repository_does_not_change_it(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = commit_of_the_package()
    monkeypatch.setenv("GIT_DIR", str(elsewhere / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(elsewhere))
    monkeypatch.setenv("GIT_INDEX_FILE", str(elsewhere / ".git/index"))
    found = environment()["commit"]
    assert (found and found.removesuffix("-dirty")) == expected


def test_a_copy_inside_another_checkout_has_no_commit(elsewhere: Path) -> None:
    target = elsewhere / "env/copy/flexinfer"
    (target / "tasks").mkdir(parents=True)
    for name in ("__init__.py", "tasks/__init__.py", "tasks/environment.py"):
        (target / name).write_bytes((PACKAGE / name).read_bytes())
    code = "from flexinfer.tasks.environment import environment; print(environment()['commit'])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(target.parent), "PATH": "/usr/bin:/bin"},
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "None"
