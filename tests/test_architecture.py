"""The shape of the package: imports go left, files stay short, and starting up needs no torch."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flexinfer"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = sorted(str(path.relative_to(ROOT)) for path in FILES)
ORDER = "assets errors config core kernels attention models weights engine backends tasks cli"
RANKS = {room: rank for rank, room in enumerate(ORDER.split())}
FACADE = RANKS["engine"]
"""What `flexinfer` itself exports (Engine and its records) lies there."""
EXEMPT = {"flexinfer/__init__.py", "flexinfer/__main__.py", "flexinfer/trl.py"}
MAX_LINES = 250


def absolute(node: ast.ImportFrom, file: str) -> str:
    """The dotted name that `from ... import` starts from, relative ones resolved."""
    if not node.level:
        return node.module or ""
    parents = Path(file).parent.parts
    base = parents[: len(parents) - node.level + 1]
    return ".".join((*base, *([node.module] if node.module else [])))


def imported(source: str, file: str) -> Iterator[str]:
    """Every dotted name a file may import, at any depth and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, file)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def wrong_edges(source: str, file: str) -> list[str]:
    """Imports of `file` that do not go left; within a room anything goes."""
    room = Path(file).with_suffix("").parts[1]
    tops = dict.fromkeys(("trl", "__main__"), len(RANKS))
    wrong = []
    for name in imported(source, file):
        parts = name.split(".")
        if parts[0] != "flexinfer":
            continue
        target = parts[1] if len(parts) > 1 else ""
        if target != room and (RANKS | tops).get(target, FACADE) >= RANKS[room]:
            wrong.append(f"{file} imports {name}")
    return wrong


@pytest.mark.parametrize("file", [m for m in MODULES if m not in EXEMPT])
def test_imports_go_left(file: str) -> None:
    assert not wrong_edges((ROOT / file).read_text(), file)


def beside(file: str, sources: Iterable[str]) -> Iterator[tuple[Path, Path]]:
    """The inner room of a file, or one around it, with each of the rooms beside it that it uses."""
    for name in sources:
        used, own = Path(*name.split(".")), Path(file)
        for depth in range(3, len(own.parts)):
            mine, theirs = Path(*own.parts[:depth]), Path(*used.parts[:depth])
            if mine != theirs and mine.parent == theirs.parent and (ROOT / theirs).is_dir():
                yield mine, theirs


def test_inner_rooms_import_one_way() -> None:
    """Of rooms side by side in a room: no circle, however long."""
    uses: dict[Path, set[Path]] = {}
    for file in MODULES:
        for mine, theirs in beside(file, imported((ROOT / file).read_text(), file)):
            uses.setdefault(mine, set()).add(theirs)
    assert len(uses) > 10
    list(TopologicalSorter(uses).static_order())


def test_a_neighbour_is_seen() -> None:
    file, used = "flexinfer/tasks/bench/lanes/child.py", "flexinfer.tasks.bench.measure.rows.heard"
    seen = (Path("flexinfer/tasks/bench/lanes"), Path("flexinfer/tasks/bench/measure"))
    assert list(beside(file, [used])) == [seen]
    assert not list(beside(file, ["flexinfer.tasks.bench.config.BenchConfig"]))


def test_every_room_has_a_place() -> None:
    rooms = {Path(m).with_suffix("").parts[1] for m in MODULES if m not in EXEMPT}
    assert rooms <= RANKS.keys()


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("flexinfer/core/a.py", "import flexinfer.kernels.b"),
        ("flexinfer/core/a.py", "from flexinfer.models import b"),
        ("flexinfer/core/a.py", "from flexinfer import engine"),
        ("flexinfer/core/a.py", "from .. import engine"),
        ("flexinfer/core/a.py", "from ..engine import b"),
        ("flexinfer/core/a.py", "def f():\n    import flexinfer.cli.b"),
        ("flexinfer/core/a.py", "if TYPE_CHECKING:\n    from flexinfer.attention.b import C"),
        ("flexinfer/core/a.py", "from flexinfer import Engine"),
        ("flexinfer/engine/a.py", "import flexinfer"),
        ("flexinfer/cli/a.py", "from flexinfer.trl import make_rollout"),
        ("flexinfer/errors.py", "from flexinfer.config import quiet"),
        ("flexinfer/config.py", "from flexinfer.core import pages"),
        ("flexinfer/assets/a.py", "from flexinfer.errors import UsageError"),
        ("flexinfer/tasks/doctor/a.py", "from ...cli import b"),
    ],
)
def test_an_edge_to_the_right_is_seen(file: str, source: str) -> None:
    assert wrong_edges(source, file)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("flexinfer/core/a.py", "from flexinfer.errors import UsageError"),
        ("flexinfer/core/a.py", "from . import pages"),
        ("flexinfer/tasks/doctor/a.py", "from ..grpo import b"),
        ("flexinfer/cli/a.py", "from flexinfer.tasks import b\nimport torch"),
        ("flexinfer/cli/a.py", "from flexinfer import __version__"),
    ],
)
def test_an_edge_to_the_left_passes(file: str, source: str) -> None:
    assert not wrong_edges(source, file)


@pytest.mark.parametrize("file", MODULES)
def test_files_stay_short(file: str) -> None:
    assert len((ROOT / file).read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("file", [m for m in MODULES if m.startswith("flexinfer/core/")])
def test_core_is_standard_library_only(file: str) -> None:
    tops = {name.split(".")[0] for name in imported((ROOT / file).read_text(), file)}
    assert tops <= sys.stdlib_module_names | {"flexinfer"}


@pytest.mark.parametrize("module", ["flexinfer", "flexinfer.cli.main", "flexinfer.core.scheduler"])
def test_starting_up_needs_no_torch(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} does not exist yet")
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
