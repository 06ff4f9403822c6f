"""Interval arithmetic with gradients: certified ranges of a formula's values and of its slopes.

A `Ranged` number holds, for many boxes at once, an interval for its value on the box and one for each partial
derivative; interval arithmetic and the chain rule give sums, products and functions of ranged numbers. Each operation
widens its intervals by four units in the last place, which is more than its rounding, so the result encloses the true
range. The gradient gives a certified Lipschitz constant (`Ranged.steepness`).

>>> x, = variables([0.0], [1.0])
>>> y = x * x
>>> round(y.value.high.item(), 6), round(y.steepness(), 6)
(1.0, 2.0)

At a kink (abs, relu, min, max) the derivative's interval spans the slopes of both sides, Clarke's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    """Tensors of lower and upper ends, of any shape, float64."""

    low: Tensor
    high: Tensor

    def __add__(self, other: Interval) -> Interval:
        return _outward(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __mul__(self, other: Interval) -> Interval:
        ends = [self.low * other.low, self.low * other.high, self.high * other.low, self.high * other.high]
        products = torch.stack(torch.broadcast_tensors(*ends))
        return _outward(products.amin(0), products.amax(0))

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value in the interval."""
        return torch.maximum(self.low.abs(), self.high.abs())


@dataclass(frozen=True)
class Ranged:
    """A quantity over boxes: `value` is (boxes,), `gradient` (dimension, boxes)."""

    value: Interval
    gradient: Interval

    def __add__(self, other: Ranged) -> Ranged:
        return Ranged(self.value + other.value, self.gradient + other.gradient)

    def __neg__(self) -> Ranged:
        return Ranged(-self.value, -self.gradient)

    def __sub__(self, other: Ranged) -> Ranged:
        return self + -other

    def __mul__(self, other: Ranged) -> Ranged:
        return Ranged(self.value * other.value, self.gradient * other.value + other.gradient * self.value)

    def __truediv__(self, other: Ranged) -> Ranged:
        return self * other.power(-1.0)

    def power(self, exponent: float) -> Ranged:
        """Return this quantity to a constant power."""
        if exponent == 0:
            return constant(1.0, self)
        value = _power(self.value, exponent)
        slope = _power(self.value, exponent - 1) * _constant(exponent, self)
        return Ranged(value, self.gradient * slope)

    def apply(self, function: str) -> Ranged:
        """Apply one of `FUNCTIONS`, by the chain rule."""
        values, slopes = FUNCTIONS[function]
        return Ranged(values(self.value), self.gradient * slopes(self.value))

    def maximum(self, other: Ranged) -> Ranged:
        """Return the larger of the two; where either may be larger, the gradient spans both."""
        a, b = self.value, other.value
        sure, never = a.low >= b.high, b.low >= a.high

        def pick(mine: Tensor, theirs: Tensor, either: Tensor) -> Tensor:
            return torch.where(sure, mine, torch.where(never, theirs, either))

        low, high = (self.gradient.low, other.gradient.low), (self.gradient.high, other.gradient.high)
        gradient = Interval(pick(*low, torch.minimum(*low)), pick(*high, torch.maximum(*high)))
        return Ranged(Interval(torch.maximum(a.low, b.low), torch.maximum(a.high, b.high)), gradient)

    def minimum(self, other: Ranged) -> Ranged:
        """Return the smaller of the two."""
        return -(-self).maximum(-other)

    def steepness(self) -> float:
        """Return a Lipschitz constant in the Euclidean norm on boxes that tile a convex set, or infinity."""
        norms = self.gradient.magnitude.square().sum(0).sqrt() * (1 + 2**-40)
        return math.inf if bool(norms.isnan().any()) else float(norms.max())


def variables(low: Sequence[float], high: Sequence[float], boxes: int = 1) -> list[Ranged]:
    """Return the coordinates over the box from `low` to `high`, cut into at most `boxes` equal boxes."""
    dimension = len(low)
    parts = max(1, math.floor(boxes ** (1 / dimension) + 1e-9))
    cuts = [torch.linspace(a, b, parts + 1, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
    lows = torch.cartesian_prod(*[cut[:-1] for cut in cuts]).reshape(-1, dimension).T
    highs = torch.cartesian_prod(*[cut[1:] for cut in cuts]).reshape(-1, dimension).T
    units = torch.eye(dimension, dtype=torch.float64)[:, :, None].expand(-1, -1, lows.shape[1])
    return [Ranged(Interval(lows[i], highs[i]), Interval(units[i], units[i])) for i in range(dimension)]


def constant(value: float, like: Ranged) -> Ranged:
    """Return a number as a quantity over the boxes of `like`."""
    zero = torch.zeros_like(like.gradient.low)
    return Ranged(_constant(value, like), Interval(zero, zero))


def _constant(value: float, like: Ranged) -> Interval:
    point = torch.full_like(like.value.low, value)
    return Interval(point, point)


def _outward(low: Tensor, high: Tensor) -> Interval:
    relative, absolute = 2**-50, 2**-1070
    return Interval(low - (low.abs() * relative + absolute), high + (high.abs() * relative + absolute))


def _rising(function: Callable[[Tensor], Tensor]) -> Callable[[Interval], Interval]:
    """Return the range of an increasing function: its values at the ends."""
    return lambda u: _outward(function(u.low), function(u.high))


def _hump(function: Callable[[Tensor], Tensor]) -> Callable[[Interval], Interval]:
    """Return the range of an even function that falls away from 0: its values farthest from and nearest to 0."""

    def ranged(u: Interval) -> Interval:
        return _outward(function(u.magnitude), function(_nearest_to_zero(u)))

    return ranged


def _nearest_to_zero(u: Interval) -> Tensor:
    return torch.where((u.low <= 0) & (u.high >= 0), 0.0, torch.minimum(u.low.abs(), u.high.abs()))


def _sine(u: Interval) -> Interval:
    """Return the range of sin: its values at the ends, and 1 or -1 if a crest or a trough may lie between them."""
    slack = 1e-9 + 1e-15 * u.magnitude

    def holds(place: float) -> Tensor:
        turns_low, turns_high = ((end - place) / (2 * math.pi) for end in (u.low, u.high))
        return (turns_high + slack).floor() >= (turns_low - slack).ceil()

    low, high = (end.sin() for end in (u.low, u.high))
    ends = _outward(torch.minimum(low, high), torch.maximum(low, high))
    return Interval(torch.where(holds(-math.pi / 2), -1.0, ends.low), torch.where(holds(math.pi / 2), 1.0, ends.high))


def _cosine(u: Interval) -> Interval:
    quarter = torch.full_like(u.low, math.pi / 2)
    return _sine(u + _outward(quarter, quarter))


def _power(u: Interval, exponent: float) -> Interval:
    whole = exponent == int(exponent)
    if not whole:  # the power is undefined below 0: clamp values that only outward rounding made negative
        rounding = 2**-40 * u.magnitude.max() + 2.0**-1000
        u = Interval(torch.where(u.low > -rounding, u.low.clamp_min(0), u.low), u.high)
    if not whole and bool((u.low < 0).any()):
        raise ValueError(f"a power {exponent:g} needs a base that is not negative, but it reaches {_lowest(u):.4g}")
    if whole and exponent < 0 and bool(((u.low <= 0) & (u.high >= 0)).any()):
        raise ValueError(f"it divides by a quantity between {_lowest(u):.4g} and {_highest(u):.4g}, which may be 0")
    powers = u.low.pow(exponent), u.high.pow(exponent)
    low, high = torch.minimum(*powers), torch.maximum(*powers)
    if whole and exponent > 0 and exponent % 2 == 0:
        low = _nearest_to_zero(u).pow(exponent)
    return _outward(low, high)


def _logarithm(u: Interval) -> Interval:
    if bool((u.low <= 0).any()):
        raise ValueError(f"log needs an argument above 0, but it reaches {_lowest(u):.4g}")
    return _outward(u.low.log(), u.high.log())


def _absolute(u: Interval) -> Interval:
    return Interval(_nearest_to_zero(u), u.magnitude)


def _steps(below: float, above: float) -> Callable[[Interval], Interval]:
    """Return the slope at a kink at 0: one number on each side, both if the interval contains both sides."""
    return lambda u: Interval(
        torch.where(u.low < 0, below, above).to(u.low), torch.where(u.high > 0, above, below).to(u.low)
    )


def _minus_sine(u: Interval) -> Interval:
    return -_sine(u)


# For each function, the range of its values and of its derivative over an interval.
FUNCTIONS: dict[str, tuple[Callable[[Interval], Interval], Callable[[Interval], Interval]]] = {
    "sin": (_sine, _cosine),
    "cos": (_cosine, _minus_sine),
    "exp": (_rising(torch.exp), _rising(torch.exp)),
    "log": (_logarithm, lambda u: _power(u, -1.0)),
    "sqrt": (lambda u: _power(u, 0.5), lambda u: _power(u, -0.5) * Interval(*[torch.full_like(u.low, 0.5)] * 2)),
    "abs": (_absolute, _steps(-1.0, 1.0)),
    "relu": (_rising(torch.relu), _steps(0.0, 1.0)),
    "tanh": (_rising(torch.tanh), _hump(lambda u: 1 / u.cosh().square())),
    "atan": (_rising(torch.atan), _hump(lambda u: 1 / (1 + u.square()))),
    "sigmoid": (_rising(torch.sigmoid), _hump(lambda u: u.sigmoid() * (-u).sigmoid())),
}


def _lowest(u: Interval) -> float:
    return float(u.low.min())


def _highest(u: Interval) -> float:
    return float(u.high.max())
