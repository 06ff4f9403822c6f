"""What a run folder records, finished or not: recipe, circumstances, results, and one column for each metric.

history = read_run(Path("runs/digits-ana-seed0"))
history.metrics["val/accuracy"]      # one number for each epoch; NaN where none was written
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lehr.annealing import Window
from lehr.printable import printable
from lehr.report.numbers import level_name, percent
from lehr.table import Table
from lehr.training.folder import RunError, RunFolder, read_json
from lehr.training.recipe import Recipe
from lehr.training.untrusted import read_to_show

T = TypeVar("T")


@dataclass(frozen=True)
class History:
    """The contents of a run folder, without the network.

    Args:
        path: the folder.
        recipe: the recipe it was trained with.
        info: the circumstances: versions, machine, commit, seed.
        results: the final measurements; empty until the run is finished.
        metrics: metrics.csv as columns.
        twin: the full-precision twin that was trained first, if there was one.
        not_imported: classes the recipe names that are not lehr's and not trusted, so were not imported.
    """

    path: Path
    recipe: Recipe
    info: dict[str, Any]
    results: dict[str, float]
    metrics: dict[str, list[float]]
    twin: History | None = None
    not_imported: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the folder, printable."""
        return printable(self.path.resolve().name)

    @property
    def finished(self) -> bool:
        """Whether the run has ended and was tested."""
        return bool(self.results)

    @property
    def epochs(self) -> list[float]:
        """The epochs that have metrics, counted from 0 as in metrics.csv."""
        return self.metrics.get("epoch", [])

    @property
    def times(self) -> list[float]:
        """The number of completed epochs at each row of the metrics: 1 for epoch 0 of metrics.csv."""
        return [epoch + 1 for epoch in self.epochs]

    @property
    def seconds(self) -> float | None:
        """The training time; None until the run is finished."""
        return self.results.get("seconds")

    @property
    def end(self) -> dict[str, float]:
        """The results, completed by the last metrics."""
        last = {name: values[-1] for name, values in self.metrics.items() if not math.isnan(values[-1])}
        return last | self.results

    def accuracy(self, split: str) -> float | None:
        """Return the last noise-free accuracy on a split, or None; \"test\" has one only when the run is finished."""
        return self.end.get(f"{split}/accuracy")

    def below(self, prefix: str) -> dict[str, list[float]]:
        """Return the metrics named PREFIX/..., by the rest of their names.

        >>> History(Path(), None, {}, {}, {"changed/a": [0.5], "lr": [1.0]}).below("changed")
        {'a': [0.5]}
        """
        start = f"{prefix}/"
        return {name.removeprefix(start): values for name, values in self.metrics.items() if name.startswith(start)}

    @property
    def shares(self) -> dict[str, dict[float, list[float]]]:
        """The share of weights at each level, in ascending order, for each quantized layer."""
        return _by_layer(self.below("share"))

    @property
    def last_shares(self) -> dict[str, dict[float, float]]:
        """The same at the end of the run."""
        prefix = "share/"
        return _by_layer({name.removeprefix(prefix): v for name, v in self.end.items() if name.startswith(prefix)})

    @property
    def levels_used(self) -> list[float]:
        """The levels that at least one weight has."""
        return sorted({level for layer in self.last_shares.values() for level, share in layer.items() if share > 0})

    @property
    def windows(self) -> list[Window]:
        """The annealing window of each layer; empty if no noise is annealed."""
        forward = self.below("std/forward")
        if not self.recipe.algorithm.anneals or not any(std > 0 for values in forward.values() for std in values):
            return []
        return self.recipe.annealing.schedule.windows(len(forward))

    @property
    def last_noise(self) -> dict[str, float]:
        """The forward std of each layer, by its number, in the last epoch; empty without quantizers."""
        prefix = "std/forward/"
        return {name.removeprefix(prefix): std for name, std in self.end.items() if name.startswith(prefix)}


def read_run(path: Path) -> History:
    """Read a run folder; every file except the recipe may be missing."""
    folder = RunFolder.open(path)
    info: dict[str, Any] = {}
    with contextlib.suppress(RunError):  # it is missing: a caller that needs it says so
        info = read_json(folder.info)
    results = folder.read_results() or {}
    recipe, not_imported = read_to_show(folder.recipe)
    has_twin = recipe.twin_epochs and RunFolder(folder.twin).recipe.exists()
    twin = read_run(folder.twin) if has_twin else None
    return History(path, recipe, info, results, _columns(folder), twin, not_imported)


def share_table(history: History) -> Table:
    """Return a row for each quantized layer: the share of its weights at each level after the last epoch."""
    shares = history.last_shares
    levels = sorted({level for layer in shares.values() for level in layer})
    rows = [(path, *(percent(at[q]) if q in at else None for q in levels)) for path, at in shares.items()]
    return Table(("layer", *map(level_name, levels)), rows)


def _by_layer(columns: Mapping[str, T]) -> dict[str, dict[float, T]]:
    """Group columns PATH/LEVEL by layer, with the levels in ascending order."""
    layers: dict[str, dict[float, T]] = {}
    for name, values in columns.items():
        path, level = name.rsplit("/", 1)
        layers.setdefault(path, {})[float(level)] = values
    return {path: dict(sorted(levels.items())) for path, levels in layers.items()}


def _columns(folder: RunFolder) -> dict[str, list[float]]:
    rows = folder.read_metrics()
    names = list(rows[0]) if rows else []
    return {printable(name): [float(row[name]) if row[name] else math.nan for row in rows] for name in names}
