"""A comparison as files: compare.html with table and curves, compare.csv, compare.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from lehr.report.charts import Chart, Series, lines
from lehr.report.compare import Comparison
from lehr.report.history import History
from lehr.report.page import render

_COLOURS = 8  # in style.css; further groups use them again, dashed


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write compare.html, compare.csv and compare.md, and return their paths.

    Args:
        comparison: what `compare` returned.
        folder: where to write; made if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared, table = comparison.table().without_shared(comparison.SETTING)
    drawn = Markup(table.html("numbers compare"))
    page = render("compare.html", comparison=comparison, charts=_charts(comparison), shared=shared, table=drawn)
    contents = {
        "compare.html": page,
        "compare.csv": comparison.numbers().csv(),
        "compare.md": comparison.markdown(),
    }
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return [folder / name for name in contents]


def _charts(comparison: Comparison) -> list[Chart]:
    """Draw accuracy and loss against the epoch: a curve for each group, its runs faintly behind it."""
    end = max(max(group.recipe.epochs, *(len(run.epochs) for run in group.runs)) for group in comparison.groups)
    times = [float(epoch) for epoch in range(1, end + 1)]

    def drawn(title: str, metric: str, *, share: bool) -> Chart:
        means, single = [], []
        for index, group in enumerate(comparison.groups):
            look = f"c{index % _COLOURS}" + " dashed" * (index >= _COLOURS)
            curves = [_by_time(run, metric, times) for run in group.runs]
            means.append(Series(group.name, [_mean(column) for column in zip(*curves, strict=True)], look))
            single += [Series("", curve, look) for curve in curves if len(curves) > 1]
        if share:
            return lines(title, times, means, end=end, unit="percent", ghosts=single, ceiling=1.0)
        return lines(title, times, means, end=end, ghosts=single, floor=0.0)

    charts = [
        drawn("Validation accuracy, without noise", "val/accuracy", share=True),
        drawn("Training accuracy", "train/accuracy", share=True),
        drawn("Validation loss, without noise", "val/loss", share=False),
        drawn("Training loss", "train/loss", share=False),
    ]
    return [chart for chart in charts if chart.legend]


def _by_time(run: History, metric: str, times: Sequence[float]) -> list[float]:
    known = dict(zip(run.times, run.metrics.get(metric, []), strict=False))
    return [known.get(time, math.nan) for time in times]


def _mean(values: Sequence[float]) -> float:
    there = [value for value in values if not math.isnan(value)]
    return statistics.fmean(there) if there else math.nan
