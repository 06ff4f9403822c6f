"""What the command line prints at the end of a command: tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lehr.printable import printable
from lehr.report.experiment import describe, network
from lehr.report.history import History, read_run, share_table
from lehr.report.numbers import epoch_count, level_name, percent
from lehr.table import Table, show

if TYPE_CHECKING:
    from lehr.report.compare import Comparison
    from lehr.training.recipe import Recipe


def print_results(path: Path, results: Mapping[str, Any]) -> None:
    """Print the end of a run: accuracy, the share of weights at each level, the noise that is left.

    Args:
        path: the run folder.
        results: what `train` or `evaluate` returned.
    """
    history = read_run(path)
    kinds = {
        "validation": "val/",
        "validation, BatchNorm as in training": "val/running_",
        "validation, with mirror images": "val/mirrored_",
        "test": "test/",
        "test, with mirror images": "test/mirrored_",
    }
    rows = [
        (name, percent(results[f"{prefix}accuracy"]), f"{results[f'{prefix}loss']:.4f}")
        for name, prefix in kinds.items()
        if f"{prefix}accuracy" in results
    ]
    show(Table(("images", "accuracy", "loss"), rows), str(path))
    shares = share_table(history)
    if shares.rows:
        print()
        show(shares, "weights at each level")
    if history.last_noise:
        print(f"\nnoise left: {_noise(history)}")


def print_recipes(recipes: Mapping[str, Recipe]) -> None:
    """Print a row for each recipe, by name."""
    rows = [
        (
            name,
            recipe.data.name,
            network(recipe),
            describe(recipe).name,
            epoch_count(recipe.twin_epochs, recipe.epochs),
            recipe.result,
        )
        for name, recipe in recipes.items()
    ]
    show(Table(("recipe", "data", "network", "method", "epochs", "result"), rows))


def print_methods(recipes: Mapping[str, Recipe], bases: Sequence[str]) -> None:
    """Print a row for each method, and the data sets it can be trained on.

    Args:
        recipes: a recipe of each method, by the method's name.
        bases: the first halves of recipe names, such as "digits".
    """
    rows = []
    for name, recipe in recipes.items():
        told = describe(recipe)
        rows.append((name, told.weights, told.activations, told.becomes, recipe.description))
    print()
    show(Table(("method", "weights", "activations", "becomes", "what it is"), rows))
    print(f"\nEach method is a recipe BASE-METHOD on {', '.join(bases)}, such as {bases[0]}-{[*recipes][-1]}.")


def print_demo(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the demo's networks side by side.

    Args:
        folder: where their runs are.
        results: what training returned, by the name of the run.
    """
    from lehr.summary import summarize
    from lehr.training.run import network_of

    runs = [read_run(folder / name) for name in results]
    costs = [summarize(*network_of(str(run.path))) for run in runs]
    rows = [
        ("accuracy on test images", *(percent(one["test/accuracy"]) for one in results.values())),
        ("accuracy on validation images", *(percent(one["val/accuracy"]) for one in results.values())),
        ("levels of the weights", *(_levels(run) for run in runs)),
        ("noise left", *(_noise(run) for run in runs)),
        ("weights", *(f"{cost.weights:,}" for cost in costs)),
        ("bytes in 32-bit floats", *(f"{cost.float_bytes:,}" for cost in costs)),
        ("bytes at log2(levels) bits", *(f"{cost.bytes:,}" for cost in costs)),
    ]
    show(Table(("digits", *(describe(run.recipe).name for run in runs)), rows))


def print_comparison(comparison: Comparison) -> None:
    """Print a row for each group of runs; what all rows share is printed above them."""
    shared, table = comparison.table().without_shared(comparison.SETTING)
    show(table, shared)
    print()
    for remark in comparison.remarks:
        print(printable(remark))


def _levels(history: History) -> str:
    return ", ".join(map(level_name, history.levels_used)) or "32-bit floats"


def _noise(history: History) -> str:
    noisy = [f"layer {layer} std {std:.4g}" for layer, std in history.last_noise.items() if std > 0]
    return ", ".join(noisy) or ("none" if history.last_noise else "")
