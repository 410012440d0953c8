"""Sets of the hub, with a stand-in for the library that would download them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from flexinfer.engine.requests.chat import GRPO_SYSTEM, GRPO_TEMPLATE
from flexinfer.errors import EnvironmentUnfit, install_hint
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

    naming = datasets.naming
    exceptions = SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))

    def __init__(
        self, sets: dict[tuple[str, str], Any], cache: Path, error: Exception | None = None
    ) -> None:
        self.sets, self.error = sets, error
        self.config = SimpleNamespace(HF_DATASETS_CACHE=str(cache))
        for path in ("openai___gsm8k", "open-r1___dapo-math-17k-processed"):
            (cache / path).mkdir(parents=True)
        self.asked: list[tuple[str, str, str]] = []

    def load_dataset(self, path: str, config: str, *, split: str) -> Table:
        self.asked.append((path, config, split))
        if self.error is not None:
            raise self.error
        return Table(self.sets[path, config][split])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """The hub with both sets, both cached."""
    stand_in = Hub(
        {("openai/gsm8k", "main"): GSM8K, ("open-r1/DAPO-Math-17k-Processed", "en"): DAPO}, tmp_path
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
def test_a_set_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Hub({}, tmp_path, error))
    with pytest.raises(EnvironmentUnfit, match="gsm8k: openai/gsm8k is neither cached") as caught:
        choose_problems("gsm8k", seed=0)
    assert "\n" not in caught.value.message
    assert str(error).split()[0] in caught.value.message
    assert "--dataset arithmetic" in str(caught.value.hint)


def test_the_hub_is_asked_once_for_what_is_not_cached(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[str, object]] = []

    def snapshot_download(repo_id: str, **options: object) -> str:
        seen.append((repo_id, options["repo_type"]))
        raise LocalEntryNotFoundError("no connection\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    hub.config.HF_DATASETS_CACHE = str(tmp_path / "empty")
    with pytest.raises(EnvironmentUnfit) as caught:
        choose_problems("gsm8k", seed=0)
    assert caught.value.message == (
        "--dataset gsm8k: openai/gsm8k is neither cached nor reachable (no connection to the hub)"
    )
    assert seen == [("openai/gsm8k", "dataset")]
    assert hub.asked == [], "the library would try again for half a minute"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EnvironmentUnfit, match="--dataset gsm8k needs datasets") as caught:
        choose_problems("gsm8k", seed=0)
    assert caught.value.hint == install_hint("grpo")


def test_a_set_whose_columns_have_changed(hub: Hub) -> None:
    hub.sets["openai/gsm8k", "main"] = {"train": [{"query": "?", "answer": "#### 1"}]}
    with pytest.raises(EnvironmentUnfit, match="has no column 'question' any more, but query, a"):
        choose_problems("gsm8k", seed=0)
