"""A report as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from flexinfer.tasks.charts.chart import AnyChart, Page, Table, Tile
from flexinfer.tasks.charts.draw import draw, height_of, styled
from flexinfer.tasks.charts.page_style import STYLE
from flexinfer.tasks.charts.png import WIDTH

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def as_html(page: Page) -> bytes:
    """Return the file; whatever text comes from outside stands in it as text."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(page.title)}</title>",
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        f"<header><h1>{escape(page.title)}{_chip(page.verdict)}</h1>",
        f'<p class="facts">{"<br>".join(map(escape, page.facts))}</p></header>',
        *_tiles(page.tiles),
        '<div class="charts">',
        *map(_picture, page.charts),
        "</div>",
        *_tables(page.tables),
        *_notes(page.notes),
        "</body>",
        "</html>",
    ]
    return ("\n".join(parts) + "\n").encode()


def _chip(verdict: tuple[str, bool] | None) -> str:
    """Return the verdict as a mark behind the heading, nothing where there is none."""
    if verdict is None:
        return ""
    word, good = verdict
    return f' <span class="chip {"good" if good else "bad"}">{escape(word)}</span>'


def _tiles(tiles: Sequence[Tile]) -> list[str]:
    """Return the figures that are to be seen first."""
    if not tiles:
        return []
    cells = (
        f"<div><span>{escape(tile.title)}</span><b>{escape(tile.value)}</b>"
        f"<small>{escape(tile.note)}</small></div>"
        for tile in tiles
    )
    return ['<div class="tiles">', *cells, "</div>"]


def _picture(chart: AnyChart) -> str:
    """Return a chart as an image of vectors within the page; letters are shapes in it."""
    from matplotlib.figure import Figure

    out, width = io.BytesIO(), 2 * WIDTH if chart.wide else WIDTH
    with styled():
        figure = Figure(figsize=(width, height_of(chart)), layout="constrained")
        draw(figure.add_subplot(), chart)
        figure.savefig(out, format="svg", metadata={"Date": None})
    data = base64.b64encode(out.getvalue()).decode()
    told = escape(f"{chart.title}, {chart.unit}", quote=True)
    mark = ' class="wide"' if chart.wide else ""
    return f'<img{mark} alt="{told}" src="data:image/svg+xml;base64,{data}">'


def _tables(tables: Sequence[Table]) -> Iterator[str]:
    """Yield tables one after the other, those of a family beside each other."""
    for family, members in groupby(tables, key=lambda table: table.family):
        if family:
            yield f'<h2>{escape(family)}</h2><div class="family">'
        for table in members:
            yield from ("<section>", *_table(table), "</section>")
        if family:
            yield "</div>"


def _table(table: Table) -> list[str]:
    """Return a table under its heading."""
    head, *rows = table.rows
    return [
        f"<h3>{escape(table.title)}</h3>" if table.family else f"<h2>{escape(table.title)}</h2>",
        '<div class="scroll"><table>',
        *([f"<thead>{_row(head, 'th', table.words)}</thead>"] if any(head) else []),
        "<tbody>",
        *(_row(row, "td", table.words) for row in rows),
        "</tbody>",
        "</table></div>",
    ]


def _row(cells: Sequence[str], tag: str, words: int) -> str:
    """Return one row; its first `words` cells stand to the left."""
    marks = (' class="word"' if column < words else "" for column in range(len(cells)))
    inner = (f"<{tag}{m}>{escape(c)}</{tag}>" for m, c in zip(marks, cells, strict=True))
    return f"<tr>{''.join(inner)}</tr>"


def _notes(notes: Sequence[str]) -> list[str]:
    """Return notes as a list, nothing where there are none."""
    items = [f"<li>{escape(note)}</li>" for note in notes]
    return ["<h2>Notes</h2>", "<ul>", *items, "</ul>"] if items else []
