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
    FullPrecision,
    GroupNet,
    GXNORNet,
    XNORNet,
)
from lehr.algorithms.ana import STEPS
from lehr.algorithms.gxnor_net import states
from lehr.annealing import Power
from lehr.training.recipe import Recipe

_HALF = math.sqrt(3) / 6  # std of U[-1/2, 1/2], whose windows about two neighbouring thresholds touch


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
            straight = "BNN" if ana.weights == ana.activations == "sign" else "STE"
            name = straight if ana.std == 0 else f"ANA {_schedule(recipe)}"
            kind = (ana.backward_noise or ana.noise) if ana.std == 0 else ana.noise
            name += "" if kind == "uniform" else f", {kind}"
            name += "" if ana.mode == "expectation" or ana.std == 0 else f", {ana.mode}"
            name += "" if ana.noisy == "both" or ana.std == 0 else f", {ana.noisy} alone"
            if name == "STE" and ana.backward_std is not None and not math.isclose(ana.backward_std, _HALF):
                name += f", half-width {ana.backward_std * math.sqrt(3):.3g}"
                law = recipe.annealing.backward_law
                name += "" if law is None else f" to {law.final * ana.backward_std * math.sqrt(3):.3g}"
            return Method(name, _levels(ana.weights), _levels(ana.activations), _ends(ana))
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
        case other:
            return Method(type(other).__name__, "", "", "")


def network(recipe: Recipe) -> str:
    """The network and its size."""
    model = recipe.model
    hidden = f" {'-'.join(map(str, model.hidden))}" if model.name == "mlp" else ""
    return f"{model.name}{hidden}" + ("" if model.width == 1 else f" x{model.width:g}")


def _ends(algorithm: ANA | BinaryConnect | GXNORNet | INQ | STTN | TTQ | TWN) -> str:
    ends = {(True, True): "both", (True, False): "first", (False, True): "last", (False, False): "neither"}
    return ends[algorithm.first, algorithm.last]


def _levels(step: str) -> str:
    return ", ".join(f"{level:g}" for level in STEPS[step].levels)


def _states(space: int) -> str:
    found = states(space)
    return ", ".join(f"{state:g}" for state in found) if len(found) <= 5 else f"{len(found)} states"


def _schedule(recipe: Recipe) -> str:
    law = recipe.annealing.law
    power = "quadratic" if isinstance(law, Power) and law.exponent == 2 else None
    shape = power or (f"power {law.exponent:g}" if isinstance(law, Power) else type(law).__name__.lower())
    return f"{'synchronous' if recipe.annealing.synchronous else 'asynchronous'}, {shape}"
