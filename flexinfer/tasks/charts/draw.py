"""Charts drawn by matplotlib, each on axes of its own.

Colours are those of Okabe and Ito (2008), which people with any colour vision tell apart; layers
and lines differ in brightness too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flexinfer.tasks.charts.chart import AnyChart, Bars, Chart, Curves, Growth, Parts, Values
from flexinfer.tasks.charts.growth import draw_growth
from flexinfer.tasks.charts.parts import draw_parts
from flexinfer.tasks.charts.style import GREY, INK, STYLE, colour, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHED = (0, (4, 3))
MANY_BARS = 10
MARKED = 40
"""Up to so many values each is marked by a dot; a single one would else be invisible."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the house's style within; matplotlib's own settings are as before after it."""
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def draw(axes: Axes, chart: AnyChart) -> None:
    """Draw a chart and the words around it."""
    axes.set_title(chart.title)
    if isinstance(chart, Bars):
        _draw_bars(axes, chart)
    elif isinstance(chart, Growth):
        draw_growth(axes, chart)
    elif isinstance(chart, Parts):
        draw_parts(axes, chart)
    elif chart.stacked:
        _draw_stack(axes, chart)
    else:
        _draw_lines(axes, chart)


def _draw_lines(axes: Axes, chart: Curves) -> None:
    """Draw lines and bands; where there are many values, a running mean over a pale line."""
    many = len(chart.x) > MARKED
    for series, shade in zip(chart.series, _colours(chart.series), strict=True):
        values = _numbers(series.values, chart.log)
        marker, alpha, width = (None, 0.35, 0.9) if many else ("o", 1.0, 1.6)
        axes.plot(
            chart.x, values, color=shade, alpha=alpha, linewidth=width,
            marker=marker, markersize=3.5,
        )  # fmt: skip
        if many:
            axes.plot(chart.x, running_mean(values, _window(chart)), color=shade, linewidth=1.8)
        if series.low:
            low, high = _numbers(series.low, chart.log), _numbers(series.high, chart.log)
            axes.fill_between(chart.x, low, high, color=shade, alpha=0.14, linewidth=0)
    if chart.log and any(v for series in chart.series for v in series.values if v):
        axes.set_yscale("log")
    _finish(axes, chart, f", bold: mean of {_window(chart)}" if many else "")


def _window(chart: Curves) -> int:
    """Return over how many values the running mean goes."""
    return max(2, len(chart.x) // 20)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and those before it, `window` in all, without the NaN."""
    spans = (values[max(0, at + 1 - window) : at + 1] for at in range(len(values)))
    real = ([value for value in span if not math.isnan(value)] for span in spans)
    return [sum(span) / len(span) if span else math.nan for span in real]


def _draw_stack(axes: Axes, chart: Curves) -> None:
    """Draw one bar a value of x, layer upon layer; the bars touch where there are many."""
    width = 0.8 if len(chart.x) <= MARKED else 1.0
    base = [0.0] * len(chart.x)
    for series, shade in zip(chart.series, _colours(chart.series), strict=True):
        heights = [value or 0.0 for value in series.values]
        axes.bar(chart.x, heights, width, bottom=base, color=shade, linewidth=0)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    _finish(axes, chart, "")


def _finish(axes: Axes, chart: Curves, remark: str) -> None:
    """Add scales, the legend, and the limit; `remark` follows the name of x."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(chart.x_label + remark)
    axes.set_ylabel(chart.unit)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if len(chart.x) == 1:
        axes.set_xlim(chart.x[0] - 1, chart.x[0] + 1)
    _scale(axes)
    if chart.limit is not None:
        value, name = chart.limit
        axes.axhline(value, color=GREY, linewidth=1.0, linestyle=DASHED)
        axes.annotate(
            name, (1, value), (0, 3), xycoords=axes.get_yaxis_transform(),
            textcoords="offset points", ha="right", color=GREY, fontsize=8.5,
        )  # fmt: skip
    if chart.whole:
        axes.set_ylim(0, 1.1 * axes.dataLim.y1 or 1.0)
    _legend(axes, chart)


def _scale(axes: Axes) -> None:
    """Choose the ticks of the values and write their numbers."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    if axes.get_yscale() == "log":
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if high < 30 * low else (1.0,))
        )
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(figure)


def _legend(axes: Axes, chart: Curves) -> None:
    """Name the colours in a row between the title and the axes."""
    from matplotlib.patches import Patch

    axes.set_title(chart.title, pad=27)
    names = [series.label for series in chart.series]
    axes.legend(
        [Patch(color=shade) for shade in _colours(names)], names, loc="lower left",
        bbox_to_anchor=(0.0, 1.03), ncols=len(names), frameon=False, fontsize=8.5,
        handlelength=0.9, handleheight=0.9, columnspacing=1.4, handletextpad=0.5,
        borderaxespad=0.0, borderpad=0.0, labelcolor=GREY,
    )  # fmt: skip


def _draw_bars(axes: Axes, chart: Bars) -> None:
    """Draw bars with the single measurements on them and their figures behind them."""
    from matplotlib.ticker import MaxNLocator

    rows = range(len(chart.bars))
    for row, bar in zip(rows, chart.bars, strict=True):
        value = bar.value or 0.0
        axes.barh(row, value, 0.62, color=colour(bar.group))
        axes.plot(bar.points, [row] * len(bar.points), "|", color=INK, markersize=9, alpha=0.75)
        end = max([value, *bar.points])
        axes.annotate(bar.text, (end, row), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks([*rows], [bar.label for bar in chart.bars], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(chart.bars) - 0.4, -0.6)
    axes.set_xlabel(chart.unit)
    axes.grid(axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(figure)
    ends = [max([bar.value or 0.0, *bar.points]) for bar in chart.bars]
    if chart.limit is not None:
        axes.axvline(chart.limit[0], color=GREY, linewidth=1.0, linestyle=DASHED)
        axes.annotate(
            chart.limit[1], (chart.limit[0], 1), (-4, 2), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", ha="right", color=GREY, fontsize=8.5,
        )  # fmt: skip
        ends.append(chart.limit[0])
    axes.set_xlim(0, 1.2 * max(ends, default=0.0) or 1.0)


def _colours(series: Sequence[object]) -> list[str]:
    """Return a colour for each."""
    return [colour(number) for number in range(len(series))]


def _numbers(values: Values, log: bool) -> list[float]:
    """Return values with NaN for what is not drawn."""
    return [math.nan if v is None or (log and v <= 0.0) else v for v in values]


def height_of(chart: Chart) -> float:
    """Return the height of a chart in inches: bars take room by their number."""
    if isinstance(chart, Bars):
        return 1.2 + _each(len(chart.bars))
    if isinstance(chart, Parts):
        return 1.5 + _each(len(chart.labels))
    return 4.4 if isinstance(chart, Growth) else 2.9


def _each(count: int) -> float:
    """Return the height of so many bars: they are thinner where there are many."""
    return (0.42 if count <= MANY_BARS else 0.27) * count
