"""A run as its folder tells it, finished or not: the recipe, the circumstances, the results, one column a metric.

history = read_run(Path("runs/digits-ana-seed0"))
history.metrics["val/accuracy"]      # one number an epoch; NaN where none was written
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
from lehr.training.shown import read_to_show

T = TypeVar("T")


@dataclass(frozen=True)
class History:
    """What a run folder holds, without its network."""

    path: Path
    recipe: Recipe
    info: dict[str, Any]
    results: dict[str, float]
    metrics: dict[str, list[float]]
    twin: History | None = None  # the full-precision twin that was trained first
    not_imported: tuple[str, ...] = ()  # classes of the recipe that are not lehr's and are not trusted

    @property
    def name(self) -> str:
        """The folder's own name, as it can be shown."""
        return printable(self.path.resolve().name)

    @property
    def finished(self) -> bool:
        """Whether the run reached its end and was tested."""
        return bool(self.results)

    @property
    def epochs(self) -> list[float]:
        """The epochs there are metrics of, as metrics.csv counts them."""
        return self.metrics.get("epoch", [])

    @property
    def times(self) -> list[float]:
        """How many epochs were over when those metrics were taken: 1 after the first, which metrics.csv counts as 0."""
        return [epoch + 1 for epoch in self.epochs]

    @property
    def seconds(self) -> float | None:
        """How long training took."""
        return self.results.get("seconds")

    @property
    def end(self) -> dict[str, float]:
        """The results, and of what they do not hold the last metrics."""
        last = {name: values[-1] for name, values in self.metrics.items() if not math.isnan(values[-1])}
        return last | self.results

    def accuracy(self, split: str) -> float | None:
        """Noise-free accuracy at the end, or on validation data as far as the run is."""
        return self.end.get(f"{split}/accuracy")

    def below(self, prefix: str) -> dict[str, list[float]]:
        """The metrics named PREFIX/..., by the rest of their names.

        >>> History(Path(), None, {}, {}, {"changed/a": [0.5], "lr": [1.0]}).below("changed")
        {'a': [0.5]}
        """
        start = f"{prefix}/"
        return {name.removeprefix(start): values for name, values in self.metrics.items() if name.startswith(start)}

    @property
    def shares(self) -> dict[str, dict[float, list[float]]]:
        """Of each quantized layer, the share of its weights at each level, from the lowest level to the highest."""
        return _by_layer(self.below("share"))

    @property
    def last_shares(self) -> dict[str, dict[float, float]]:
        """The same, at the end."""
        prefix = "share/"
        return _by_layer({name.removeprefix(prefix): v for name, v in self.end.items() if name.startswith(prefix)})

    @property
    def levels_used(self) -> list[float]:
        """The levels at least one weight is at."""
        return sorted({level for layer in self.last_shares.values() for level, share in layer.items() if share > 0})

    @property
    def windows(self) -> list[Window]:
        """When each layer's noise goes; none where there is no noise to go."""
        forward = self.below("std/forward")
        if not self.recipe.algorithm.anneals or not any(std > 0 for values in forward.values() for std in values):
            return []
        return self.recipe.annealing.schedule.windows(len(forward))

    @property
    def last_noise(self) -> dict[str, float]:
        """The forward std of each layer, by its number, at the end or in the last epoch; empty without quantizers."""
        prefix = "std/forward/"
        return {name.removeprefix(prefix): std for name, std in self.end.items() if name.startswith(prefix)}


def read_run(path: Path) -> History:
    """Read a run folder; only its recipe must be there."""
    folder = RunFolder.open(path)
    info: dict[str, Any] = {}
    with contextlib.suppress(RunError):  # it is lost: whoever needs it says so
        info = read_json(folder.info)
    results = folder.read_results() or {}
    recipe, not_imported = read_to_show(folder.recipe)
    there = recipe.twin_epochs and RunFolder(folder.twin).recipe.exists()
    twin = read_run(folder.twin) if there else None
    return History(path, recipe, info, results, _columns(folder), twin, not_imported)


def share_table(history: History) -> Table:
    """Return a row for each quantized layer: the share of its weights at each level after the last epoch."""
    shares = history.last_shares
    levels = sorted({level for layer in shares.values() for level in layer})
    rows = [(path, *(percent(at[q]) if q in at else None for q in levels)) for path, at in shares.items()]
    return Table(("layer", *map(level_name, levels)), rows)


def _by_layer(columns: Mapping[str, T]) -> dict[str, dict[float, T]]:
    """Columns PATH/LEVEL as layers of levels, the levels in order."""
    layers: dict[str, dict[float, T]] = {}
    for name, values in columns.items():
        path, level = name.rsplit("/", 1)
        layers.setdefault(path, {})[float(level)] = values
    return {path: dict(sorted(levels.items())) for path, levels in layers.items()}


def _columns(folder: RunFolder) -> dict[str, list[float]]:
    rows = folder.read_metrics()
    names = list(rows[0]) if rows else []
    return {printable(name): [float(row[name]) if row[name] else math.nan for row in rows] for name in names}
