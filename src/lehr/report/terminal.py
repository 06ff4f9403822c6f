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
    """The end of a run: accuracy, what re-estimating BatchNorm changed, the levels the weights use, the noise left."""
    console = Console()
    console.print(str(path), soft_wrap=True, highlight=False)
    table = Table()
    for column in ("", "accuracy", "loss"):
        table.add_column(column, justify="left" if not column else "right")
    rows = {"val": "validation", "test": "test", "val/running": "validation, BatchNorm as in training"}
    for key, name in rows.items():
        accuracy, loss = (f"{key}{'_' if '/' in key else '/'}{number}" for number in ("accuracy", "loss"))
        if accuracy in results:
            table.add_row(name, f"{results[accuracy]:.2%}", f"{results[loss]:.4f}")
    console.print(table)
    shares: dict[str, list[str]] = {}
    for key, share in results.items():
        if key.startswith("share/"):
            layer, level = key.removeprefix("share/").rsplit("/", 1)
            shares.setdefault(layer, []).append(f"{level}: {share:.1%}")
    if shares:
        table = Table(title="weights at each level", title_justify="left")
        table.add_column("layer")
        table.add_column("levels")
        for layer, levels in shares.items():
            table.add_row(layer, "  ".join(levels))
        console.print(table)
    stds = {key.removeprefix("std/forward/"): std for key, std in results.items() if key.startswith("std/forward/")}
    noisy = [f"layer {layer} std {std:.4g}" for layer, std in stds.items() if std > 0]
    if stds:
        console.print(f"noise left: {', '.join(noisy) or 'none'}", soft_wrap=True, highlight=False)


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
