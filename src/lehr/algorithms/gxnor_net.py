"""GXNOR-Net (Deng et al., Neural Networks 100, 2018; arXiv 1705.09283): discrete weights without shadow weights.

Weights live in the discrete space Z_N of its Section II.A, at every moment, in memory too::

    Z_N = {n / 2^(N-1) - 1 : n = 0 .. 2^N},    Δz = 1 / 2^(N-1)        N = 0 binary, 1 ternary, 2 five states, ...

A step of the optimizer proposes a real increment ΔW. Discrete state transition (Section II.D) keeps it within the
space, ϱ = min(1 - W, ΔW) if ΔW >= 0, else max(-1 - W, ΔW), takes it apart, ϱ = κ Δz + ν with κ = fix(ϱ / Δz), and moves
the weight by κ states, and by one more in the direction of ϱ with probability τ(ν) = tanh(m |ν| / Δz). Any optimizer
proposes increments; the authors take Adam's.

Activations are a multi-step function with a window [-r, r] that gives 0 (Section II.B); its derivative is a rectangle
of width 2a and height 1/(2a) or a triangle of the same area about each threshold (Section II.C): in this library's
words no forward noise, and uniform or triangular backward noise of half-width a. With more states than three (Section
II.E) the thresholds beyond the window are one state Δz apart here.

>>> import torch, lehr
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> algorithm = GXNORNet()
>>> conversion = algorithm.convert_(model)
>>> optimizer = algorithm.wrap(torch.optim.Adam(model.parameters(), lr=0.1), model)
>>> model(torch.randn(3, 4)).sum().backward()
>>> optimizer.step()
>>> set(model[0].weight.unique().tolist()) <= {-1.0, 0.0, 1.0}
True
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lehr.algorithms.algorithm import Algorithm, check_choices, quantized_layers
from lehr.algorithms.description import Description, becomes, end_layers, levels_in_words
from lehr.convert import Conversion, quantize_
from lehr.layers import AbstractQuantizer, Quantizer
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Triangular, Uniform
from lehr.scale import fit_scale

_LARGEST_SPACE = 7  # 129 states: the weights of an integer network are int8
_COUNT, _SEED = (
    "transitions",
    "transition_seed",
)  # what a parameter group of the optimizer keeps, and checkpoints with it


class States(AbstractQuantizer):
    """The identity: weights that are at their states already, so that values and gradients are the weights' own."""

    def __init__(self, space: int) -> None:
        super().__init__()
        levels = states(space)
        middles = [(a + b) / 2 for a, b in itertools.pairwise(levels)]
        self.step = MultiStep(tuple(middles), levels)
        self.scale = None

    def forward(self, x: Tensor) -> Tensor:
        """x."""
        return x

    def extra_repr(self) -> str:
        """The states."""
        return f"{self.step}"


@dataclass(frozen=True)
class GXNORNet(Algorithm):
    """Weights in Z_N moved by discrete state transitions, activations in Z_N.

    `weights` and `activations` are the N of their spaces: 2^N + 1 states, two for N = 0. `window` is r, `reach` is a,
    half the width of the derivative about each threshold, and `derivative` its shape; `nonlinearity` is the m of the
    transition probability. `first` and `last` say whether those layers are discrete too. The defaults are the paper's.
    """

    weights: int = 1
    activations: int = 1
    window: float = 0.5
    reach: float = 0.5
    derivative: Literal["rectangular", "triangular"] = "rectangular"
    nonlinearity: float = 3.0
    first: bool = True
    last: bool = True

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("weights", "activations"):
            if not 0 <= getattr(self, name) <= _LARGEST_SPACE:
                raise ValueError(f"{name} is the N of Z_N, 0 to {_LARGEST_SPACE}, got {getattr(self, name)}")
        for name in ("window", "reach", "nonlinearity"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")

    @property
    def averages(self) -> bool:
        """Weights are states, averages of states are not."""
        return False

    def describe(self) -> Description:
        """The states of weights and activations."""
        return Description(
            "GXNOR-Net",
            weights=levels_in_words(states(self.weights)),
            activations=levels_in_words(states(self.activations)),
            end_layers=end_layers(self.first, self.last),
            estimator="none: weights move from state to state at random",
            becomes=becomes(weights=True, activations=True),
        )

    @torch.no_grad()
    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Make weights and activations discrete.

        New weights start at states drawn at random. Of `trained` ones only the nearest state is kept, in units that
        fit the layer best; BatchNorm takes the unit back.
        """
        derivative = Uniform if self.derivative == "rectangular" else Triangular
        conversion = quantize_(
            model,
            weights=States(self.weights),
            activations=Quantizer(
                activation_step(self.activations, self.window), Dirac(), derivative.half_width(self.reach)
            ),
            skip_first=not self.first,
            skip_last=not self.last,
            scale="fixed",
        )
        for _, layer in quantized_layers(model):
            step = layer.quantizer.step
            if trained:
                layer.weight.copy_(step(layer.weight / fit_scale(layer.weight, layer.quantizer)))
            else:
                drawn = torch.randint(len(step.levels), layer.weight.shape, device=layer.weight.device)
                layer.weight.copy_(torch.tensor(step.levels).to(layer.weight)[drawn])
        return conversion

    def wrap(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
        """The same optimizer, whose steps now only propose: the weights make state transitions instead.

        What a transition draws depends on the number of the step and on torch's seed at this moment alone, so that all
        processes of a training draw the same; the optimizer's state has both, and goes on with them when loaded.
        """
        weights = [layer.weight for _, layer in quantized_layers(model)]
        optimizer.param_groups[0] |= {_COUNT: 0, _SEED: torch.initial_seed()}
        before: list[Tensor] = []

        def remember(*_: Any) -> None:
            before.extend(weight.detach().clone() for weight in weights)

        @torch.no_grad()
        def transit(*_: Any) -> None:
            group = optimizer.param_groups[0]
            seed = random.Random(f"{group[_SEED]} {group[_COUNT]}").getrandbits(63)
            generators: dict[torch.device, torch.Generator] = {}
            for weight, old in zip(weights, before, strict=True):
                if weight.device not in generators:
                    generators[weight.device] = torch.Generator(weight.device).manual_seed(seed)
                new = transition(
                    old,
                    weight - old,
                    1 / 2.0 ** (self.weights - 1),
                    nonlinearity=self.nonlinearity,
                    generator=generators[weight.device],
                )
                weight.copy_(new)
            before.clear()
            group[_COUNT] += 1

        optimizer.register_step_pre_hook(remember)
        optimizer.register_step_post_hook(transit)
        return optimizer


def states(space: int) -> tuple[float, ...]:
    """Z_N, in increasing order.

    >>> states(0), states(1), states(2)
    ((-1.0, 1.0), (-1.0, 0.0, 1.0), (-1.0, -0.5, 0.0, 0.5, 1.0))
    """
    return tuple(n / 2.0 ** (space - 1) - 1 for n in range(2**space + 1))


def activation_step(space: int, window: float) -> MultiStep:
    """The activation into Z_N with a window [-r, r] that gives 0; Z_0 has no 0, and its window is nothing.

    >>> print(activation_step(1, 0.3), activation_step(2, 0.3))
    (-1, 0, 1) at (-0.3, 0.3) (-1, -0.5, 0, 0.5, 1) at (-0.8, -0.3, 0.3, 0.8)
    """
    if space == 0:
        return MultiStep.sign()
    levels = states(space)
    above = [window + level - levels[-1] / 2 ** (space - 1) for level in levels if level > 0]
    return MultiStep((*(-threshold for threshold in reversed(above)), *above), levels)


def transition(
    weight: Tensor,
    increment: Tensor,
    distance: float,
    *,
    nonlinearity: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Where discrete state transition takes `weight`, whose states are `distance` apart, for a real `increment`."""
    bounded = torch.minimum(torch.maximum(increment, -1 - weight), 1 - weight)  # ϱ
    whole = (bounded / distance).trunc()  # κ
    remainder = bounded - whole * distance  # ν
    probability = torch.tanh(nonlinearity * remainder.abs() / distance)
    draw = torch.rand(weight.shape, generator=generator, dtype=weight.dtype, device=weight.device)
    moves = whole + (draw < probability) * bounded.sign()
    return weight + moves * distance
