"""Sets of the hub, with a stand-in for the library that would download them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flexinfer.engine.requests.chat import GRPO_SYSTEM, GRPO_TEMPLATE
from flexinfer.errors import EnvironmentUnfit
from flexinfer.tasks.grpo.problems.choose import choose_problems

GSM8K = {
    "train": [
        {"question": "How many?", "answer": "She sold 48/2 = <<48/2=24>>24.\n#### 1,072"},
        {"question": "And now?", "answer": "#### is odd\n#### -5"},
    ],
    "test": [{"question": "Left?", "answer": "3+4\n#### 7"}],
}
DAPO = {
    "train": [
        {"prompt": "Find $x$.", "solution": "34", "data_source": "math_dapo"},
        {"prompt": "Find $y$.", "solution": " 5 "},
        {"prompt": "Find $z$.", "solution": None},
        {"prompt": "Find $w$.", "solution": ""},
    ]
}


class Table(list[dict[str, Any]]):
    """The part of a datasets.Dataset that is used."""

    @property
    def column_names(self) -> list[str]:
        return [*self[0]]


class Hub:
    """Stands in for the datasets library: holds sets and notes what is asked for."""

    exceptions = SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))

    def __init__(self, sets: dict[tuple[str, str], Any], error: Exception | None = None) -> None:
        self.sets, self.error = sets, error
        self.asked: list[tuple[str, str, str]] = []

    def load_dataset(self, path: str, config: str, *, split: str) -> Table:
        self.asked.append((path, config, split))
        if self.error is not None:
            raise self.error
        return Table(self.sets[path, config][split])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub with both sets."""
    stand_in = Hub(
        {("openai/gsm8k", "main"): GSM8K, ("open-r1/DAPO-Math-17k-Processed", "en"): DAPO}
    )
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    return stand_in


def asked(text: str) -> list[dict[str, str]]:
    """The messages that ask a question of the hub."""
    return [{"role": "system", "content": GRPO_SYSTEM}, {"role": "user", "content": text}]


def test_gsm8k(hub: Hub) -> None:
    problems = choose_problems("GSM8K", seed=0, count=1)
    assert problems.rows == [
        {"prompt": asked("How many?"), "answer": "1072"},
        {"prompt": asked("And now?"), "answer": "-5"},
    ]
    assert problems.held_out == [{"prompt": asked("Left?"), "answer": "7"}]
    assert hub.asked == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]
    assert problems.notices == (
        "problems: gsm8k (openai/gsm8k, main), 2 rows; 1 others are held out",
    )


def test_dapo_math(hub: Hub) -> None:
    problems = choose_problems("dapo-math", seed=0)
    assert [row["answer"] for row in problems.rows] == ["34", "5", None, None]
    assert problems.rows[0]["prompt"] == asked("Find $x$.")
    assert problems.held_out == []
    assert hub.asked == [("open-r1/DAPO-Math-17k-Processed", "en", "train")]
    assert problems.rewards == ("format-exact", "format-approximate", "answer", "numbers")


def test_the_system_prompt_is_the_one_the_grpo_template_gives_anyway(hub: Hub) -> None:
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Template(GRPO_TEMPLATE)
    given = choose_problems("gsm8k", seed=0).rows[0]["prompt"]
    with_ours = template.render(messages=given, eos_token="<e>", add_generation_prompt=True)
    without = template.render(messages=given[1:], eos_token="<e>", add_generation_prompt=True)
    assert with_ours == without


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub\n(offline)"),
        FileNotFoundError("no such set"),
        ValueError("BuilderConfig 'main' not found"),
        Hub.exceptions.DatasetsError("checksums differ"),
    ],
)
def test_a_set_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Hub({}, error))
    with pytest.raises(EnvironmentUnfit, match="gsm8k: openai/gsm8k is neither cached") as caught:
        choose_problems("gsm8k", seed=0)
    assert "\n" not in caught.value.message
    assert str(error).split()[0] in caught.value.message
    assert "--dataset arithmetic" in str(caught.value.hint)


def test_the_library_itself_says_so_without_a_network() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(EnvironmentUnfit, match=r"dapo-math: open-r1/.* is neither cached"):
        choose_problems("dapo-math", seed=0)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EnvironmentUnfit, match="--dataset gsm8k needs datasets") as caught:
        choose_problems("gsm8k", seed=0)
    assert caught.value.hint == "pip install 'flexinfer[grpo]'"


def test_a_set_whose_columns_have_changed(hub: Hub) -> None:
    hub.sets["openai/gsm8k", "main"] = {"train": [{"query": "?", "answer": "#### 1"}]}
    with pytest.raises(EnvironmentUnfit, match="has no column 'question' any more, but query, a"):
        choose_problems("gsm8k", seed=0)
