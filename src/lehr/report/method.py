"""What tables say of an experiment: its network and its method in a few words, and what is quantized to which levels.

>>> from lehr.training.recipes import named
>>> recipe = named("digits-ana")
>>> network(recipe), method(recipe)
('mlp 256-256', Method(name='ANA asynchronous, linear', weights='-1, 0, 1', activations='-1, 0, 1', ends='both'))
"""

from __future__ import annotations

from dataclasses import dataclass

from lehr.algorithms import ANA, FullPrecision
from lehr.algorithms.ana import STEPS
from lehr.annealing import Power
from lehr.training.recipe import Recipe


@dataclass(frozen=True)
class Method:
    """An algorithm as a row of a table: the levels of weights and activations, which end layers are quantized."""

    name: str
    weights: str
    activations: str
    ends: str  # of the first and last layer: both, first, last, neither


def method(recipe: Recipe) -> Method:
    """How a recipe quantizes."""
    match recipe.algorithm:
        case FullPrecision():
            return Method("full precision", "32 bit", "32 bit", "neither")
        case ANA() as ana:
            name = "STE" if ana.std == 0 else f"ANA {_schedule(recipe)}"
            name += "" if ana.noise == "uniform" else f", {ana.noise}"
            name += "" if ana.mode == "expectation" or ana.std == 0 else f", {ana.mode}"
            ends = {(True, True): "both", (True, False): "first", (False, True): "last", (False, False): "neither"}
            return Method(name, _levels(ana.weights), _levels(ana.activations), ends[ana.first, ana.last])
        case other:
            return Method(type(other).__name__, "", "", "")


def network(recipe: Recipe) -> str:
    """The network and its size."""
    model = recipe.model
    hidden = f" {'-'.join(map(str, model.hidden))}" if model.name == "mlp" else ""
    return f"{model.name}{hidden}" + ("" if model.width == 1 else f" x{model.width:g}")


def _levels(step: str) -> str:
    return ", ".join(f"{level:g}" for level in STEPS[step].levels)


def _schedule(recipe: Recipe) -> str:
    law = recipe.annealing.law
    power = "quadratic" if isinstance(law, Power) and law.exponent == 2 else None
    shape = power or (f"power {law.exponent:g}" if isinstance(law, Power) else type(law).__name__.lower())
    return f"{'synchronous' if recipe.annealing.synchronous else 'asynchronous'}, {shape}"
