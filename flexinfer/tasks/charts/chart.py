"""What a report shows, before anything is drawn: charts, a table, facts, all plain data.

None among values is "there is none at this place": a gap in a line, no bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Values = Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line or one layer of a stack; `low` and `high` bound a band around a line."""

    label: str
    values: Values
    low: Values = ()
    high: Values = ()


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A labelled figure; `points` are the single measurements, `text` stands at its end.

    A `value` of None is a bar that is named and not drawn: what was asked for and is not there.
    """

    label: str
    value: float | None
    text: str
    points: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The words around figures; `title` names them, `unit` is what their axis counts.

    `limit` is a value that a dashed line marks, with its name.
    """

    title: str
    unit: str
    limit: tuple[float, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Curves(Chart):
    """Lines over whole numbers `x`, or where `stacked` the layers of one bar each.

    `whole` shows values from zero on; `log` scales them by powers of ten, without the zeros.
    """

    x: Sequence[int]
    x_label: str
    series: Sequence[Series]
    stacked: bool = False
    whole: bool = False
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """Horizontal bars, the first one on top."""

    bars: Sequence[Bar]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells; the first row is the head, the first `words` columns stand to the left."""

    title: str
    rows: Sequence[Sequence[str]]
    words: int = 0


@dataclass(frozen=True, kw_only=True)
class Page:
    """A report: heading, lines that say what ran, charts; the HTML has tables and notes too."""

    title: str
    facts: Sequence[str]
    charts: Sequence[Curves | Bars]
    tables: Sequence[Table] = field(default=())
    notes: Sequence[str] = field(default=())
