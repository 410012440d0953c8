"""Problems as the table that TRL's trainer takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flexinfer.errors import UsageError, one_line
from flexinfer.tasks.grpo.extras import need
from flexinfer.tasks.grpo.problems.problem_set import Row


def as_dataset(name: str, rows: Sequence[Row]) -> Any:
    """Return rows of the set `name` as a datasets.Dataset.

    Raises UsageError where a column holds what a table cannot, such as values of different kinds,
    EnvironmentUnfit without the datasets library.
    """
    datasets = need("datasets", "train-grpo", "grpo")
    arrow_error = need("pyarrow", "train-grpo", "grpo").ArrowException
    try:
        return datasets.Dataset.from_list([*rows])
    except (arrow_error, OverflowError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"--dataset {name}: a column holds what a table cannot: {one_line(error)}",
            hint="give a column the same plain kind of value in every row, or leave it out",
        ) from error
