"""Curves are drawn where their values are, in SVG that stays SVG."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.report.charts import Band, Chart, Series, areas, lines

LEFT, RIGHT, TOP, BOTTOM = 54, 506, 16, 220  # of a wide chart's plane


def points(path: str) -> list[list[tuple[float, float]]]:
    """The strokes of a path, each a list of points."""
    strokes = [stroke.split("h")[0] for stroke in path.rstrip("Z").split("M")[1:]]
    return [[(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", stroke)] for stroke in strokes]


def drawn(chart: Chart, kind: str) -> list[ET.Element]:
    return [one for one in ET.fromstring(str(chart.svg)).iter() if kind in one.get("class", "").split()]


def curves(chart: Chart) -> list[list[list[tuple[float, float]]]]:
    return [points(one.get("d", "")) for one in drawn(chart, "line")]


def test_a_value_lies_between_the_ticks_around_it():
    chart = lines("loss", [0, 5, 10], [Series("a", [0.0, 0.5, 1.0])], end=10)
    assert curves(chart) == [[[(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2), (RIGHT, TOP)]]]


def test_a_gap_ends_a_stroke_and_a_lonely_point_is_still_seen():
    nan = math.nan
    chart = lines("loss", list(range(6)), [Series("a", [1.0, 2.0, nan, 3.0, nan, nan])], end=6)
    assert [len(stroke) for stroke in curves(chart)[0]] == [2, 1]
    assert drawn(chart, "line")[0].get("d", "").endswith("h4")


def test_a_logarithmic_axis_gives_each_decade_the_same_height_and_leaves_out_zero():
    chart = lines("norm", [0, 1, 2, 3], [Series("a", [1.0, 0.1, 0.01, 0.0])], end=3, log=True)
    assert [y for _, y in curves(chart)[0][0]] == [TOP, (TOP + BOTTOM) / 2, BOTTOM]


def test_the_axis_takes_in_the_floor_and_stops_at_the_ceiling():
    chart = lines("accuracy", [0, 1], [Series("a", [0.52, 0.97])], end=1, unit="percent", floor=0.0, ceiling=1.0)
    ticks = [one.text for one in drawn(chart, "value")]
    assert ticks == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]


def test_windows_are_shaded_over_their_epochs_and_cut_at_the_end():
    bands = [Band(0, 10, "1", 0.0), Band(10, 30, "2", 1.0)]
    chart = lines("loss", [0, 1], [Series("a", [0.0, 1.0])], end=20, bands=bands)
    width = RIGHT - LEFT
    shaded = [(float(one.get("x", "")), float(one.get("width", ""))) for one in drawn(chart, "window")]
    assert shaded == [(LEFT, width / 2), (LEFT + width / 2, width / 2)]
    assert [one.text for one in drawn(chart, "band")] == ["1", "2"]


def test_overlapping_windows_carry_no_labels_and_share_the_shade():
    bands = [Band(0, 10 * n, str(n), 0.0) for n in range(1, 21)]
    chart = lines("loss", [0, 1], [Series("a", [0.0, 1.0])], end=200, bands=bands)
    assert not drawn(chart, "band")
    shades = [float(re.findall(r"opacity:([\d.]+)", one.get("style", ""))[0]) for one in drawn(chart, "window")]
    assert sum(shades) <= 0.5 + 1e-9


def test_shares_are_stacked_up_to_the_top():
    chart = areas("layer", [0, 10], [Series("-1", [0.25, 0.5]), Series("1", [0.75, 0.5])], end=10)
    lower, upper = (points(one.get("d", ""))[0] for one in drawn(chart, "area"))
    top, bottom = 16, 140
    assert [y for _, y in lower] == [bottom - 31, bottom - 62, bottom, bottom]
    assert [y for _, y in upper] == [top, top, bottom - 62, bottom - 31]


def test_a_series_without_values_is_neither_drawn_nor_named():
    chart = lines("loss", [0, 1], [Series("a", [1.0, 2.0]), Series("b", [math.nan] * 2)], end=2)
    assert [one.name for one in chart.legend] == ["a"]


def test_ghosts_are_drawn_but_not_named():
    chart = lines("loss", [0, 1], [Series("mean", [1.0, 2.0])], ghosts=[Series("seed", [0.5, 3.0])], end=2)
    assert [one.get("class") for one in drawn(chart, "line")] == ["line layer ghost", "line layer shown"]
    assert "seed" not in chart.svg


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=8),
    st.sampled_from(["loss", "</svg><script>alert(1)</script>", "a\"b'c", "\N{GREEK SMALL LETTER SIGMA} & < >"]),
    st.booleans(),
)
def test_any_values_and_any_names_make_well_formed_svg(values: list[float], name: str, log: bool):
    chart = lines(name, list(range(len(values))), [Series(name, values)], end=len(values), log=log)
    root = ET.fromstring(str(chart.svg))
    assert not [one for one in root.iter() if one.tag == "script"]
    assert name in root.get("aria-label", "") or not chart.legend
    data = json.loads(root.get("data-chart", ""))
    for series in data["series"]:
        assert series[0] == name
        assert [value is not None for value in series[1]] == [math.isfinite(value) for value in values]
    assert all(TOP - 0.06 <= y <= BOTTOM + 0.06 for strokes in curves(chart) for stroke in strokes for _, y in stroke)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-9])
def test_a_constant_curve_has_an_axis_too(value: float):
    chart = lines("lr", [0, 1], [Series("a", [value, value])], end=2)
    (((_, first), (_, second)),) = curves(chart)[0:1][0]
    assert TOP <= first == second <= BOTTOM


def test_the_ticks_are_as_close_as_the_axis_was_rounded_for():
    chart = lines("accuracy", [1, 2], [Series("a", [0.83, 0.928])], end=2, unit="percent", ceiling=1.0)
    assert [one.text for one in drawn(chart, "value")] == [f"{percent} %" for percent in range(82, 95, 2)]
