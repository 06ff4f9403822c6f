"""What the command line prints: tables, plain where the output is no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lehr.report.history import History, read_run
from lehr.report.method import method, network
from lehr.report.numbers import percent

if TYPE_CHECKING:
    from lehr.report.compare import Comparison
    from lehr.training.recipe import Recipe

_WIDTH_OF_FILES = 200  # columns, where there is no terminal to ask


def print_results(path: Path, results: Mapping[str, Any]) -> None:
    """The end of a run: accuracy and loss without noise, the levels of its weights, the noise left."""
    history = read_run(path)
    table = _table(str(path), ("", "accuracy", "loss"), left=1)
    for name, split in (("validation", "val"), ("test", "test")):
        _add(table, name, percent(results[f"{split}/accuracy"]), f"{results[f'{split}/loss']:.4f}")
    running = results.get("val/running_accuracy")
    if running is not None:
        _add(table, "validation, running BatchNorm statistics", percent(running), "")
    console = _console()
    console.print(table)
    if history.levels_used:
        console.print(Text(f"levels of the weights: {_levels(history)}"))
        console.print(Text(f"noise left: {_noise(history)}"))


def print_recipes(recipes: Mapping[str, Recipe]) -> None:
    """One line a recipe."""
    table = _table(None, ("recipe", "data", "network", "method", "epochs", "result"), left=4)
    for name, recipe in recipes.items():
        row = (name, recipe.data.name, network(recipe), method(recipe).name, str(recipe.epochs), recipe.result or "")
        _add(table, *row)
    _console().print(table)


def print_demo(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """The demo's networks, runs below `folder`, beside each other."""
    from lehr.summary import summarize
    from lehr.training.run import network_of

    runs = [read_run(folder / name) for name in results]
    costs = [summarize(*network_of(str(run.path))) for run in runs]
    table = _table("digits", ("", *(method(run.recipe).name for run in runs)), left=1)
    _add(table, "accuracy on held-out test images", *(percent(one["test/accuracy"]) for one in results.values()))
    _add(table, "accuracy on validation images", *(percent(one["val/accuracy"]) for one in results.values()))
    _add(table, "levels of the weights", *(_levels(run) for run in runs))
    _add(table, "noise left", *(_noise(run) for run in runs))
    _add(table, "weights", *(f"{cost.weights:,}" for cost in costs))
    _add(table, "bytes in 32-bit floats", *(f"{4 * cost.weights:,}" for cost in costs))
    _add(table, "bytes at log2(levels) bits", *(f"{cost.bytes:,}" for cost in costs))
    _console().print(table)


def print_comparison(comparison: Comparison) -> None:
    """Several runs, one line for those that differ in the seed alone."""
    header, rows = comparison.table()
    table = _table(None, header, left=7)
    for row in rows:
        _add(table, *row)
    console = _console()
    console.print(table)
    for remark in comparison.remarks:
        console.print(Text(remark))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_FILES)


def _table(title: str | None, columns: Sequence[str], *, left: int) -> Table:
    table = Table(title=None if title is None else Text(title), title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    """A row of plain text: what comes from files is no markup."""
    table.add_row(*map(Text, cells))


def _levels(history: History) -> str:
    return ", ".join(f"{level:g}" for level in history.levels_used) or "32-bit floats"


def _noise(history: History) -> str:
    left = history.noise_left
    return "" if left is None else "none" if left == 0 else f"forward std {left:.4g}"
