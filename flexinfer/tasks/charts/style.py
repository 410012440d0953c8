"""How every chart looks, and how its axes write numbers."""

from __future__ import annotations

from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#444444")
PARTS = ("#5B6C80", "#2A9D8F", "#E07B39", "#8D6A9F", "#C9A227", "#7FB3D5", "#B5485D", "#444444")
"""Of what a bar is made of, so that no part looks like a series."""
GREY, INK = "#666666", "#222222"

STYLE: dict[str, Any] = {
    "text.parse_math": False,
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.formatter.useoffset": False,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "svg.hashsalt": "flexinfer",
}


def colour(number: int) -> str:
    """Return the colour of the series of that number."""
    return COLOURS[number % len(COLOURS)]


def figure(value: float, position: float | None = None) -> str:
    """Write a number on an axis: 12,000 or 0.25 or 1e-06."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
