"""Run folders written without training."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from lehr.cli import main
from lehr.training.recipes import dump, named

INFO = {
    "started": "2026-11-15T21:34:46+0000",
    "command": ["/usr/local/bin/lehr", "train", "digits-ana", "--out", "runs/a run"],
    "seed": 0,
    "commit": "7060b9268b5e0c4611cfbb013518967e1f868557",
    "lehr": "0.1.0",
    "torch": "2.13.0",
    "lightning": "2.6.6",
    "python": "3.11.7",
    "platform": "Linux",
    "threads": 2,
}


def metrics_row(epoch: int, epochs: int, layers: int, *, quantized: bool) -> dict[str, Any]:
    """An epoch of a run whose layers are annealed one after the other over the first half."""
    progress = epoch / epochs
    row: dict[str, Any] = {
        "epoch": epoch,
        "lr": 0.01 * (1 - progress),
        "val/loss": 0.5 * math.exp(-3 * progress),
        "val/accuracy": 0.9 - 0.4 * math.exp(-4 * progress),
        "train/loss": 0.9 * math.exp(-5 * progress),
        "train/accuracy": 0.95 - 0.5 * math.exp(-5 * progress),
    }
    for layer in range(1, layers + 1):
        path = f"layers.{3 * layer - 2}"
        if quantized:
            std = 0.2887 * (1 - min(max(2 * progress * layers - (layer - 1), 0), 1))
            row |= {f"std/forward/{layer}": std, f"std/backward/{layer}": 0.2887}
            row |= {f"share/{path}/{level}": share for level, share in ((-1, 0.25), (0, 0.5), (1, 0.25))}
            row[f"changed/{path}"] = 0.4 / (epoch + 1)
        row[f"grad_norm/{path}"] = 0.05 / (epoch + 1) / layer
    if quantized and progress < 0.5:
        row |= {"val/noisy_loss": row["val/loss"] * 0.8, "val/noisy_accuracy": row["val/accuracy"] + 0.02}
    return row


def make_run(
    path: Path,
    *overrides: str,
    recipe: str = "digits-ana",
    done: int | None = None,
    test: float | None = 0.9,
    layers: int = 3,
    info: dict[str, Any] | None = None,
) -> Path:
    """A run of `recipe` with `overrides`, `done` epochs far (None: all), tested with `test` (None: unfinished)."""
    made = named(recipe, overrides)
    path.mkdir(parents=True)
    (path / "recipe.yaml").write_text(dump(made))
    (path / "run.json").write_text(json.dumps(INFO if info is None else info))
    epochs = made.epochs if done is None else done
    quantized = "fp" not in recipe
    rows = [metrics_row(epoch, made.epochs, layers, quantized=quantized) for epoch in range(epochs)]
    if rows:
        with (path / "metrics.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if test is not None:
        results: dict[str, float] = {"val/accuracy": test + 0.01, "val/loss": 0.3, "test/accuracy": test}
        results |= {"test/loss": 0.4, "epochs": made.epochs, "seconds": 754.2}
        if quantized:
            results |= {f"std/forward/{layer}": 0.0 for layer in range(1, layers + 1)}
        (path / "results.json").write_text(json.dumps(results))
    return path


def trained_runs(factory: pytest.TempPathFactory) -> Path:
    """A folder with two real runs, digits-fp and digits-ana, of two epochs each; trained once a session."""
    folder = factory.getbasetemp() / "trained"
    for name in ("digits-fp", "digits-ana"):
        if not (folder / name).exists():
            arguments = ("--epochs", "2", "--annealing.schedule.duration", "0.5", "--out", str(folder / name))
            assert main(["train", name, *arguments]) == 0
    return folder
