"""GXNOR-Net (Deng et al., Neural Networks 100, 2018; arXiv 1705.09283): discrete weights without shadow weights.

Weights are always in the discrete space Z_N of its Section II.A, in memory too::

    Z_N = {n / 2^(N-1) - 1 : n = 0 .. 2^N},    Δz = 1 / 2^(N-1)        N = 0 binary, 1 ternary, 2 five states, ...

A step of the optimizer proposes a real increment ΔW. Discrete state transition (Section II.D) keeps it within the
space, ϱ = min(1 - W, ΔW) if ΔW >= 0, else max(-1 - W, ΔW), splits it, ϱ = κ Δz + ν with κ = fix(ϱ / Δz), and moves the
weight by κ states, and by one more in the direction of ϱ with probability τ(ν) = tanh(m |ν| / Δz). Any optimizer can
propose increments; the authors use Adam.

Activations are a multi-step function that is 0 on a window [-r, r] (Section II.B); its derivative is a rectangle of
width 2a and height 1/(2a), or a triangle of the same area, at each threshold (Section II.C): no forward noise, and
uniform or triangular backward noise of half-width a. With more than three states (Section II.E) the thresholds beyond
the window are Δz apart here.

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
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Triangular, Uniform
from lehr.quantizer import AbstractQuantizer, Quantizer
from lehr.scale import fit_scale

_LARGEST_SPACE = 7  # 129 states: the weights of an integer network are int8
_COUNT, _SEED = "transitions", "transition_seed"  # entries of a parameter group, so that checkpoints contain them


class States(AbstractQuantizer):
    """The identity, for weights that are already at their states."""

    def __init__(self, space: int) -> None:
        super().__init__()
        levels = states(space)
        middles = [(a + b) / 2 for a, b in itertools.pairwise(levels)]
        self.step = MultiStep(tuple(middles), levels)
        self.scale = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def extra_repr(self) -> str:
        """Return the states."""
        return f"{self.step}"


@dataclass(frozen=True)
class GXNORNet(Algorithm):
    """Weights in Z_N that move by discrete state transitions, and activations in Z_N; the defaults are the paper's.

    Args:
        weights: N of the weights: 2^N + 1 states, two for N = 0.
        activations: N of the activations.
        window: r, the half-width of the window in which activations are 0.
        reach: a, the half-width of the derivative at each threshold.
        derivative: the shape of the derivative.
        nonlinearity: m of the transition probability.
        first: quantize the first layer.
        last: quantize the last layer.
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
                raise ValueError(f"{name}, the N of Z_N, must be in 0..{_LARGEST_SPACE}, got {getattr(self, name)}")
        for name in ("window", "reach", "nonlinearity"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")

    @property
    def averages(self) -> bool:
        """False: an average of states is not a state."""
        return False

    def describe(self) -> Description:
        """Return its row of a table."""
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

        New weights start at random states, `trained` ones at the nearest state in units that fit the layer best;
        BatchNorm compensates for the unit.
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
            sums=None,  # the paper quantizes no sums
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
        """Return the same optimizer, whose steps now only propose increments for state transitions.

        The random numbers of a transition depend only on the step and on torch's seed at this call, so that all
        processes draw the same; the optimizer's state contains both, so a resumed run continues with them.
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
    """Return Z_N in increasing order.

    >>> states(0), states(1), states(2)
    ((-1.0, 1.0), (-1.0, 0.0, 1.0), (-1.0, -0.5, 0.0, 0.5, 1.0))
    """
    return tuple(n / 2.0 ** (space - 1) - 1 for n in range(2**space + 1))


def activation_step(space: int, window: float) -> MultiStep:
    """Return the activation into Z_N, which is 0 on a window [-r, r]; Z_0 contains no 0 and ignores the window.

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
    """Return the weights after a discrete state transition.

    Args:
        weight: the weights, at their states.
        increment: the real increments that the optimizer proposes.
        distance: Δz, the distance of neighbouring states.
        nonlinearity: m of the transition probability.
        generator: draws the random moves.
    """
    bounded = torch.minimum(torch.maximum(increment, -1 - weight), 1 - weight)  # ϱ
    whole = (bounded / distance).trunc()  # κ
    remainder = bounded - whole * distance  # ν
    probability = torch.tanh(nonlinearity * remainder.abs() / distance)
    draw = torch.rand(weight.shape, generator=generator, dtype=weight.dtype, device=weight.device)
    moves = whole + (draw < probability) * bounded.sign()
    return weight + moves * distance
