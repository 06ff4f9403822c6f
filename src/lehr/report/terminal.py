"""What the command line prints: tables, plain where the output is no terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lehr.printable import printable
from lehr.report.history import History, read_run, share_table
from lehr.report.method import method, network
from lehr.report.numbers import epoch_count, level_name, percent

if TYPE_CHECKING:
    from lehr.report.compare import Comparison
    from lehr.training.recipe import Recipe

_WIDTH_OF_FILES = 200  # columns, where there is no terminal to ask
_SHARED = ("data", "network", "epochs", "runs")  # columns of a comparison that often say the same in each row
_WORDS = ("run", "data", "network", "method", "weights", "activations", "first/last")  # columns that are no numbers


def print_results(path: Path, results: Mapping[str, Any]) -> None:
    """The end of a run: accuracy, what re-estimating BatchNorm changed, the levels of the weights, the noise left."""
    history, console = read_run(path), _console()
    table = _table(str(path), ("", "accuracy", "loss"), left=1)
    rows = {"validation": "val/", "validation, BatchNorm as in training": "val/running_", "test": "test/"}
    for name, prefix in rows.items():
        if f"{prefix}accuracy" in results:
            _add(table, name, percent(results[f"{prefix}accuracy"]), f"{results[f'{prefix}loss']:.4f}")
    console.print(table)
    levels, shares = share_table(history)
    if shares:
        table = _table("weights at each level", ("layer", *levels), left=1)
        for layer, cells in shares:
            _add(table, layer, *cells)
        console.print(table)
    if history.last_noise:
        console.print(_text(f"noise left: {_noise(history)}"))


def print_recipes(recipes: Mapping[str, Recipe]) -> None:
    """One line a recipe."""
    table = _table(None, ("recipe", "data", "network", "method", "epochs", "result"), left=4)
    for name, recipe in recipes.items():
        length = epoch_count(recipe.twin_epochs, recipe.epochs)
        _add(table, name, recipe.data.name, network(recipe), method(recipe).name, length, recipe.result or "")
    _console().print(table)


def print_methods(recipes: Mapping[str, Recipe], bases: Sequence[str]) -> None:
    """One line a method, and what it can be trained on."""
    table = _table(None, ("method", "weights", "activations", "what it is"), left=4)
    for name, recipe in recipes.items():
        how = method(recipe)
        _add(table, name, how.weights, how.activations, recipe.description)
    console = _console()
    console.print(table)
    console.print(_text(f"each is a recipe BASE-METHOD on {', '.join(bases)}, such as {bases[0]}-{[*recipes][-1]}"))


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
    _add(table, "bytes in 32-bit floats", *(f"{cost.float_bytes:,}" for cost in costs))
    _add(table, "bytes at log2(levels) bits", *(f"{cost.bytes:,}" for cost in costs))
    _console().print(table)


def print_comparison(comparison: Comparison) -> None:
    """Several runs, one line for those that differ in the seed alone; what they all share stands above the table."""
    header, rows = comparison.table()
    columns = list(zip(header, *rows, strict=True))
    shared = [column for column in columns if column[0] in _SHARED and len(rows) > 1 and len(set(column[1:])) == 1]
    own = [column for column in columns if column not in shared]
    title = ", ".join(f"{name} {values[0]}" for name, *values in shared)
    table = _table(title or None, [column[0] for column in own], left=sum(column[0] in _WORDS for column in own))
    for row in list(zip(*own, strict=True))[1:]:
        _add(table, *row)
    console = _console()
    console.print(table)
    for remark in comparison.remarks:
        console.print(_text(remark))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_FILES)


def _table(title: str | None, columns: Sequence[str], *, left: int) -> Table:
    table = Table(title=None if title is None else _text(title), title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(_text(column), justify="left" if index < left else "right", overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*map(_text, cells))


def _text(text: str) -> Text:
    """Plain text: what comes from files is no markup and no command to the terminal."""
    return Text(printable(text))


def _levels(history: History) -> str:
    return ", ".join(map(level_name, history.levels_used)) or "32-bit floats"


def _noise(history: History) -> str:
    noisy = [f"layer {layer} std {std:.4g}" for layer, std in history.last_noise.items() if std > 0]
    return ", ".join(noisy) or ("none" if history.last_noise else "")
