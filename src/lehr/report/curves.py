"""The curves of a run: accuracy, loss, noise, changed weights, gradients, learning rate, and shares of the levels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lehr.annealing import Window
from lehr.report.charts import Band, Chart, Series, areas, lines
from lehr.report.history import History
from lehr.report.numbers import level_name

_LOG_FROM = 30.0  # a loss that falls further than this many times is drawn on a logarithmic axis


def curves(history: History) -> dict[str, Chart]:
    """Draw the metrics of a run against the epoch; only those that the run has."""
    times, end = history.times, max(history.recipe.epochs, len(history.epochs))
    # Noise that falls with the epochs is the same throughout each; all else is measured at its end.
    noisy_times = history.epochs if history.recipe.annealing.per == "epoch" else times
    twin = history.twin
    both = max(end, history.recipe.twin_epochs)
    longest = max(times, twin.times if twin else [], key=len)
    bands = _bands(history.windows)
    quiet = [not any(std[row] > 0 for std in history.below("std/forward").values()) for row in range(len(times))]

    def stages(metric: str) -> list[Series]:
        noisy = history.metrics.get(f"val/noisy_{metric}", [])
        noisy = [math.nan if still else value for still, value in zip(quiet, noisy, strict=False)]
        named = (
            ("training", history.metrics.get(f"train/{metric}", []), "aside"),
            ("validation, with noise", noisy, "second"),
            ("validation, without noise", history.metrics.get(f"val/{metric}", []), "main"),
            ("the twin's validation, before", twin.metrics.get(f"val/{metric}", []) if twin else [], "aside dashed"),
        )
        return [
            Series(name, [*values, *[math.nan] * (len(longest) - len(values))], look)
            for name, values, look in named
            if values
        ]

    def layers(prefix: str, kind: str = "") -> list[Series]:
        columns = history.below(prefix)
        if len(columns) > 1 and len({tuple(values) for values in columns.values()}) == 1:
            return [Series("all layers", next(iter(columns.values())), "main")]
        return [
            Series(f"{kind}{name}", values, depth=depth)
            for (name, values), depth in zip(columns.items(), _depths(len(columns)), strict=True)
        ]

    losses = [value for series in stages("loss") for value in series.values if math.isfinite(value)]
    steep = bool(losses) and min(losses) > 0 and max(losses) / min(losses) > _LOG_FROM
    charts = {
        "accuracy": lines("Accuracy", longest, stages("accuracy"), end=both, unit="percent", bands=bands, ceiling=1.0),
        "loss": lines("Loss", longest, stages("loss"), end=both, bands=bands, floor=0.0, log=steep),
        "forward": lines("Forward std", noisy_times, layers("std/forward", "layer "), end=end, bands=bands, floor=0.0),
        "backward": lines(
            "Backward std", noisy_times, layers("std/backward", "layer "), end=end, bands=bands, floor=0.0
        ),
        "changed": lines(
            "Weights that changed level", times, layers("changed"), end=end, unit="percent", bands=bands, log=True
        ),
        "gradients": lines("Gradient norm", times, layers("grad_norm"), end=end, bands=bands, log=True),
        "rate": lines(
            "Learning rate",
            times,
            [Series("learning rate", history.metrics.get("lr", []), "main")],
            end=end,
            bands=bands,
            floor=0.0,
        ),
    }
    return {name: chart for name, chart in charts.items() if chart.legend}


def share_curves(history: History) -> list[Chart]:
    """Draw for each quantized layer the share of its weights at each level."""
    end = max(history.recipe.epochs, len(history.epochs))
    charts = []
    for path, levels in history.shares.items():
        reach = max(map(abs, levels)) or 1.0
        series = [Series(level_name(level), values, "level", level / reach) for level, values in levels.items()]
        charts.append(areas(path, history.times, series, end=end))
    return charts


def _bands(windows: Sequence[Window]) -> list[Band]:
    """Return a band for each window; layers with the same window share it."""
    shared: dict[Window, list[int]] = {}
    for number, window in enumerate(windows, 1):
        shared.setdefault(window, []).append(number)
    return [
        Band(window.start, window.end, _range(numbers), (numbers[0] - 1) / max(len(windows) - 1, 1))
        for window, numbers in shared.items()
    ]


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def windows_in_words(windows: Sequence[Window]) -> str:
    """Return when each layer anneals, for a caption."""
    bands = _bands(windows)
    if len(bands) > 6:
        return f"{len(bands)} windows from epoch {bands[0].start:g} to {max(band.end for band in bands):g}"
    return ", ".join(f"layer {band.label}: {band.start:g} to {band.end:g}" for band in bands)


def _depths(count: int) -> list[float]:
    """Return `count` numbers from 0 to 1, evenly spaced.

    >>> _depths(3), _depths(1)
    ([0.0, 0.5, 1.0], [0.0])
    """
    return [index / max(count - 1, 1) for index in range(count)]
