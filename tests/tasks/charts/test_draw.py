"""What stands on the axes is what a chart holds, whatever its texts and gaps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flexinfer.tasks.charts.chart import Bar, Bars, Curves, Series
from flexinfer.tasks.charts.draw import COLOURS, MARKED, draw, running_mean, styled

LINES = Curves(
    title="Reward",
    unit="mean",
    x=[1, 2, 3],
    x_label="step",
    series=[
        Series(label="all", values=[0.5, None, 0.7], low=[0.4, None, 0.6], high=[0.6, None, 0.8]),
        Series(label="one", values=[0.1, 0.2, 0.3]),
    ],
)
BARS = Bars(
    title="Speed",
    unit="tokens / s",
    bars=[
        Bar(label="flex", value=1200.0, text="1,200", points=[1150.0, 1200.0, 1300.0]),
        Bar(label="hf", value=None, text="failed"),
    ],
    limit=(2000.0, "floor"),
)


def drawn(chart: Curves | Bars) -> Any:
    """The axes with the chart on them, laid out as they would be written."""
    with styled():
        figure = Figure(layout="constrained")
        axes: Any = figure.add_subplot()
        draw(axes, chart)
        FigureCanvasAgg(figure).draw()
    return axes


def texts(axes: Any) -> list[str]:
    """Every text on the axes that is not an axis' own."""
    return [text.get_text() for text in axes.texts]


def test_lines_are_the_values_with_a_gap_where_there_is_none() -> None:
    axes = drawn(LINES)
    first, second = axes.lines
    assert list(first.get_xdata()) == [1, 2, 3]
    assert first.get_ydata()[0] == 0.5
    assert math.isnan(first.get_ydata()[1])
    assert list(second.get_ydata()) == [0.1, 0.2, 0.3]
    assert first.get_marker() == "o"
    assert len(axes.collections) == 1
    assert (axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()) == (
        "Reward",
        "step",
        "mean",
    )


def test_the_legend_names_each_line_by_its_colour() -> None:
    axes = drawn(LINES)
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["all", "one"]
    patches = [matplotlib.colors.to_hex(p.get_facecolor()) for p in legend.get_patches()]
    assert patches == [line.get_color().lower() for line in axes.lines]
    assert patches == [colour.lower() for colour in COLOURS[:2]]


def test_the_title_clears_the_legend() -> None:
    axes = drawn(LINES)
    title = axes._left_title.get_window_extent()
    assert title.y0 > axes.get_legend().get_window_extent().y1


def test_many_values_are_pale_under_their_running_mean() -> None:
    count = MARKED + 1
    chart = replace(LINES, x=range(count), series=[Series(label="all", values=[1.0] * count)])
    axes = drawn(chart)
    pale, bold = axes.lines
    assert pale.get_alpha() < 0.5 < bold.get_linewidth()
    assert pale.get_marker() in (None, "None")
    assert axes.get_xlabel() == "step, bold: mean of 2"


def test_a_running_mean_is_of_the_values_so_far_without_the_gaps() -> None:
    nan = math.nan
    found = running_mean([1.0, 3.0, nan, 5.0, 7.0], 3)
    assert found == [1.0, 2.0, 2.0, 4.0, 6.0]
    assert math.isnan(running_mean([nan], 2)[0])


def test_layers_stand_upon_each_other() -> None:
    series = [Series(label=n, values=v) for n, v in (("a", [1.0, 2.0]), ("b", [4.0, None]))]
    axes = drawn(replace(LINES, x=[1, 2], series=series, stacked=True))
    boxes = [(p.get_y(), p.get_height()) for p in axes.patches]
    assert boxes == [(0.0, 1.0), (0.0, 2.0), (1.0, 4.0), (2.0, 0.0)]


def test_powers_of_ten_leave_zeros_out_and_are_plain_words() -> None:
    values = [1e-6, 0.0, 1e-3]
    axes = drawn(replace(LINES, series=[Series(label="gap", values=values)], log=True))
    assert axes.get_yscale() == "log"
    assert math.isnan(axes.lines[0].get_ydata()[1])
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    assert "1e-05" in ticks
    assert not any("$" in tick for tick in ticks)


def test_a_log_scale_of_zeros_alone_is_no_error() -> None:
    axes = drawn(replace(LINES, series=[Series(label="gap", values=[0.0] * 3)], log=True))
    assert axes.get_yscale() == "linear"


def test_less_than_a_decade_still_has_numbers_on_its_axis() -> None:
    axes = drawn(replace(LINES, series=[Series(label="g", values=[2e-3, 4e-3, 6e-3])], log=True))
    low, high = axes.get_ylim()
    seen = [v for v in axes.get_yticks() if low <= v <= high]
    assert len(seen) >= 2


def test_whole_values_are_shown_from_zero_to_beyond_the_limit() -> None:
    chart = replace(LINES, whole=True, limit=(5.0, "most"))
    axes = drawn(chart)
    low, high = axes.get_ylim()
    assert low == 0.0
    assert high > 5.0
    assert texts(axes) == ["most"]
    assert drawn(LINES).get_ylim()[0] > 0.0


def test_one_step_is_seen() -> None:
    axes = drawn(replace(LINES, x=[7], series=[Series(label="a", values=[1.0])]))
    assert axes.get_xlim() == (6.0, 8.0)
    assert axes.lines[0].get_marker() == "o"


def test_bars_show_the_value_the_points_and_the_text() -> None:
    axes = drawn(BARS)
    assert [patch.get_width() for patch in axes.patches] == [1200.0, 0.0]
    assert list(axes.lines[0].get_xdata()) == [1150.0, 1200.0, 1300.0]
    assert texts(axes) == ["1,200", "failed", "floor"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["flex", "hf"]
    top, bottom = (axes.transData.transform((0, row))[1] for row in (0, 1))
    assert top > bottom
    assert axes.get_xlim()[1] > 2000.0
    assert "1,500" in [label.get_text() for label in axes.get_xticklabels()]


@pytest.mark.parametrize("label", ["$x", "a$b$c_{", "$\\frac{$", r"\frac", "_hidden", "模型"])
def test_any_name_is_a_label(label: str) -> None:
    lines = drawn(replace(LINES, series=[Series(label=label, values=[1.0, 2.0, 3.0])]))
    assert [text.get_text() for text in lines.get_legend().get_texts()] == [label]
    bars = drawn(replace(BARS, bars=[Bar(label=label, value=1.0, text=label)]))
    assert [text.get_text() for text in bars.get_yticklabels()] == [label]


def test_the_settings_of_matplotlib_are_as_before() -> None:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        before = dict(matplotlib.rcParams)
        drawn(BARS)
        assert dict(matplotlib.rcParams) == before
