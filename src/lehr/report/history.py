"""A run as its folder tells it, finished or not: the recipe, the circumstances, the results, one column a metric.

history = read_run(Path("runs/digits-ana-seed0"))
history.metrics["val/accuracy"]      # one number an epoch; NaN where none was written
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lehr.annealing import Window
from lehr.training.folder import RunError, RunFolder, load_checkpoint
from lehr.training.recipe import Recipe
from lehr.training.recipes import read


@dataclass(frozen=True)
class History:
    """What a run folder holds, without its network."""

    path: Path
    recipe: Recipe
    info: dict[str, Any]
    results: dict[str, Any]
    metrics: dict[str, list[float]]

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.resolve().name

    @property
    def finished(self) -> bool:
        """Whether the run reached its end and was tested."""
        return bool(self.results)

    @property
    def epochs(self) -> list[float]:
        """The epochs there are metrics of, as metrics.csv counts them."""
        return self.metrics.get("epoch", [])

    @property
    def seconds(self) -> float | None:
        """How long training took."""
        return self.results.get("seconds", self.results.get("seconds of this session"))

    def last(self, metric: str) -> float | None:
        """The newest value of a metric."""
        values = [value for value in self.metrics.get(metric, []) if not math.isnan(value)]
        return values[-1] if values else None

    def accuracy(self, split: str) -> float | None:
        """Noise-free accuracy at the end, or on validation data as far as the run is."""
        return self.results.get(f"{split}/accuracy", self.last(f"{split}/accuracy"))

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
        layers: dict[str, dict[float, list[float]]] = {}
        for name, values in self.below("share").items():
            path, level = name.rsplit("/", 1)
            layers.setdefault(path, {})[float(level)] = values
        return {path: dict(sorted(levels.items())) for path, levels in layers.items()}

    @property
    def levels_used(self) -> list[float]:
        """The levels at least one weight is at after the last epoch."""
        return sorted({q for levels in self.shares.values() for q, values in levels.items() if values[-1] > 0})

    @property
    def windows(self) -> list[Window]:
        """When each layer's noise goes; none where there is no noise to go."""
        forward = self.below("std/forward")
        if not any(std > 0 for values in forward.values() for std in values):
            return []
        return self.recipe.annealing.windows_for(len(forward))

    @property
    def noise_left(self) -> float | None:
        """The largest forward std of the network as it is saved; None where nothing is quantized."""
        if not self.below("std/forward"):
            return None
        folder = RunFolder(self.path)
        if folder.final.exists():
            state = load_checkpoint(folder.final)["state_dict"]
            stds = [float(value.max()) for key, value in state.items() if key.endswith("forward_std")]
            return max(stds, default=0.0)
        return max(values[-1] for values in self.below("std/forward").values())


def read_run(path: Path) -> History:
    """Read a run folder; only its recipe must be there."""
    folder = RunFolder.open(path)
    return History(path, read(folder.recipe), _json(folder.info), _json(folder.results), _columns(folder))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} should hold an object of names and values, got {type(content).__name__}")
    return content


def _columns(folder: RunFolder) -> dict[str, list[float]]:
    rows = folder.read_metrics()
    names = [name for name in (rows[0] if rows else {}) if name is not None]
    columns: dict[str, list[float]] = {name: [] for name in names}
    for number, row in enumerate(rows, 2):
        for name in names:
            cell = row.get(name)
            try:
                columns[name].append(float(cell) if cell else math.nan)
            except ValueError:
                raise RunError(f"{folder.metrics} line {number}: {name} should be a number, got {cell!r}") from None
    return columns
