"""--reward: names, near misses, and functions of the user that work, break or lie."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.tasks.grpo.problems.choose import Problems
from flexinfer.tasks.grpo.rewards.choose import BUILTIN, check_answers, choose_rewards

MODULE = """
import enum
LIMIT = 3
def good(prompts, completions, answer, **columns):
    return [float(c == a) for c, a in zip(completions, answer)]
def mixed(prompts, completions, **columns):
    import numpy
    return (None, True, 2, numpy.float32(0.5))[:len(completions)]
def fails(prompts, completions, **columns):
    raise KeyError("no such\\nkey")
def bare(prompts, completions, **columns):
    assert False
def leaves(prompts, completions, **columns):
    raise SystemExit(3)
def interrupted(prompts, completions, **columns):
    raise KeyboardInterrupt
def short(prompts, completions, **columns):
    return [1.0]
def alone(prompts, completions, **columns):
    return 1.0
def nothing(prompts, completions, **columns):
    pass
def words(prompts, completions, **columns):
    return ["1.0"] * len(completions)
def text(prompts, completions, **columns):
    return "ab"
def by_name(prompts, completions, **columns):
    return {c: 1.0 for c in completions}
def endless(prompts, completions, **columns):
    return [1.0, float("inf")]
def undefined(prompts, completions, **columns):
    return [float("nan"), 1.0]
def stiff(prompts, completions):
    return [1.0] * len(completions)
def lists(prompts, completions, **columns):
    return [[1.0]] * len(completions)
async def later(prompts, completions, **columns):
    return [1.0] * len(completions)
async def later_short(prompts, completions, **columns):
    return []
class Scale:
    def __init__(self): self.factor = 2.0
    def __call__(self, prompts, completions, **columns):
        return [self.factor] * len(completions)
    def half(self, prompts, completions, **columns):
        return [self.factor / 4] * len(completions)
class Patient:
    async def __call__(self, prompts, completions, **columns):
        return [3.0] * len(completions)
scale, patient = Scale(), Patient()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules of a user; the import system is as before afterwards."""
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]
    importlib.invalidate_caches()


def call(name: str, completions: list[str] | None = None) -> Any:
    """What the reward `name` gives two completions."""
    (reward,) = choose_rewards([name])
    said = completions or ["a", "b"]
    columns = {"completion_ids": [[1]] * len(said), "answer": ["a"] * len(said), "extra": [0, 0]}
    return reward(prompts=["?"] * len(said), completions=said, **columns)


def test_rewards_come_in_order_under_their_names(mine: Path) -> None:
    names = ["numbers", "my_rewards:good", "format-exact"]
    assert [reward.__name__ for reward in choose_rewards(names)] == names


def test_trl_sees_their_names_and_what_is_to_be_awaited(mine: Path) -> None:
    utils = pytest.importorskip("trl.trainer.utils")
    names = ["answer", "my_rewards:good", "my_rewards:later", "my_rewards:patient"]
    rewards = choose_rewards(names)
    assert [utils.get_callable_name(reward) for reward in rewards] == names
    assert [utils.is_async_callable(reward) for reward in rewards] == [False, False, True, True]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("my_rewards:good", [1.0, 0.0]),
        ("my_rewards:scale", [2.0, 2.0]),
        ("my_rewards:scale.half", [0.5, 0.5]),
    ],
)
def test_a_function_of_the_working_directory(mine: Path, name: str, expected: list[float]) -> None:
    assert call(name) == expected


def test_none_and_any_kind_of_number_will_do(mine: Path) -> None:
    scores = call("my_rewards:mixed", ["a", "b", "c", "d"])
    assert scores == [None, 1.0, 2.0, 0.5]
    assert all(type(score) is float for score in scores[1:])


def test_one_that_is_awaited(mine: Path) -> None:
    assert asyncio.run(call("my_rewards:later")) == [1.0, 1.0]
    assert asyncio.run(call("my_rewards:patient")) == [3.0, 3.0]
    with pytest.raises(UsageError, match="my_rewards:later_short returned 0 rewards for 2"):
        asyncio.run(call("my_rewards:later_short"))


def test_tensors_are_rewards(mine: Path) -> None:
    torch = pytest.importorskip("torch")
    (mine / "my_tensors.py").write_text(
        "import torch\ndef r(prompts, completions, **columns):\n return torch.tensor([1.0, 0.5])\n"
    )
    assert call("my_tensors:r") == [1.0, 0.5]
    assert torch is sys.modules["torch"]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("fails", r"raised KeyError: 'no such\\nkey'$"),
        ("bare", r"raised AssertionError$"),
        ("leaves", r"raised SystemExit: 3$"),
        ("short", "returned 1 rewards for 2 completions"),
        ("alone", "returned float, not a list of 2 rewards"),
        ("nothing", "returned NoneType, not a list of 2 rewards"),
        ("text", "returned str, not a list"),
        ("by_name", "returned dict, not a list"),
        ("words", "returned '1.0' for completion 1, not a number or None"),
        ("lists", r"returned \[1.0\] for completion 1, not a number or None"),
        ("endless", "returned inf for completion 2, not a finite number"),
        ("undefined", "returned nan for completion 1, not a finite number"),
    ],
)
def test_one_that_goes_wrong_is_named_in_one_line(mine: Path, function: str, said: str) -> None:
    name = f"my_rewards:{function}"
    with pytest.raises(UsageError, match=f"^--reward {name} {said}") as caught:
        call(name)
    assert "\n" not in caught.value.message


def test_ctrl_c_within_a_reward_is_ctrl_c(mine: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        call("my_rewards:interrupted")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_rewards:absent", r"my_rewards \(.*my_rewards.py\) has no absent"),
        ("my_rewards:LIMIT", "LIMIT is int, not a function"),
        ("my_rewards:enum", "enum is module, not a function"),
        ("my_rewards:stiff", "cannot be called: got an unexpected keyword argument"),
        ("my_nowhere:good", "cannot import my_nowhere: ModuleNotFoundError"),
        ("my_broken:good", r"cannot import my_broken: SyntaxError"),
        ("my_script:good", "cannot import my_script: SystemExit: 2"),
        ("my_needy:good", "cannot import my_needy: ModuleNotFoundError: No module named 'my_lack'"),
        ("my_loud:good", "cannot import my_loud: RuntimeError: two lines$"),
        ("json:good", r"json \(.*json.__init__.py\) has no good"),
        ("builtins:good", "builtins has no good"),
        ("my_getter:good", r"my_getter \(.*my_getter.py\) gives no good: RuntimeError: ga"),
    ],
)
def test_one_that_cannot_be_had_is_said_at_once(mine: Path, name: str, said: str) -> None:
    (mine / "my_broken.py").write_text("def good(:\n")
    (mine / "my_script.py").write_text("import sys\nsys.exit(2)\n")
    (mine / "my_needy.py").write_text("import my_lack\n")
    (mine / "my_getter.py").write_text("def __getattr__(name):\n    raise RuntimeError('ga')\n")
    (mine / "my_loud.py").write_text("raise RuntimeError('two\\nlines')\n")
    with pytest.raises(UsageError, match=f"--reward {name}.*{said}") as caught:
        choose_rewards([name])
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", [":", "a:", ":b", "a:b:c", "my_rewards.py:good", ".a:b", "a b:c"])
def test_a_name_that_is_no_function_says_how_to_write_one(name: str) -> None:
    with pytest.raises(UsageError, match="does not name a function") as caught:
        choose_rewards([name])
    assert "module:function" in str(caught.value.hint)


def test_a_folder_of_the_user_shadows_nothing_installed(mine: Path) -> None:
    (mine / "json.py").write_text("def good(prompts, completions, **columns): return []\n")
    choose_rewards(["my_rewards:good"])
    assert sys.path[-1] == str(mine)
    assert importlib.util.find_spec("decimal") is not None
    with pytest.raises(UsageError, match="json"):
        choose_rewards(["json:good"])


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("format", "format-exact"),
        ("Numbers", "numbers"),
        ("exact_answer", "exact-answer"),
        ("math-verfy", "math-verify"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"--reward {name!r} is unknown") as caught:
        choose_rewards([name])
    assert str(caught.value.hint).startswith(f"did you mean {near}? known: ")


def test_a_name_like_no_other_lists_them_all() -> None:
    with pytest.raises(UsageError) as caught:
        choose_rewards(["zzzz"])
    assert caught.value.hint == f"known: {', '.join(BUILTIN)}, module:function"


def test_none_and_twice_are_refused() -> None:
    with pytest.raises(UsageError, match="no --reward"):
        choose_rewards([])
    with pytest.raises(UsageError, match="--reward numbers is given twice"):
        choose_rewards(["numbers", "length", "numbers"])


def test_math_verify_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(EnvironmentUnfit, match="--reward math-verify needs math_verify") as caught:
        choose_rewards(["math-verify"])
    assert "'.[grpo]'" in str(caught.value.hint)


def test_a_reward_that_needs_answers_is_told_before_the_run(mine: Path) -> None:
    without = Problems(name="f.jsonl", rows=[{"prompt": "a", "answer": None}], rewards=())
    some = Problems(name="f", rows=[*without.rows, {"prompt": "b", "answer": "4"}], rewards=())
    for name in ("answer", "numbers", "exact-answer"):
        check_answers(choose_rewards([name]), some)
        with pytest.raises(UsageError, match=f"--reward {name} needs answers, which f.jsonl"):
            check_answers(choose_rewards([name]), without)
    free = ["format-exact", "format-approximate", "length", "my_rewards:good"]
    check_answers(choose_rewards(free), without)
