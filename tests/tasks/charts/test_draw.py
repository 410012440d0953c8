"""What stands on the axes is what a chart holds, whatever its texts and gaps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flexinfer.tasks.charts.chart import AnyChart, Bar, Bars, Curves, Growth, Line, Parts, Series
from flexinfer.tasks.charts.draw import MARKED, draw, height_of, running_mean, styled
from flexinfer.tasks.charts.png import laid_out
from flexinfer.tasks.charts.style import COLOURS

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


def drawn(chart: AnyChart) -> Any:
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


GROWTH = Growth(
    title="Throughput",
    unit="tokens / s",
    x_label="batch",
    ticks=[1, 8, 64],
    wide=True,
    lines=[
        Line(label="roofline", x=[1, 8, 64], values=[2.0, 15.0, 90.0], group=None, dashed=True),
        Line(label="flex", x=[1, 8, 64], values=[1.0, 9.0, 60.0], group=0, low=[0.9, 8.0, 50.0],
             high=[1.1, 10.0, 70.0]),
        Line(label="hf", x=[1, 8], values=[0.5, 3.0], group=1),
    ],
)  # fmt: skip


def test_growth_is_over_doubling_sizes_and_only_these_are_named() -> None:
    axes = drawn(GROWTH)
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8", "64"]
    roofline, flex, hf = axes.lines
    assert [line.get_linestyle() for line in (roofline, flex, hf)] == ["--", "-", "-"]
    assert list(flex.get_ydata()) == [1.0, 9.0, 60.0]
    assert (flex.get_color(), hf.get_color()) == (COLOURS[0], COLOURS[1])
    assert roofline.get_color() not in COLOURS
    assert texts(axes) == ["60", "3"], "the last measured value of each"
    named = [text.get_text() for text in axes.get_legend().get_texts()]
    assert named == ["roofline", "flex", "hf"]


def test_small_values_are_seen_beside_large_ones() -> None:
    assert drawn(GROWTH).get_yscale() == "log"
    near = replace(GROWTH, lines=[Line(label="flex", x=[1, 8], values=[10.0, 60.0], group=0)])
    axes = drawn(near)
    assert axes.get_yscale() == "linear"
    assert axes.get_ylim()[0] == 0.0


PARTS_OF = Parts(
    title="One round",
    unit="seconds",
    labels=["flex", "hf"],
    texts=["4 s", "0.1 s"],
    series=[
        Series(label="prefill", values=[1.0, 0.05]),
        Series(label="decode", values=[3.0, None]),
    ],
)


def test_parts_lie_end_to_end_and_tell_their_figure_where_there_is_room() -> None:
    axes = drawn(PARTS_OF)
    found = [(bar.get_x(), bar.get_width(), bar.get_facecolor()) for bar in axes.patches]
    assert [(x, width) for x, width, _ in found] == [(0, 1.0), (0, 0.05), (1.0, 3.0), (0.05, 0)]
    assert found[0][2] == found[1][2] != found[2][2]
    assert texts(axes) == ["1", "3", "4 s", "0.1 s"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["prefill", "decode"]


def test_many_bars_are_thinner() -> None:
    bar = Bar(label="flex", value=1.0, text="1")
    few, many = (height_of(replace(BARS, bars=[bar] * count)) for count in (10, 20))
    assert many < 1.6 * few


def test_wide_charts_have_a_row_for_themselves() -> None:
    wide = replace(BARS, wide=True)
    assert laid_out([wide, BARS, LINES, BARS, wide, BARS], 2) == [
        [wide], [BARS, LINES], [BARS], [wide], [BARS],
    ]  # fmt: skip
