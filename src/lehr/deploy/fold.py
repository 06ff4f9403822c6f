"""What torch does to an integer on its way to the next layer, and the integer thresholds that do the same.

BatchNorm is folded here: `batch_norm_function` makes a `Function` of it, and `thresholds` makes integer thresholds of
that, of all functions beside it and of the multi-step function that follows.

Between a sum s and the next multi-step function σ the trained network scales, adds a bias, normalises and clips, per
channel and in float32. Each of these is a `Function`, monotone with its rounding; one that turns, such as SiLU, is
split into two that are (`sides`). So σ(f(s)) is a step function of the integer s, and the place of each step is found
by bisection *with the very operations torch performs*: t_k = ceil((θ_k - shift) / |scale|) of the textbook is right
too, until float32 rounds a near tie the other way; these thresholds agree with torch at every integer. A channel whose
f falls has direction -1; a constant channel has direction 1 and thresholds at an end of the range.

>>> relu = Function(torch.relu, clip=(0.0, float("inf")))
>>> double = Function(lambda x: 2 * x, affine=(torch.full((1,), 2.0).double(), torch.zeros(1).double()))
>>> thresholds(lambda x: (x >= 5).float(), (double, relu), torch.tensor([[0.5]]), low=-9, high=9, channels=1)
(array([[3]]), array([1]))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor, nn

# Floats are clamped to these bounds: far beyond any activation, and BatchNorm of them does not overflow.
LARGEST_FLOAT = 2.0**100
_LEAST_POWER = 2.0**-14  # of two units: the finer one times as much is the coarser one
_ROUNDING = 2.0**-24  # half the distance of neighbouring float32, relative: what one rounding changes at most


@dataclass(frozen=True, eq=False)
class Function:
    """A monotone function of each channel: `call` takes and gives (n, channel) as torch would compute it in float32.

    `affine` is (scale, shift) per channel in float64, and `clip` (low, high), if that is what the function is. `terms`
    is for an affine function that a machine may round once or twice, as it fuses multiplying and adding or not: the
    size, per channel, of what is added. `path` is where a function that is neither stands in the model: only thresholds
    do what it does. `turn` is where a function falls no more but rises, as SiLU does: it is monotone on both sides.
    """

    call: Callable[[Tensor], Tensor]
    affine: tuple[Tensor, Tensor] | None = None
    clip: tuple[float, float] | None = None
    terms: Tensor | None = None
    path: str = ""
    turn: float | None = None

    @property
    def is_exact(self) -> bool:
        """Whether it is a product with a power of two, which never rounds."""
        return self.affine is not None and is_power_of_two(self.affine[0]) and not bool(self.affine[1].any())

    @property
    def is_uniform(self) -> bool:
        """Whether it is known to be the same function in all channels."""
        if self.affine is None:
            return self.clip is not None
        return self.terms is None and all(bool((numbers == numbers[0]).all()) for numbers in self.affine)

    def taken(self, channels: Tensor) -> Function:
        """The same functions of other channels: of channel i, what it was of channels[i]."""
        ranked, order = channels.sort(stable=True)
        again = torch.empty_like(channels)  # how often a channel was taken before
        again[order] = torch.arange(len(channels)) - torch.searchsorted(ranked, ranked)
        depth = int(again.max()) + 1
        count = int(channels.max()) + 1 if self.affine is None else len(self.affine[0])

        def call(x: Tensor) -> Tensor:
            rows = x.new_zeros(len(x), depth, count)
            rows[:, again, channels] = x
            y = self.call(rows.reshape(-1, count)).reshape(rows.shape)
            return y[:, again, channels]

        affine = None
        if self.affine is not None:
            scale, shift = (numbers[channels] for numbers in self.affine)
            affine = (scale, shift)
        return replace(self, call=call, affine=affine, terms=None if self.terms is None else self.terms[channels])


def sides(functions: Sequence[Function]) -> tuple[tuple[Function, ...], tuple[Function, ...]] | None:
    """Split the chain at its turning function into two monotone chains, each constant beyond the turn.

    None if none turns.
    """
    at = next((at for at, function in enumerate(functions) if function.turn is not None), None)
    if at is None:
        return None
    before, turning, after = functions[:at], functions[at], functions[at + 1 :]
    left, right = (
        (*before, Function(lambda x, clamp=clamp: turning.call(clamp(x, turning.turn))), *after)
        for clamp in (lambda x, turn: x.clamp(max=turn), lambda x, turn: x.clamp(min=turn))
    )
    return left, right


def joined(functions: Sequence[Sequence[Function]], sizes: Sequence[int]) -> tuple[Function, ...]:
    """Functions of values whose channels are put behind each other: all affine, of so many channels each."""
    longest = max(len(chain) for chain in functions)
    padded = [
        [*chain, *(_identity(size) for _ in range(longest - len(chain)))]
        for chain, size in zip(functions, sizes, strict=True)
    ]
    return tuple(_side_by_side(each, sizes) for each in zip(*padded, strict=True))


def _side_by_side(functions: Sequence[Function], sizes: Sequence[int]) -> Function:
    def call(x: Tensor) -> Tensor:
        parts = zip(functions, x.split(list(sizes), 1), strict=True)
        return torch.cat([function.call(part) for function, part in parts], 1)

    affines = [function.affine for function in functions if function.affine is not None]
    scale, shift = (torch.cat([affine[i] for affine in affines]) for i in (0, 1))
    terms = None
    if any(function.terms is not None for function in functions):
        zeros = (torch.zeros(size, dtype=torch.float64) for size in sizes)
        terms = torch.cat([z if f.terms is None else f.terms for f, z in zip(functions, zeros, strict=True)])
    return Function(call, (scale, shift), terms=terms)


def _identity(channels: int) -> Function:
    ones = torch.ones(channels, dtype=torch.float64)
    return Function(torch.clone, (ones, torch.zeros_like(ones)))


def scaled(scale: Tensor, shift: Tensor) -> tuple[Function, ...]:
    """scale * x + shift as a quantized layer computes it: float64 numbers per channel, float32 arithmetic."""
    scale32, shift32 = scale.float(), shift.float()
    if bool((shift == 0).all()):
        return () if bool((scale == 1).all()) else (Function(lambda x: x * scale32, (scale, shift)),)
    return (Function(lambda x: x * scale32 + shift32, (scale, shift)),)


def divided(divisors: Sequence[int], channels: int) -> Function:
    """x divided by one after the other: what is left of an average when its window has been summed."""
    scale = torch.full((channels,), 1 / math.prod(divisors), dtype=torch.float64)
    return Function(lambda x: functools.reduce(torch.div, divisors, x), (scale, torch.zeros_like(scale)))


def composed(functions: Sequence[Function], channels: int) -> tuple[Tensor, Tensor] | None:
    """Scale and shift, float64 per channel, of all functions together; None if one of them is not affine."""
    scale = torch.ones(channels, dtype=torch.float64)
    shift = torch.zeros(channels, dtype=torch.float64)
    for function in functions:
        if function.affine is None:
            return None
        a, b = function.affine
        scale, shift = scale * a, shift * a + b
    return scale, shift


def batch_norm_function(
    module: nn.BatchNorm1d | nn.BatchNorm2d | nn.SyncBatchNorm, call: Callable[[Tensor], Tensor]
) -> Function:
    """A BatchNorm in eval mode, computed by `call`. Torch fuses its product and sum on some processors."""
    assert module.running_mean is not None
    assert module.running_var is not None
    scale = (module.running_var.double() + module.eps).rsqrt()
    scale = scale if module.weight is None else scale * module.weight.double()
    centre = module.running_mean.double() * scale
    shift = -centre if module.bias is None else module.bias.double() - centre
    return Function(call, (scale, shift), terms=centre.abs() + shift.abs())


def is_power_of_two(numbers: Tensor) -> bool:
    """Whether all of them are, positive or negative."""
    return bool((torch.frexp(numbers.abs())[0] == 0.5).all())


def apply(functions: Sequence[Function], x: Tensor) -> Tensor:
    """All functions, one after the other, on (n, channel)."""
    for function in functions:
        x = function.call(x)
    return x


def thresholds(
    quantizer: Callable[[Tensor], Tensor],
    functions: Sequence[Function],
    midpoints: Tensor,  # (K, channel) or (K, 1), float64, of levels: level k is where the quantizer gives >= the k-th
    *,
    low: int | None,
    high: int | None,
    channels: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds (channel, K) and directions of quantizer(functions(s)): level k is reached where direction * s >= t_k.

    s is an integer in low..high; a step that lies outside is put at the nearer end, where it is always or never
    reached. Without low and high s is a float32, and such thresholds are infinite. ValueError where a value is NaN.
    """
    is_float = low is None or high is None
    first, last = (_key(-LARGEST_FLOAT), _key(LARGEST_FLOAT)) if low is None or high is None else (low, high)

    def reached(keys: Tensor) -> Tensor:  # (n, channel) -> the quantizer's value, float64
        return quantizer(apply(functions, _float(keys) if is_float else keys.float())).double()

    start, end = reached(torch.tensor([[first], [last]]).expand(2, channels))
    if bool((start.isnan() | end.isnan()).any()):
        raise ValueError("its values are not numbers (NaN)")
    direction = torch.where(end >= start, 1, -1)

    # The smallest signed = direction * key that reaches each level; one past the end if none does.
    shape = (len(midpoints), channels)
    smallest = torch.where(direction > 0, first, -last).expand(shape).clone()
    largest = torch.where(direction > 0, last + 1, 1 - first).expand(shape).clone()
    ends = smallest.clone(), largest.clone()
    while bool((smallest < largest).any()):
        # Where a search is over, its middle may be one past the end; what it finds there changes nothing.
        middle = torch.minimum((smallest + largest) // 2, ends[1] - 1)
        passed = reached(direction * middle) >= midpoints
        done = smallest >= largest
        largest = torch.where(passed & ~done, middle, largest)
        smallest = torch.where(passed | done, smallest, middle + 1)
    if not is_float:
        return smallest.T.contiguous().numpy(), direction.numpy()
    found = torch.where(smallest == ends[0], -torch.inf, torch.where(smallest == ends[1], torch.inf, _float(smallest)))
    return found.T.contiguous().numpy(), direction.numpy()


def near_ties(
    quantizer: Callable[[Tensor], Tensor],
    functions: Sequence[Function],
    thresholds: np.ndarray,  # (channel, K), as found by `thresholds`
    directions: np.ndarray,
    *,
    low: int,
    high: int,
) -> int:
    """Return the number of channels in which another processor's rounding could send an integer across a threshold.

    Only the integers on both sides of a threshold can be so close to it.
    """
    above = torch.from_numpy(thresholds).T  # (K, channel)
    signs = torch.from_numpy(directions)
    sums = (signs * torch.cat([above, above - 1])).clamp(low, high).float()
    values, error = sums, torch.zeros(sums.shape, dtype=torch.float64)
    for function in functions:
        inputs, values = values, function.call(values)
        if function.affine is None:
            continue
        size = function.affine[0].abs()
        error = error * size
        if function.terms is not None:
            error = error + _ROUNDING * ((size * inputs.abs()).double() + function.terms + 2 * values.abs())
    lower, upper = (quantizer((values.double() + sign * error).float()) for sign in (-1, 1))
    return int((lower != upper).any(0).sum())


def common_unit(values: np.ndarray, limit: int, tolerance: float = 0.0) -> tuple[float, np.ndarray] | None:
    """The largest unit of which all values are integer multiples up to `limit`, and those integers.

    The products must equal the values in float32, or miss them by at most `tolerance` times the largest. None if no
    unit is found.

    >>> common_unit(np.array([-0.5, 0.0, 0.25]), limit=127)
    (0.25, array([-2,  0,  1]))
    """
    values = np.asarray(values, np.float32).astype(np.float64)
    distinct = np.unique(values)
    sizes = np.abs(distinct[distinct != 0])
    if not np.isfinite(distinct).all():
        return None
    if not sizes.size:
        return 1.0, np.zeros(values.shape, np.int64)
    allowed = tolerance * sizes.max()
    slack = np.maximum(allowed, np.spacing(sizes.astype(np.float32)) / 2)
    for divisor in range(1, int(limit * sizes.min() / sizes.max()) + 1):
        integers = np.rint(distinct / (sizes.min() / divisor))
        fit = float(integers @ distinct / (integers @ integers))  # the smallest value alone is rounded
        multiples = np.abs(integers[distinct != 0])
        ends = ((sizes - slack) / multiples).max(), ((sizes + slack) / multiples).min()  # of the units that fit all
        for unit in (fit, float(sum(ends) / 2)):
            if (np.abs((integers * unit).astype(np.float32) - distinct) <= allowed).all():
                return unit, np.rint(values / unit).astype(np.int64)
    return None


def common_ratio(a: Tensor, b: Tensor) -> Fraction | None:
    """p / q if a / b is that in all channels: p and q up to 127, to the precision of float32, or a power of two."""
    if bool((a == 0).any() | (b == 0).any()):
        return None
    ratio = a / b
    if (
        is_power_of_two(ratio[:1])
        and bool((ratio == ratio[0]).all())
        and _LEAST_POWER <= ratio[0].abs() <= 1 / _LEAST_POWER
    ):
        return Fraction(ratio[0].item())
    nearest = Fraction(ratio[0].item()).limit_denominator(127)
    close = (ratio - float(nearest)).abs() <= 2.0**-22 * ratio.abs()
    return nearest if abs(nearest.numerator) <= 127 and bool(close.all()) else None


def _key(x: float) -> int:
    """Floats in their order as integers: key(-x) = -key(x), and neighbours differ by 1."""
    bits = int(np.float32(abs(x)).view(np.int32))
    return bits if x >= 0 else -bits


def _float(keys: Tensor) -> Tensor:
    return keys.abs().to(torch.int32).view(torch.float32) * keys.sign()
