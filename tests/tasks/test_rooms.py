"""No task reaches into another's room; what several want lies beside them and knows none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TASKS = Path(__file__).parents[2] / "flexinfer" / "tasks"
SHARED = {"charts", "reference"}
"""Rooms that belong to no command."""
COMMANDS = {path.name for path in TASKS.iterdir() if (path / "__init__.py").is_file()} - SHARED


def rooms_of(source: str) -> set[str]:
    """The rooms within tasks that a source imports from, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = (name.split(".") for name in names if name.startswith("flexinfer.tasks."))
    return {part[2] for part in parts}


def test_an_edge_is_seen() -> None:
    assert {"bench", "doctor", "drift", "generate"} <= COMMANDS
    assert rooms_of("def f():\n    from flexinfer.tasks.drift.run import run_drift") == {"drift"}
    assert rooms_of("from flexinfer.tasks import bench") == {"bench"}


@pytest.mark.parametrize("path", sorted(TASKS.rglob("*.py")), ids=lambda p: str(p.name))
def test_a_task_imports_its_own_room_and_shared_ones(path: Path) -> None:
    own = path.relative_to(TASKS).parts[0]
    assert not rooms_of(path.read_text()) & COMMANDS - {own}
