"""Curves against epochs as inline SVG: lines, stacked areas, shaded annealing windows.

Colours come from the style sheet, so one drawing fits light mode, dark mode and paper. A series names a class of the
style sheet, or its depth in the network (0 is the first layer, 1 the last). The drawing holds the values as data, for
the script that shows them under the pointer. markupsafe escapes every text.

>>> chart = lines("loss", [0, 1], [Series("train < 1", [0.5, 0.25], "main")], end=2)
>>> "train &lt; 1" in chart.svg, "<script" in chart.svg
(True, False)
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

Unit = Literal["number", "percent"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 14.0, 16.0, 30.0  # margins for the axes, in the drawing's units
_WIDE, _SMALL = (520.0, 250.0), (260.0, 170.0)
_SHADE = 0.13  # opacity of an annealing window; all that overlap have at most 0.5 together
_DESCRIBED = 12  # series that the text for screen readers describes


@dataclass(frozen=True)
class Series:
    """One curve.

    Args:
        name: its name in the legend.
        values: one for each epoch; NaN is a gap.
        look: a class of style.css.
        depth: its place between the first layer (0) and the last (1), which gives the colour.
    """

    name: str
    values: Sequence[float]
    look: str = "layer"
    depth: float = 0.0


@dataclass(frozen=True)
class Band:
    """Epochs to shade. The label is shown on top unless bands overlap."""

    start: float
    end: float
    label: str
    depth: float


@dataclass(frozen=True)
class Chart:
    """A drawing, its title and the series of its legend; `filled` if these are areas."""

    title: str
    svg: Markup
    legend: tuple[Series, ...]
    filled: bool = False


def lines(
    title: str,
    epochs: Sequence[float],
    series: Sequence[Series],
    *,
    end: float,
    unit: Unit = "number",
    bands: Sequence[Band] = (),
    ghosts: Sequence[Series] = (),
    floor: float | None = None,
    ceiling: float | None = None,
    log: bool = False,
) -> Chart:
    """Draw curves over [0, end].

    Args:
        title: the title.
        epochs: the epoch of each value.
        series: the curves.
        end: the last epoch of the axis.
        unit: how values are written.
        bands: epochs to shade.
        ghosts: faint curves behind the others, without name and value, such as the single runs behind a mean.
        floor: a value that the axis includes.
        ceiling: the largest value of the axis.
        log: whether the axis of values is logarithmic.
    """
    shown = [one for one in series if any(_drawable(value, log) for value in one.values)]
    values = [value for one in (*ghosts, *shown) for value in one.values if _drawable(value, log)]
    frame = _Frame(_WIDE, end, _log_axis(values) if log else _axis(values, floor, ceiling), unit)
    paths = [
        Markup('<path class="line {} {}" style="--depth:{:.3f}" d="{}"/>').format(
            one.look, kind, one.depth, frame.path(epochs, one.values)
        )
        for kind, group in (("ghost", ghosts), ("shown", shown))
        for one in group
    ]
    return Chart(title, frame.svg(title, epochs, shown, [*frame.bands(bands), *paths]), tuple(shown))


def areas(title: str, epochs: Sequence[float], series: Sequence[Series], *, end: float) -> Chart:
    """Draw shares that add up to 1 as stacked areas, in a small chart.

    Args:
        title: the title.
        epochs: the epoch of each value.
        series: the shares, from the bottom up.
        end: the last epoch of the axis.
    """
    frame = _Frame(_SMALL, end, _Axis((0.0, 0.5, 1.0), lambda value: value), "percent")
    wide = [0.0, *epochs] if len(epochs) == 1 else epochs  # one point has no area
    base = [0.0] * len(wide)
    paths = []
    for one in series:
        values = [*one.values] * (len(wide) // len(epochs))
        top = [low + (value if math.isfinite(value) else 0.0) for low, value in zip(base, values, strict=True)]
        outline = frame.path([*wide, *reversed(wide)], [*top, *reversed(base)])
        look = Markup('<path class="area {}" style="--depth:{:.3f}" d="{}Z"/>')
        paths.append(look.format(one.look, one.depth, outline))
        base = top
    return Chart(title, frame.svg(title, epochs, series, paths), tuple(series), filled=True)


@dataclass(frozen=True)
class _Axis:
    """The ticks of an axis, and the function that places a value on it: 0 is the bottom, 1 the top."""

    ticks: tuple[float, ...]
    place: Callable[[float], float]
    log: bool = False


@dataclass(frozen=True)
class _Frame:
    size: tuple[float, float]
    end: float
    axis: _Axis
    unit: Unit

    def x(self, epoch: float) -> float:
        return _LEFT + epoch / self.end * (self.size[0] - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.size[1] - _BOTTOM - self.axis.place(value) * (self.size[1] - _TOP - _BOTTOM)

    def path(self, epochs: Sequence[float], values: Sequence[float]) -> str:
        """Return the path through the points, with gaps where there is no value; a single point is a dash."""
        drawn = []
        points = zip(epochs, values, strict=True)
        for usable, group in itertools.groupby(points, lambda point: _drawable(point[1], self.axis.log)):
            places = [f"{self.x(epoch):.1f} {self.y(value):.1f}" for epoch, value in group] if usable else []
            drawn.append(f"M{places[0]}h4" if len(places) == 1 else "".join(["M" * usable, "L".join(places)]))
        return "".join(drawn)

    def bands(self, bands: Sequence[Band]) -> list[Markup]:
        top, bottom = _TOP, self.size[1] - _BOTTOM
        overlap = max((sum(o.start <= band.start < o.end for o in bands) for band in bands), default=1)
        shade = min(_SHADE, 0.5 / max(overlap, 1))
        drawn = []
        for band in bands:
            left, right = self.x(min(band.start, self.end)), self.x(min(band.end, self.end))
            drawn.append(
                Markup(
                    '<rect class="window" style="--depth:{:.3f};opacity:{:.3f}" '
                    'x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>'
                ).format(band.depth, shade, left, top, right - left, bottom - top)
            )
            if overlap == 1 and right - left > 7 * len(band.label) + 4:
                label = Markup('<text class="band" x="{:.1f}" y="{}">{}</text>')
                drawn.append(label.format((left + right) / 2, top - 4, band.label))
        return drawn

    def svg(self, title: str, epochs: Sequence[float], series: Sequence[Series], content: Sequence[Markup]) -> Markup:
        width, height = self.size
        right, bottom = width - _RIGHT, height - _BOTTOM
        parts = [
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="value" x="{}" y="{:.1f}">{}</text>'
            ).format(_LEFT, right, self.y(tick), self.y(tick), _LEFT - 7, self.y(tick), _written(tick, self.unit))
            for tick in self.axis.ticks
        ]
        for tick in _ticks(0.0, self.end, 6 if width > 300 else 3, whole=True):
            place = Markup('<text class="epoch" x="{:.1f}" y="{}">{:g}</text>')
            parts.append(place.format(self.x(tick), bottom + 18, tick))
        parts.append(Markup('<text class="name" x="{}" y="{}">epoch</text>').format(_LEFT - 12, bottom + 18))
        data = {
            "unit": self.unit,
            "epochs": list(epochs),
            "x": [round(self.x(epoch), 1) for epoch in epochs],
            "series": [[one.name, [_digits(value) for value in one.values]] for one in series],
        }
        return Markup(
            '<svg viewBox="0 0 {:g} {:g}" role="img" tabindex="0" aria-label="{}" data-chart="{}">{}'
            '<line class="base" x1="{}" x2="{}" y1="{}" y2="{}"/>{}'
            '<line class="rule" y1="{}" y2="{}" visibility="hidden"/></svg>'
        ).format(
            width,
            height,
            _described(title, epochs, series, self.unit),
            json.dumps(data, separators=(",", ":")),
            Markup().join(parts),
            _LEFT,
            right,
            bottom,
            bottom,
            Markup().join(content),
            _TOP,
            bottom,
        )


def _axis(values: Sequence[float], floor: float | None, ceiling: float | None) -> _Axis:
    low, high = min(values, default=0.0), max(values, default=1.0)
    low, high = low if floor is None else min(low, floor), high if ceiling is None else min(high, ceiling)
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - (abs(low) / 2 or 0.5) * (floor is None), high + (abs(high) / 2 or 0.5)
    step = _step((high - low) / 5)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    high = high if ceiling is None else min(high, ceiling)
    ticks = [round(n * step, 10) for n in range(round(low / step), math.floor(high / step + 1e-9) + 1)]
    return _Axis(tuple(ticks), lambda value: (min(value, high) - low) / (high - low))


def _log_axis(values: Sequence[float]) -> _Axis:
    bottom, top = math.floor(math.log10(min(values, default=0.1))), math.ceil(math.log10(max(values, default=1.0)))
    top = max(top, bottom + 1)
    every = math.ceil((top - bottom) / 6)
    ticks = tuple(10.0**power for power in range(bottom, top + 1, every))
    return _Axis(ticks, lambda value: (math.log10(value) - bottom) / (top - bottom), log=True)


def _ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    step = _step((high - low) / count)
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _step(rough: float) -> float:
    """Return the least of ..., 1, 2, 5, 10, 20, ... that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _drawable(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _digits(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _written(value: float, unit: Unit) -> str:
    return f"{100 * value:.4g} %" if unit == "percent" else f"{value:.4g}"


def _described(title: str, epochs: Sequence[float], series: Sequence[Series], unit: Unit) -> str:
    """Describe the chart in a sentence, for screen readers."""
    ends = []
    for one in series[:_DESCRIBED]:
        known = [value for value in one.values if math.isfinite(value)]
        if known:
            ends.append(f"{one.name} from {_written(known[0], unit)} to {_written(known[-1], unit)}")
    more = f"; and {len(series) - _DESCRIBED} more" if len(series) > _DESCRIBED else ""
    return f"{title} over {len(epochs)} epochs: {'; '.join(ends)}{more}. Arrow keys go through the epochs."
