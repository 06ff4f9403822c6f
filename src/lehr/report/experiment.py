"""An experiment in a few words: its network, and its method with the schedule of the noise.

>>> from lehr.training.recipes import named
>>> recipe = named("digits-ana")
>>> network(recipe), describe(recipe).name, describe(recipe).weights
('mlp 256-256', 'ANA asynchronous, linear', '-1, 0, 1')
"""

from __future__ import annotations

from dataclasses import replace

from lehr.algorithms import Description
from lehr.annealing import PowerDecay
from lehr.training.recipe import Recipe
from lehr.training.untrusted import NotImportedNetwork


def describe(recipe: Recipe) -> Description:
    """Return what the recipe's algorithm says of itself, with the recipe's annealing in its name."""
    told = recipe.algorithm.describe()
    name = f"{told.name} {_schedule(recipe)}" if told.noisy and recipe.algorithm.anneals else told.name
    law = recipe.annealing.backward_law
    narrowing = [] if law is None else [f"backward noise falls to {100 * law(1.0):.3g} %"]
    return replace(told, name=", ".join([name, *([told.variant] if told.variant else []), *narrowing]))


def network(recipe: Recipe) -> str:
    """Return the network's name, its size, and the other settings that are not its defaults."""
    model, changed = recipe.model, recipe.model.changed
    if model.kind is NotImportedNetwork:
        return changed["name"].rpartition(".")[2]
    changed.pop("input_bits", None)  # has a place of its own in tables
    parts = [model.name]
    if model.name == "mlp":
        parts.append("-".join(map(str, changed.pop("hidden", model.settings["hidden"]))))
    if isinstance(changed.get("width"), int | float):
        parts.append(f"x{changed.pop('width'):g}")
    return " ".join([*parts, *(f"{key}={value}" for key, value in changed.items())])


def _schedule(recipe: Recipe) -> str:
    law = recipe.annealing.law
    if isinstance(law, PowerDecay):
        shape = "quadratic" if law.exponent == 2 else f"power {law.exponent:g}"
    else:
        shape = type(law).__name__.removesuffix("Decay").lower()
    return f"{'synchronous' if recipe.annealing.synchronous else 'asynchronous'}, {shape}"
