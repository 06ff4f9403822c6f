"""Several runs beside each other: a table, their curves, and the same as CSV and Markdown.

Runs whose recipes differ in the seed alone are one row, with mean and standard deviation over the runs; a quantized
network is measured against the full-precision run on the same data, if there is one among them.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import escape

from lehr.algorithms import FullPrecision
from lehr.printable import printable
from lehr.report.charts import Chart, Series, lines
from lehr.report.history import History, read_run
from lehr.report.method import Method, method, network
from lehr.report.numbers import duration, epoch_count, percent
from lehr.report.page import render
from lehr.summary import Summary, summarize
from lehr.training.folder import RunError
from lehr.training.recipe import Recipe
from lehr.training.recipes import RecipeError
from lehr.training.run import untrained_network

_SETTING = ("data", "network", "epochs", "runs")
_WORDS = ("data", "network", "method", "weights", "activations", "first/last")
_COLOURS = 8  # of style.css; after them they come again, dashed


@dataclass(frozen=True)
class Measured:
    """A number measured once or several times; `spread` is the standard deviation, None of a single number.

    >>> Measured.of([0.95, 0.97]).mean, Measured.of([0.95]).spread, Measured.of([])
    (0.96, None, None)
    """

    mean: float
    spread: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured | None:
        """Of those values that are finite; None of none."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        return cls(statistics.fmean(finite), statistics.stdev(finite) if len(finite) > 1 else None)

    def __str__(self) -> str:
        return percent(self.mean) if self.spread is None else f"{100 * self.mean:.2f} ± {100 * self.spread:.2f} %"


@dataclass(frozen=True)
class Group:
    """Runs of one recipe with different seeds, all finished or all unfinished: a row of the comparison."""

    name: str
    runs: tuple[History, ...]

    @property
    def recipe(self) -> Recipe:
        """The recipe they share."""
        return self.runs[0].recipe

    @property
    def method(self) -> Method:
        """How they quantize."""
        return method(self.recipe)

    @property
    def network(self) -> str:
        """What they quantize."""
        return network(self.recipe)

    @property
    def full_precision(self) -> bool:
        """Whether nothing is quantized."""
        return isinstance(self.recipe.algorithm, FullPrecision)

    @property
    def finished(self) -> bool:
        """Whether they reached their end."""
        return self.runs[0].finished

    @property
    def epochs(self) -> str:
        """How many epochs, those of a full-precision twin first, and of how many if unfinished."""
        planned = epoch_count(self.recipe.twin_epochs, self.recipe.epochs)
        if self.finished:
            return planned
        done = sorted({(len(run.twin.epochs) if run.twin else 0, len(run.epochs)) for run in self.runs})
        return f"{'/'.join(epoch_count(*numbers) for numbers in done)} of {planned}"

    @functools.cached_property
    def cost(self) -> Summary | None:
        """Memory and MACs of their network; None if the run does not tell what images it is for, or is not trusted."""
        try:
            return summarize(*untrained_network(self.runs[0].path))
        except (RunError, RecipeError):
            return None

    def accuracy(self, split: str) -> Measured | None:
        """Noise-free accuracy."""
        return Measured.of([value for run in self.runs if (value := run.accuracy(split)) is not None])

    @property
    def seconds(self) -> float | None:
        """How long a run took, on average."""
        times = [run.seconds for run in self.runs if run.seconds is not None]
        return statistics.fmean(times) if times else None


@dataclass(frozen=True)
class Comparison:
    """Groups in the order their first runs were given."""

    groups: tuple[Group, ...]

    @property
    def data(self) -> list[str]:
        """The data sets they are on."""
        return list(dict.fromkeys(group.recipe.data.name for group in self.groups))

    @property
    def runs(self) -> int:
        """How many runs in all."""
        return sum(len(group.runs) for group in self.groups)

    @property
    def remarks(self) -> list[str]:
        """What a reader must know before comparing numbers."""
        remarks = []
        if len(self.data) > 1:
            remarks.append(f"These runs are on different data ({', '.join(self.data)}): compare within one data set.")
        if any(len(group.runs) > 1 for group in self.groups):
            remarks.append("Runs that differ in the seed alone are one row: mean ± standard deviation over the runs.")
        if not all(group.finished for group in self.groups):
            remarks.append("Unfinished runs show the validation accuracy of their last epoch.")
        classes = {name for group in self.groups for run in group.runs for name in run.not_imported}
        if classes:
            told = ", ".join(sorted(classes))
            remarks.append(f"Not imported, being none of lehr's: {told}. With --trust their networks are measured too.")
        return remarks

    def reference(self, group: Group) -> Group | None:
        """The full-precision group to measure against: on the same data, the same network if there are several."""
        candidates = [
            other
            for other in self.groups
            if other.full_precision and other.finished and other.recipe.data.name == group.recipe.data.name
        ]
        same = [other for other in candidates if other.network == group.network]
        return same[0] if same else candidates[0] if len(candidates) == 1 else None

    def points(self, group: Group) -> float | None:
        """Test accuracy less that of the reference, in percentage points."""
        reference = self.reference(group)
        if reference is None or reference is group:
            return None
        ours, theirs = group.accuracy("test"), reference.accuracy("test")
        return None if ours is None or theirs is None else 100 * (ours.mean - theirs.mean)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Header and rows to be read."""
        header = ("run", "data", "network", "method", "weights", "activations", "first/last", "epochs", "runs")
        header += ("validation", "test", "to full precision", "bytes", "MACs, weight x activation bits", "time")
        rows = []
        for group in self.groups:
            how, points = group.method, self.points(group)
            row = (group.name, group.recipe.data.name, group.network, how.name, how.weights, how.activations)
            row += (how.ends, group.epochs, f"{len(group.runs)}")
            row += tuple(str(group.accuracy(split) or "not yet") for split in ("val", "test"))
            reference = "reference" if self.reference(group) is group else ""
            row += (reference if points is None else f"{points:+.2f}",)
            row += ("", "") if group.cost is None else (f"{group.cost.bytes:,}", _told_kinds(group.cost))
            rows.append((*row, duration(group.seconds)))
        return header, rows


def compare(paths: Sequence[Path]) -> Comparison:
    """Read the runs and group those that differ in nothing but the seed; a run given twice counts once."""
    unique = list({path.resolve(): path for path in paths}.values())
    if not unique:
        raise ValueError("there is nothing to compare: name at least one run")
    grouped: dict[tuple[Recipe, bool], list[History]] = {}
    for history in map(read_run, unique):
        grouped.setdefault((_without_seed(history.recipe), history.finished), []).append(history)
    names = [_common_name([run.name for run in runs]) for runs in grouped.values()]
    clear = [
        name if names.count(name) == 1 else printable(runs[0].path)
        for name, runs in zip(names, grouped.values(), strict=True)
    ]
    return Comparison(tuple(Group(name, tuple(runs)) for name, runs in zip(clear, grouped.values(), strict=True)))


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write compare.html, compare.csv and compare.md into `folder`, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    shared, header, rows = _without_shared(*comparison.table())
    table = {"shared": shared, "header": header, "rows": rows, "words": _WORDS}
    page = render("compare.html", comparison=comparison, charts=_charts(comparison), **table)
    contents = {"compare.html": page, "compare.csv": to_csv(comparison), "compare.md": to_markdown(comparison)}
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return [folder / name for name in contents]


def _without_shared(
    header: tuple[str, ...], rows: list[tuple[str, ...]]
) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """What all rows share of the setting, in words, and the table without it: a page is not endlessly wide.

    >>> _without_shared(("run", "data", "test"), [("a", "digits", "98 %"), ("b", "digits", "97 %")])
    ('data digits', ('run', 'test'), [('a', '98 %'), ('b', '97 %')])
    """
    alike = [
        name in _SETTING and len(rows) > 1 and len({row[at] for row in rows}) == 1 for at, name in enumerate(header)
    ]
    shared = ", ".join(f"{name} {cell}" for name, cell, same in zip(header, rows[0], alike, strict=True) if same)
    kept = [tuple(cell for cell, same in zip(row, alike, strict=True) if not same) for row in (header, *rows)]
    return shared, kept[0], kept[1:]


def to_csv(comparison: Comparison) -> str:
    """The table with plain numbers: accuracies as shares, times in seconds; empty where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        (
            *(
                "name",
                "runs",
                "finished",
                "data",
                "network",
                "method",
                "weights",
                "activations",
                "end_layers",
                "twin_epochs",
                "epochs",
            ),
            *("val_accuracy", "val_std", "test_accuracy", "test_std", "points_to_full_precision"),
            *("bytes", "macs", "mac_kinds", "seconds"),
        )
    )
    for group in comparison.groups:
        how, recipe, cost = group.method, group.recipe, group.cost
        measured = [group.accuracy(split) for split in ("val", "test")]
        numbers = [(one.mean, one.spread) if one else (None, None) for one in measured]
        writer.writerow(
            (
                *(group.name, len(group.runs), group.finished, printable(recipe.data.name), group.network),
                *(how.name, how.weights, how.activations, how.ends, recipe.twin_epochs, recipe.epochs),
                *numbers[0],
                *numbers[1],
                comparison.points(group),
                *((None, None, None) if cost is None else (cost.bytes, cost.macs, _told_kinds(cost))),
                group.seconds,
            )
        )
    return text.getvalue()


def to_markdown(comparison: Comparison) -> str:
    """The table and its remarks."""
    header, rows = comparison.table()
    lines = [[str(escape(printable(cell))).replace("|", "\\|") for cell in line] for line in (header, *rows)]
    drawn = [f"| {' | '.join(line)} |" for line in lines]
    drawn.insert(1, "|" + "---|" * len(header))
    return "\n".join([*drawn, *(f"\n{escape(printable(remark))}" for remark in comparison.remarks), ""])


def _told_kinds(cost: Summary) -> str:
    """The kinds of MACs and their shares, as "96 % 1.58x1.58, 4 % 1.58x8"."""
    kinds = cost.kinds.items()
    return ", ".join(f"{100 * macs / cost.macs:.3g} % {w:.3g}x{a:.3g}" for (w, a), macs in kinds)


def _without_seed(recipe: Recipe) -> Recipe:
    """A recipe with what makes no other experiment of it made equal: seed, words, where the data lie."""
    return replace(recipe, seed=0, description="", result="", data=replace(recipe.data, root=None))


def _common_name(names: Sequence[str]) -> str:
    """
    >>> _common_name(["digits-ana-seed0", "digits-ana-seed12"]), _common_name(["a", "b"]), _common_name(["a-seed3"])
    ('digits-ana', 'a and 1 more', 'a-seed3')
    >>> _common_name(["vgg8-10", "vgg8-11"]), _common_name(["vgg8", "vgg8-again"])
    ('vgg8', 'vgg8')
    """
    if len(names) == 1:
        return names[0]
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in alike)
    if any(name[len(common) :][:1].isdigit() for name in names):  # they part within a number
        common = common.rstrip("0123456789")
    common = re.sub(r"[-_.]?(seed\d*)?$", "", common)
    return common or f"{names[0]} and {len(names) - 1} more"


def _charts(comparison: Comparison) -> list[Chart]:
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
