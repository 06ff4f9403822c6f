"""Figure 1: validation error against the epoch, from run folders, with the windows in which the layers anneal shaded.

>>> from lehr.annealing import Hierarchical
>>> curve = Curve("ana", [1, 2, 3], [0.5, 0.3, 0.2], windows=tuple(Hierarchical(duration=1).windows(2)))
>>> [text.get_text() for text in validation_error([curve]).axes[0].texts]
['1', '2']
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lehr.annealing import Window
from lehr.report.history import read_run
from lehr.report.style import COLUMN, CYCLE, DASHES, PAGE, styled
from lehr.training.folder import RunError

_SLATE = "#5A6B7C"  # what is said in passing
_HEIGHT = 2.4
_ROOM = 0.04  # of the axis: what a layer's number needs above its window


@dataclass(frozen=True)
class Curve:
    """One training run: the validation error, between 0 and 1, after each of `epochs`, and when each layer anneals.

    Runs on other `data` are not drawn into one panel.
    """

    label: str
    epochs: Sequence[float]
    errors: Sequence[float]
    windows: tuple[Window, ...] = ()
    data: str = ""


@styled
def validation_error(curves: Sequence[Curve]) -> Figure:
    """Figure 1, with a panel for each schedule and data set.

    Runs without windows, which anneal nothing, are in all panels of their data set.
    """
    schedules = dict.fromkeys((curve.data, curve.windows) for curve in curves if curve.windows)
    annealed = {data for data, _ in schedules}
    schedules |= dict.fromkeys((curve.data, ()) for curve in curves if curve.data not in annealed)
    columns = min(2, len(schedules))
    rows = math.ceil(len(schedules) / columns)
    figure = Figure(figsize=(COLUMN if columns == 1 else PAGE, _HEIGHT * rows))
    comparable = len({data for data, _ in schedules}) == 1
    panels = figure.subplots(rows, columns, sharey=comparable, squeeze=False).flatten().tolist()
    for axes, schedule in itertools.zip_longest(panels, schedules):
        if schedule is None:
            axes.set_visible(False)
            continue
        data, windows = schedule
        last = max((window.end for window in windows), default=0.0)
        for number, curve in enumerate(curves):  # counted over all panels: a run keeps its colour
            if curve.data == data and curve.windows in ((), windows):
                last = max(last, _draw(axes, curve, number))
        axes.set(xlabel="epoch", ylabel="validation error (%)", xlim=(0, last))
        _shade(axes, windows)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2, labelspacing=0.25)
    for axes in panels:
        axes.set_ylim(bottom=0)  # when all is drawn: it ends the fitting of the upper end
    return figure


def curve_of_run(path: Path) -> Curve:
    """The curve of a run folder."""
    history = read_run(path)
    accuracies = history.metrics.get("val/accuracy")
    if not accuracies:
        raise RunError(f"{path} has no validation yet: its metrics.csv needs the columns epoch and val/accuracy")
    return Curve(
        history.name,
        history.times,
        [1 - accuracy for accuracy in accuracies],
        tuple(history.windows),
        history.recipe.data.name,
    )


def _draw(axes: Axes, curve: Curve, number: int) -> float:
    """The curve without what is not finite; gives its last epoch."""
    kept = [(t, 100 * e) for t, e in zip(curve.epochs, curve.errors, strict=True) if math.isfinite(e)]
    if not kept:
        raise ValueError(f"run {curve.label!r} has no validation error to draw")
    epochs, errors = zip(*kept, strict=True)
    colour, dash = CYCLE[number % len(CYCLE)], DASHES[number // len(CYCLE) % len(DASHES)]
    marker = "o" if len(kept) == 1 else ""  # which is no line yet
    label = f" {curve.label}" if curve.label.startswith("_") else curve.label  # which matplotlib would leave out
    axes.plot(epochs, errors, color=colour, linestyle=dash, marker=marker, linewidth=1.1, label=label)
    return max(epochs)


def _shade(axes: Axes, windows: Sequence[Window]) -> None:
    """Windows one after the other alternate and carry their numbers; where they overlap, more of them are darker."""
    ends = sorted({end for window in windows for end in (window.start, window.end)})
    bands = list(itertools.pairwise(ends))
    annealed = [[n for n, w in enumerate(windows, 1) if w.start <= a and b <= w.end] for a, b in bands]
    apart = all(len(numbers) <= 1 for numbers in annealed)
    wide = apart and all(end - start >= _ROOM * axes.get_xlim()[1] for start, end in bands)
    for (start, end), numbers in zip(bands, annealed, strict=True):
        strength = 0.35 + 0.35 * (numbers[0] % 2) if apart and numbers else len(numbers) / max(1, len(windows))
        axes.axvspan(start, end, color="#DCE6F0", alpha=strength, zorder=0, linewidth=0)
        if wide and numbers:
            place = ((start + end) / 2, 1.01)
            frame = axes.get_xaxis_transform()
            axes.text(*place, str(numbers[0]), transform=frame, ha="center", va="bottom", fontsize=7, color=_SLATE)
    if windows:
        one_by_one = "layer annealed" if wide else f"shaded: layers 1 to {len(windows)}, one after the other"
        text = one_by_one if apart else "shaded: layers annealing"
        axes.set_title(text, loc="left", fontsize=7, color=_SLATE, pad=12 if wide else 3)
