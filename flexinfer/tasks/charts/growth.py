"""Draws figures over sizes that double: measured curves, and dashed what could be reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flexinfer.tasks.charts.chart import Growth
from flexinfer.tasks.charts.style import GREY, colour, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND, ROOM, WIDE = 0.15, 1.15, 12.0
"""How dense a band is; how far above its largest value a chart reaches; from which ratio of the
largest to the smallest value on they are scaled by powers of ten."""


def draw_growth(axes: Axes, chart: Growth) -> None:
    """Draw every line, the band of its single measurements around it, and name them all."""
    from matplotlib.ticker import FixedLocator, NullLocator

    for line in chart.lines:
        shade = GREY if line.group is None else colour(line.group)
        if line.dashed:
            axes.plot(line.x, line.values, "--", color=shade, linewidth=1.4, label=line.label)
            continue
        axes.plot(line.x, line.values, "o-", color=shade, linewidth=1.9, markersize=5,
                  label=line.label)  # fmt: skip
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=shade, alpha=BAND, linewidth=0)
            axes.vlines(line.x, line.low, line.high, color=shade, linewidth=1.2)
        axes.annotate(
            figure(round(line.values[-1])), (line.x[-1], line.values[-1]), (9, 0),
            textcoords="offset points", va="center", color=shade, fontsize=9, weight="bold",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.margins(x=0.07)
    axes.xaxis.set_major_locator(FixedLocator([*chart.ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(figure)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.unit)
    axes.grid(axis="both")
    _scale(axes, [value for line in chart.lines for value in line.values])
    axes.legend(
        loc="upper left", frameon=True, framealpha=0.9, edgecolor="none", fontsize=8.5,
        labelcolor=GREY,
    )  # fmt: skip


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Choose the scale of the values: so that a small one can still be read off."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    real = [value for value in values if value > 0.0]
    if real and max(real) > WIDE * min(real):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(min(real) / ROOM**2, max(real) * ROOM**3)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set_ylim(0, ROOM * max(real, default=1.0))
    axes.yaxis.set_major_formatter(figure)
