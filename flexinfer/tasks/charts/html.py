"""A report as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

from flexinfer.tasks.charts.chart import Bars, Curves, Page, Table
from flexinfer.tasks.charts.draw import draw, height_of, styled
from flexinfer.tasks.charts.png import WIDTH

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.facts { color: #666; margin: .2rem 0 1.5rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; }
.charts img { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { padding: .2rem .7rem; text-align: right; white-space: nowrap; }
th { color: #666; font-weight: 600; border-bottom: 1px solid #999; }
td { border-bottom: 1px solid #eee; } .word { text-align: left; }
"""
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
        f"<h1>{escape(page.title)}</h1>",
        f'<p class="facts">{"<br>".join(map(escape, page.facts))}</p>',
        '<div class="charts">',
        *map(_picture, page.charts),
        "</div>",
        *(line for table in page.tables for line in _table(table)),
        *_notes(page.notes),
        "</body>",
        "</html>",
    ]
    return ("\n".join(parts) + "\n").encode()


def _picture(chart: Curves | Bars) -> str:
    """Return a chart as an image of vectors within the page; letters are shapes in it."""
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with styled():
        figure = Figure(figsize=(WIDTH, height_of(chart)), layout="constrained")
        draw(figure.add_subplot(), chart)
        figure.savefig(out, format="svg", metadata={"Date": None})
    data = base64.b64encode(out.getvalue()).decode()
    told = escape(f"{chart.title}, {chart.unit}", quote=True)
    return f'<img alt="{told}" src="data:image/svg+xml;base64,{data}">'


def _table(table: Table) -> list[str]:
    """Return a table under its heading."""
    head, *rows = table.rows
    return [
        f"<h2>{escape(table.title)}</h2>",
        '<div class="scroll"><table>',
        f"<thead>{_row(head, 'th', table.words)}</thead>",
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
