"""Sets of the hub, through the datasets library.

- `gsm8k`: openai/gsm8k, config `main`, columns `question` and `answer`; an answer is worked out and
  ends in `#### 1,234`. 7,473 rows to train on; the 1,319 of its test split are held out.
- `dapo-math`: open-r1/DAPO-Math-17k-Processed, config `en` (about 14,100 rows, one split), columns
  `prompt` and `solution`, which is the bare answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flexinfer.engine.requests.chat import GRPO_SYSTEM
from flexinfer.errors import EnvironmentUnfit, one_line
from flexinfer.tasks.grpo.extras import need
from flexinfer.tasks.grpo.problems.problem_set import Problems, Row, user_says
from flexinfer.weights.hub import fetched, reason

REWARDS = ("format-exact", "format-approximate", "answer", "numbers")
"""They read the markers that the system prompt of every row explains."""
ANSWER_MARK = "####"
CARD = "README.md"
"""The page of a set, the first that the datasets library asks for."""


@dataclass(frozen=True)
class HubSet:
    """Where a set lies, which of its columns hold question and answer, and its splits."""

    path: str
    config: str
    question: str
    answer: str
    final: Callable[[str], str]
    train: str = "train"
    test: str | None = None


def after_mark(worked: str) -> str:
    """Return the number after GSM8K's last mark, without the commas between thousands."""
    return worked.rpartition(ANSWER_MARK)[2].replace(",", "").strip()


HUB_SETS: Mapping[str, HubSet] = MappingProxyType(
    {
        "gsm8k": HubSet("openai/gsm8k", "main", "question", "answer", after_mark, test="test"),
        "dapo-math": HubSet(
            "open-r1/DAPO-Math-17k-Processed", "en", "prompt", "solution", str.strip
        ),
    }
)


def from_hub(name: str) -> Problems:
    """Load the set `name` of HUB_SETS.

    Raises EnvironmentUnfit where the datasets library is missing, the set is neither cached nor
    reachable, or it is not what it was.
    """
    hub_set = HUB_SETS[name]
    check_reach(name, hub_set)
    rows = _rows(name, hub_set, hub_set.train)
    held_out = [] if hub_set.test is None else _rows(name, hub_set, hub_set.test)
    beside = f"; {len(held_out)} others are held out" if held_out else ""
    notice = f"problems: {name} ({hub_set.path}, {hub_set.config}), {len(rows)} rows{beside}"
    return Problems(name=name, rows=rows, held_out=held_out, rewards=REWARDS, notices=(notice,))


def check_reach(name: str, hub_set: HubSet) -> None:
    """Raise EnvironmentUnfit at once where a set is neither cached nor reachable.

    The datasets library would try again for half a minute, and say so each time.
    """
    datasets = need("datasets", f"--dataset {name}", "grpo")
    owner, own = hub_set.path.split("/")
    folder = f"{owner}___{datasets.naming.camelcase_to_snakecase(own)}"
    cached = Path(datasets.config.HF_DATASETS_CACHE) / folder
    if cached.is_dir():
        return
    try:
        fetched(hub_set.path, [CARD], kind="dataset")
    except (OSError, ValueError) as error:  # what huggingface_hub raises derives from these
        raise _out_of_reach(name, hub_set, reason(error)) from error


def _out_of_reach(name: str, hub_set: HubSet, why: str) -> EnvironmentUnfit:
    """Return what to raise where a set cannot be had."""
    return EnvironmentUnfit(
        f"--dataset {name}: {hub_set.path} is neither cached nor reachable ({why})",
        hint="go online once, give a FILE.jsonl, or --dataset arithmetic",
    )


def _rows(name: str, hub_set: HubSet, split: str) -> list[Row]:
    """Return the rows of a split."""
    table = _load(name, hub_set, split)
    for column in (hub_set.question, hub_set.answer):
        if column not in table.column_names:
            raise EnvironmentUnfit(
                f"--dataset {name}: {hub_set.path} has no column {column!r} any more, "
                f"but {', '.join(table.column_names)}",
                hint="save it as FILE.jsonl with prompt and answer, and give that",
            )
    return [*_read(table, hub_set)]


def _read(table: Iterable[Mapping[str, Any]], hub_set: HubSet) -> Iterable[Row]:
    """Turn the rows of the hub into messages with the default system prompt, and answers."""
    for row in table:
        worked = row[hub_set.answer]
        answer = None if worked is None else hub_set.final(worked) or None
        yield {"prompt": user_says(row[hub_set.question], GRPO_SYSTEM), "answer": answer}


def _load(name: str, hub_set: HubSet, split: str) -> Any:
    """Return a split as datasets has it."""
    datasets = need("datasets", f"--dataset {name}", "grpo")
    try:
        return datasets.load_dataset(hub_set.path, hub_set.config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise _out_of_reach(name, hub_set, one_line(error)) from error
