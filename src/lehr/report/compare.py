"""Several runs side by side: `compare` reads and groups them, a `Comparison` is their table.

Runs whose recipes differ only in the seed are one row, with mean and standard deviation over the runs. A quantized
network is compared with the full-precision run on the same data, if that is among the runs.
"""

from __future__ import annotations

import functools
import html
import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from lehr.algorithms import Description, FullPrecision
from lehr.printable import printable
from lehr.report.experiment import describe, network
from lehr.report.history import History, read_run
from lehr.report.numbers import duration, epoch_count, percent
from lehr.summary import Summary, summarize
from lehr.table import Table
from lehr.training.folder import RunError
from lehr.training.recipe import Recipe
from lehr.training.recipes import RecipeError
from lehr.training.run import untrained_network


@dataclass(frozen=True)
class Measured:
    """A number measured once or several times; `spread` is the standard deviation, None for a single number.

    >>> Measured.of([0.95, 0.97]).mean, Measured.of([0.95]).spread, Measured.of([])
    (0.96, None, None)
    """

    mean: float
    spread: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured | None:
        """Return mean and spread of the finite values; None if there are none."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        return cls(statistics.fmean(finite), statistics.stdev(finite) if len(finite) > 1 else None)

    def __str__(self) -> str:
        return percent(self.mean) if self.spread is None else f"{100 * self.mean:.2f} ± {100 * self.spread:.2f} %"


@dataclass(frozen=True)
class Group:
    """A row of the comparison: runs of one recipe with different seeds, all finished or all unfinished."""

    name: str
    runs: tuple[History, ...]

    @property
    def recipe(self) -> Recipe:
        """The recipe they share."""
        return self.runs[0].recipe

    @property
    def method(self) -> Description:
        """How they quantize."""
        return describe(self.recipe)

    @property
    def schedule(self) -> str | None:
        """When their noise is annealed, such as SameEnd(duration=3); None if there is no noise."""
        return str(self.recipe.annealing.schedule).replace(", delay=0.0", "") if self.runs[0].windows else None

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
        """Memory and MACs of their network; None if it cannot be built: no run.json, or a class that is not trusted."""
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
    """Groups of runs, in the order in which their first runs were given."""

    SETTING: ClassVar = ("data", "network", "epochs", "runs")  # columns that often say the same in each row

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
        """What a reader must know before comparing the numbers, in sentences."""
        remarks = []
        if len(self.data) > 1:
            remarks.append(f"These runs are on different data ({', '.join(self.data)}): compare within one data set.")
        if any(len(group.runs) > 1 for group in self.groups):
            remarks.append("Runs that differ only in the seed are one row: mean ± standard deviation over the runs.")
        if not all(group.finished for group in self.groups):
            remarks.append("Unfinished runs show the validation accuracy of their last epoch.")
        classes = {name for group in self.groups for run in group.runs for name in run.not_imported}
        if classes:
            names = ", ".join(sorted(classes))
            remarks.append(f"Not imported, because they are not part of lehr: {names}. --trust imports them.")
        return remarks

    def reference(self, group: Group) -> Group | None:
        """Return the full-precision group on the same data, and of several the one with the same network."""
        candidates = [
            other
            for other in self.groups
            if other.full_precision and other.finished and other.recipe.data.name == group.recipe.data.name
        ]
        same = [other for other in candidates if other.network == group.network]
        return same[0] if same else candidates[0] if len(candidates) == 1 else None

    def points(self, group: Group) -> float | None:
        """Return the test accuracy minus that of the reference, in percentage points."""
        reference = self.reference(group)
        if reference is None or reference is group:
            return None
        ours, theirs = group.accuracy("test"), reference.accuracy("test")
        return None if ours is None or theirs is None else 100 * (ours.mean - theirs.mean)

    def table(self) -> Table:
        """Return a row for each group, to be read; the method names the schedule if the groups have several."""
        schedules = {group.schedule for group in self.groups if group.schedule is not None}
        schedules = schedules if len(schedules) > 1 else set()
        header = ("run", "data", "network", "method", "weights", "activations", "first/last", "epochs", "runs")
        header += ("validation", "test", "to full precision", "bytes", "MACs, weight x activation bits", "time")
        rows = []
        for group in self.groups:
            told, points, cost = group.method, self.points(group), group.cost
            reference = "reference" if self.reference(group) is group else None
            rows.append(
                (
                    *(group.name, group.recipe.data.name, group.network),
                    f"{told.name}, {group.schedule}" if group.schedule in schedules else told.name,
                    *(told.weights, told.activations, told.end_layers, group.epochs, len(group.runs)),
                    *(group.accuracy(split) or "not yet" for split in ("val", "test")),
                    reference if points is None else f"{points:+.2f}",
                    *((None, None) if cost is None else (f"{cost.bytes:,}", _kinds_of_macs(cost))),
                    duration(group.seconds),
                )
            )
        return Table(header, rows)

    def numbers(self) -> Table:
        """Return the same with plain numbers: accuracies as shares, times in seconds; empty where there is none."""
        header = ("name", "runs", "finished", "data", "network", "method", "weights", "activations", "end_layers")
        header += ("estimator", "becomes", "twin_epochs", "epochs", "val_accuracy", "val_std", "test_accuracy")
        header += ("test_std", "points_to_full_precision", "bytes", "macs", "mac_kinds", "seconds")
        rows = []
        for group in self.groups:
            told, recipe, cost = group.method, group.recipe, group.cost
            measured = [group.accuracy(split) for split in ("val", "test")]
            rows.append(
                (
                    *(group.name, len(group.runs), group.finished, recipe.data.name, group.network),
                    *(told.name, told.weights, told.activations, told.end_layers, told.estimator, told.becomes),
                    *(recipe.twin_epochs, recipe.epochs),
                    *(number for one in measured for number in ((one.mean, one.spread) if one else (None, None))),
                    self.points(group),
                    *((None, None, None) if cost is None else (cost.bytes, cost.macs, _kinds_of_macs(cost))),
                    group.seconds,
                )
            )
        return Table(header, rows)

    def markdown(self) -> str:
        """Return the table and the remarks."""
        remarks = [f"\n{html.escape(printable(remark), quote=False)}" for remark in self.remarks]
        return "\n".join([self.table().markdown(), *remarks, ""])


def compare(paths: Sequence[Path]) -> Comparison:
    """Read runs and group those that differ only in the seed. A run given twice counts once.

    Args:
        paths: the run folders.
    """
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


def _kinds_of_macs(cost: Summary) -> str:
    """Return the kinds of MACs and their shares, such as "96 % 1.58x1.58, 4 % 1.58x8"."""
    kinds = cost.kinds.items()
    return ", ".join(f"{100 * macs / cost.macs:.3g} % {w:.3g}x{a:.3g}" for (w, a), macs in kinds)


def _without_seed(recipe: Recipe) -> Recipe:
    """Return the recipe without what does not make it another experiment: seed, description, where the data are."""
    return replace(recipe, seed=0, description="", result="", data=replace(recipe.data, root=None))


def _common_name(names: Sequence[str]) -> str:
    """Return what the names of several runs have in common.

    >>> _common_name(["digits-ana-seed0", "digits-ana-seed12"]), _common_name(["a", "b"]), _common_name(["a-seed3"])
    ('digits-ana', 'a and 1 more', 'a-seed3')
    >>> _common_name(["vgg8-10", "vgg8-11"]), _common_name(["vgg8", "vgg8-again"])
    ('vgg8', 'vgg8')
    """
    if len(names) == 1:
        return names[0]
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in alike)
    if any(name[len(common) :][:1].isdigit() for name in names):  # they differ within a number
        common = common.rstrip("0123456789")
    common = re.sub(r"[-_.]?(seed\d*)?$", "", common)
    return common or f"{names[0]} and {len(names) - 1} more"
