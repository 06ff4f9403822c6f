"""What the command line prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from lehr.training.recipe import Recipe


def print_results(path: Path, results: Mapping[str, Any]) -> None:
    """The end of a run."""
    table = Table(title=f"{path}", title_justify="left")
    for column in ("", "accuracy", "loss"):
        table.add_column(column, justify="left" if not column else "right")
    for name in ("val", "test"):
        table.add_row(name, f"{results[f'{name}/accuracy']:.2%}", f"{results[f'{name}/loss']:.4f}")
    Console().print(table)


def print_recipes(recipes: Mapping[str, Recipe]) -> None:
    """One line a recipe."""
    table = Table()
    for column in ("recipe", "data", "network", "method", "epochs", "result"):
        table.add_column(column, overflow="fold")
    for name, recipe in recipes.items():
        network = f"{recipe.model.name} x{recipe.model.width:g}"
        method = type(recipe.algorithm).__name__
        table.add_row(name, recipe.data.name, network, method, str(recipe.epochs), recipe.result)
    Console().print(table)


def print_demo(results: Mapping[str, Mapping[str, Any]]) -> None:
    """The demo's networks beside each other."""
    table = Table(title="digits, held-out test images", title_justify="left")
    for column in ("recipe", "validation", "test"):
        table.add_column(column, justify="left" if column == "recipe" else "right")
    for name, result in results.items():
        table.add_row(name, f"{result['val/accuracy']:.2%}", f"{result['test/accuracy']:.2%}")
    Console().print(table)
