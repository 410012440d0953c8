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

    Bars of a `group` share a colour. A `value` of None is a bar that is named and not drawn: what
    was asked for and is not there.
    """

    label: str
    value: float | None
    text: str
    points: Sequence[float] = ()
    group: int = 0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve over its own `x`; those of a `group` share a colour, of None they are grey.

    A `dashed` one is what could be: no dots stand on it. `low` and `high` bound its values.
    """

    label: str
    x: Sequence[float]
    values: Sequence[float]
    group: int | None
    dashed: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The words around figures; `title` names them, `unit` is what their axis counts.

    `limit` is a value that a dashed line marks, with its name. `wide`: it has a row for itself.
    """

    title: str
    unit: str
    limit: tuple[float, str] | None = None
    wide: bool = False


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
class Growth(Chart):
    """Curves over sizes that double from tick to tick; `ticks` are the sizes that are named."""

    x_label: str
    ticks: Sequence[int]
    lines: Sequence[Line]


@dataclass(frozen=True, kw_only=True)
class Parts(Chart):
    """Horizontal bars made of parts, the first one on top; `texts` stand at their ends."""

    labels: Sequence[str]
    texts: Sequence[str]
    series: Sequence[Series]


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """Horizontal bars, the first one on top."""

    bars: Sequence[Bar]


AnyChart = Curves | Bars | Growth | Parts


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells; the first row is the head, the first `words` columns stand to the left.

    Tables of one `family` stand beside each other where there is room.
    """

    title: str
    rows: Sequence[Sequence[str]]
    words: int = 0
    family: str = ""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A figure to be seen first: what it is, the figure, and what belongs to it."""

    title: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A report: heading, lines that say what ran, charts; the HTML has the rest too.

    `verdict` is a word or two beside the heading, and whether it is good.
    """

    title: str
    facts: Sequence[str]
    charts: Sequence[AnyChart]
    tables: Sequence[Table] = field(default=())
    notes: Sequence[str] = field(default=())
    verdict: tuple[str, bool] | None = None
    tiles: Sequence[Tile] = field(default=())
