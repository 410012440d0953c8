"""Draws bars that are made of parts, and names the parts above them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.tasks.charts.chart import Parts
from flexinfer.tasks.charts.style import GREY, INK, PARTS, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 0.07
"""Part of the longest bar from which on a part has room for its own figure."""


def draw_parts(axes: Axes, chart: Parts) -> None:
    """Draw one bar a label, part after part, its text behind it."""
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    rows = range(len(chart.labels))
    ends = [sum(series.values[row] or 0.0 for series in chart.series) for row in rows]
    longest = max(ends, default=0.0) or 1.0
    base = [0.0] * len(chart.labels)
    for number, series in enumerate(chart.series):
        widths = [value or 0.0 for value in series.values]
        axes.barh(rows, widths, 0.62, left=base, color=PARTS[number % len(PARTS)], linewidth=0)
        for row, width in zip(rows, widths, strict=True):
            if width >= LEAST * longest:
                axes.text(base[row] + width / 2, row, f"{width:.3g}", ha="center", va="center",
                          color="white", fontsize=8)  # fmt: skip
        base = [left + width for left, width in zip(base, widths, strict=True)]
    for row, text in zip(rows, chart.texts, strict=True):
        axes.annotate(text, (ends[row], row), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks([*rows], [*chart.labels], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(chart.labels) - 0.4, -0.6)
    axes.set_xlabel(chart.unit)
    axes.grid(axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(figure)
    axes.set_xlim(0, 1.2 * longest)
    axes.set_title(chart.title, pad=27)
    axes.legend(
        [Patch(color=PARTS[number % len(PARTS)]) for number in range(len(chart.series))],
        [series.label for series in chart.series], loc="lower left", bbox_to_anchor=(0.0, 1.0),
        ncols=len(chart.series), frameon=False, fontsize=8.5, handlelength=0.9, handleheight=0.9,
        columnspacing=1.4, handletextpad=0.5, borderaxespad=0.6, borderpad=0.0, labelcolor=GREY,
    )  # fmt: skip
