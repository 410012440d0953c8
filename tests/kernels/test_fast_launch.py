"""Kernels that are launched to start early touch nothing of the kernels before them too early.

Before `await_inputs` only weights may be read: nothing in a step writes them. That nothing is
written before it is seen in the machine code too (test_fast_compile.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "flexinfer" / "kernels" / "fast"
WEIGHTS = {"weight", "post", "after", "scalar", "q_norm", "k_norm", "inv_freq"}
WEIGHTS_OF = {"_columns": {"b"}}
"""Functions of the package that load through their first argument, and the weights it may be."""
HARMLESS = {
    "program_id", "arange", "zeros", "full", "cdiv", "constexpr", "where", "static_range", "len",
}  # fmt: skip
"""Functions of triton.language, and of Python, that touch no memory."""


def early_kernels(text: str) -> dict[str, ast.FunctionDef]:
    """Return the kernels of a module that can be launched early: those with PDL, by name."""
    return {
        node.name: node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
        and node.name.endswith("_kernel")
        and "PDL" in [argument.arg for argument in node.args.args]
    }


def base(pointer: ast.expr) -> str:
    """Return the name that a pointer starts from."""
    while isinstance(pointer, ast.BinOp):
        pointer = pointer.left
    return ast.unparse(pointer)


def too_early(kernel: ast.FunctionDef) -> Iterator[str]:
    """Yield what a kernel does before it waits that it should not."""
    body = kernel.body
    waits = [i for i, node in enumerate(body) if ast.unparse(node) == "await_inputs(PDL)"]
    if len(waits) != 1:
        yield f"{kernel.name} waits {len(waits)} times in its body"
        return
    calls = [n for stmt in body[: waits[0]] for n in ast.walk(stmt) if isinstance(n, ast.Call)]
    for call in calls:
        name = ast.unparse(call.func)
        if name == "tl.load":
            if base(call.args[0]) not in WEIGHTS:
                yield f"{kernel.name}: {ast.unparse(call)}"
        elif name in WEIGHTS_OF:
            if base(call.args[0]) not in WEIGHTS_OF[name]:
                yield f"{kernel.name}: {ast.unparse(call)}"
        elif name.removeprefix("tl.") not in HARMLESS and not name.endswith(".to"):
            yield f"{kernel.name}: {ast.unparse(call)}"


def launches(text: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield (kernel, call) of every launch in a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            name = ast.unparse(node.func.value)
            if name.endswith("_kernel"):
                yield name, node


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_nothing_is_touched_too_early(path: Path) -> None:
    for kernel in early_kernels(path.read_text()).values():
        assert list(too_early(kernel)) == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_who_starts_early_knows_it(path: Path) -> None:
    """A kernel launched early is told so, else it would not wait; one launched plainly is not."""
    text = path.read_text()
    for name, call in launches(text):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        told = [ast.unparse(argument) for argument in call.args]
        if name in early_kernels(text):
            assert given.get("launch_pdl") in told, name
        else:
            assert "launch_pdl" not in given, name


def test_there_are_such_kernels() -> None:
    found = {name for path in FOLDER.glob("*.py") for name in early_kernels(path.read_text())}
    assert found >= {"matmul_kernel", "gated_kernel", "add_norm_kernel", "rope_write_kernel"}


@pytest.mark.parametrize(
    "early",
    [
        "x = tl.load(delta + row * E)",
        "tl.store(out + row, 1.0)",
        "x = tl.load(table + tl.load(tokens))",
        "x = _load(w, 0, 0)",
        "if E > 3:\n        tl.atomic_add(weight, 1)",
        "await_inputs(PDL)",
    ],
)
def test_a_kernel_that_begins_too_early_is_seen(early: str) -> None:
    text = f"def some_kernel(x, PDL):\n    {early}\n    await_inputs(PDL)\n"
    assert list(too_early(early_kernels(text)["some_kernel"]))


def test_reading_weights_early_passes() -> None:
    text = (
        "def some_kernel(x, PDL):\n    c = tl.program_id(0) * 4 + tl.arange(0, 4)\n"
        "    w = tl.load(weight + c, mask=c < 9, other=0.0).to(tl.float32)\n    await_inputs(PDL)\n"
    )
    assert not list(too_early(early_kernels(text)["some_kernel"]))
