"""A report as one picture: heading, and charts in two columns."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

from flexinfer.tasks.charts.chart import AnyChart, Page
from flexinfer.tasks.charts.draw import draw, height_of, styled
from flexinfer.tasks.charts.style import GREY

WIDTH, DPI = 6.2, 140
"""Inches of one chart; dots an inch."""
HEAD, LINE, LETTERS = 0.5, 0.2, 80
"""Inches of the title and of a line below it; letters of a line over each column."""


def as_png(page: Page) -> bytes:
    """Return the picture."""
    from matplotlib.figure import Figure

    columns = max(1, min(2, len(page.charts)))
    rows = laid_out(page.charts, columns)
    heights = [max(map(height_of, row)) for row in rows]
    facts = [line for fact in page.facts for line in textwrap.wrap(fact, columns * LETTERS)]
    head = HEAD + LINE * len(facts)
    total = sum(heights) + head
    out = io.BytesIO()
    with styled():
        figure = Figure(figsize=(columns * WIDTH, total), dpi=DPI, layout="constrained")
        layout: Any = figure.get_layout_engine()
        layout.set(rect=(0, 0, 1, 1 - head / total), w_pad=0.12, h_pad=0.1)
        grid = figure.add_gridspec(max(1, len(rows)), columns, height_ratios=heights or [1.0])
        for number, row in enumerate(rows):
            for column, chart in enumerate(row):
                place = grid[number, :] if chart.wide else grid[number, column]
                draw(figure.add_subplot(place), chart)
        figure.text(0.012, 1 - 0.27 / total, page.title, fontsize=15, weight="bold", va="center")
        for number, line in enumerate(facts):
            at = 1 - (HEAD + 0.05 + LINE * number) / total
            figure.text(0.012, at, line, color=GREY, va="center")
        figure.savefig(out, format="png")
    return out.getvalue()


def laid_out(charts: Sequence[AnyChart], columns: int) -> list[list[AnyChart]]:
    """Return charts in rows of so many, wide ones alone."""
    rows: list[list[AnyChart]] = []
    for chart in charts:
        if chart.wide or not rows or rows[-1][0].wide or len(rows[-1]) == columns:
            rows.append([])
        rows[-1].append(chart)
    return rows
