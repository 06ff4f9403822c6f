"""What tables say of an experiment: its network and its method in a few words, and what is quantized to which levels.

>>> from lehr.training.recipes import named
>>> recipe = named("digits-ana")
>>> network(recipe), method(recipe)
('mlp 256-256', Method(name='ANA asynchronous, linear', weights='-1, 0, 1', activations='-1, 0, 1', ends='both'))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lehr.algorithms import (
    ANA,
    INQ,
    LSQ,
    STTN,
    TTQ,
    TWN,
    ABCNet,
    BinaryConnect,
    Estimated,
    FullPrecision,
    GroupNet,
    GXNORNet,
    XNORNet,
)
from lehr.algorithms.gxnor_net import states
from lehr.annealing import PowerDecay
from lehr.estimator import Estimator
from lehr.multistep import MultiStep
from lehr.noise import Uniform
from lehr.training.recipe import Recipe
from lehr.training.shown import NotImported, NotImportedNetwork


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
        case ANA() | Estimated() as estimated:
            weights, activations = estimated.estimators
            return Method(_estimator(recipe), _levels(weights.step), _levels(activations.step), _ends(estimated))
        case BinaryConnect() as connect:
            name = "BinaryConnect, stochastic" if connect.stochastic else "BinaryConnect"
            return Method(name, "-1, 1", "32 bit", _ends(connect))
        case TWN() as twn:
            return Method("TWN", "-α, 0, α", "32 bit", _ends(twn))
        case TTQ() as ttq:
            return Method("TTQ", "-Wⁿ, 0, Wᵖ", "32 bit", _ends(ttq))
        case STTN() as sttn:
            return Method("STTN", "-1, 0, 1", "-1, 0, 1", _ends(sttn))
        case LSQ() as lsq:
            return Method("LSQ", f"{lsq.bits} bit", f"{lsq.bits} bit", f"both, {lsq.end_bits} bit")
        case INQ() as inq:
            name = "INQ" if inq.partition == "magnitude" else f"INQ, {inq.partition}"
            weights = "-2ⁿ, 0, 2ⁿ" if inq.bits == 2 else f"{2 ** (inq.bits - 1)} powers of 2, 0"
            return Method(name, weights, "32 bit", _ends(inq))
        case XNORNet() as xnor:
            name, inputs = ("XNOR-Net", "-K, K") if xnor.input_scale else ("XNOR-Net, no input scale", "-1, 1")
            return Method(name, "-α, α", inputs, "neither")
        case GXNORNet() as gxnor:
            return Method("GXNOR-Net", _states(gxnor.weights), _states(gxnor.activations), _ends(gxnor))
        case ABCNet() as abc:
            return Method("ABC-Net", f"{abc.bases} x binary", f"{abc.activations} x binary", "neither")
        case GroupNet() as net:
            name = "Group-Net" if net.decomposition == "layer" else f"Group-Net, groups of {net.group}"
            return Method(name, f"{net.branches} x binary", "-1, 1", "neither")
        case NotImported() as other:
            return Method(other.name.rpartition(".")[2], "", "", "")
        case other:
            return Method(type(other).__name__, "", "", "")


def network(recipe: Recipe) -> str:
    """The network, its size, and what else its recipe changes of it."""
    model, changed = recipe.model, recipe.model.changed
    if model.kind is NotImportedNetwork:
        return changed["name"].rpartition(".")[2]
    changed.pop("input_bits", None)  # which stands elsewhere
    parts = [model.name]
    if model.name == "mlp":
        parts.append("-".join(map(str, changed.pop("hidden", model.settings["hidden"]))))
    if isinstance(changed.get("width"), int | float):
        parts.append(f"x{changed.pop('width'):g}")
    return " ".join([*parts, *(f"{key}={value}" for key, value in changed.items())])


def _ends(algorithm: ANA | BinaryConnect | Estimated | GXNORNet | INQ | STTN | TTQ | TWN) -> str:
    ends = {(True, True): "both", (True, False): "first", (False, True): "last", (False, False): "neither"}
    return ends[algorithm.first, algorithm.last]


def _estimator(recipe: Recipe) -> str:
    """The estimators of weights and activations in a few words: STE or BNN without forward noise, else ANA."""
    assert isinstance(recipe.algorithm, ANA | Estimated)
    sides = recipe.algorithm.estimators
    noisy = [side for side in sides if side.forward.std > 0]
    if not noisy:
        return _straight_through(recipe, sides)
    kind = type(noisy[0].forward).__name__.lower()
    name = f"ANA {_schedule(recipe)}" + ("" if kind == "uniform" else f", {kind}")
    name += "" if noisy[0].mode == "expectation" else f", {noisy[0].mode}"
    return name + ("" if len(noisy) == 2 else f", {'weights' if sides[0] in noisy else 'activations'} alone")


def _straight_through(recipe: Recipe, sides: tuple[Estimator, Estimator]) -> str:
    backward = sides[0].backward
    if all(side.step == MultiStep.sign() for side in sides):
        return "BNN"
    if not isinstance(backward, Uniform):
        return f"STE, {type(backward).__name__.lower()}"
    width, law = float(backward.w), recipe.annealing.backward_law
    if math.isclose(width, 0.5) and law is None:  # windows about two neighbouring thresholds touch
        return "STE"
    return f"STE, half-width {width:.3g}" + ("" if law is None else f" to {law.final * width:.3g}")


def _levels(step: MultiStep) -> str:
    return ", ".join(f"{level:g}" for level in step.levels) if len(step.levels) <= 5 else f"{len(step.levels)} levels"


def _states(space: int) -> str:
    found = states(space)
    return ", ".join(f"{state:g}" for state in found) if len(found) <= 5 else f"{len(found)} states"


def _schedule(recipe: Recipe) -> str:
    law = recipe.annealing.law
    if isinstance(law, PowerDecay):
        shape = "quadratic" if law.exponent == 2 else f"power {law.exponent:g}"
    else:
        shape = type(law).__name__.removesuffix("Decay").lower()
    return f"{'synchronous' if recipe.annealing.synchronous else 'asynchronous'}, {shape}"
