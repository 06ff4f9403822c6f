"""The same numbers as `expectation.py` and `multistep.py`, quickly: everything that is only there for speed.

Each function here gives what a plain formula elsewhere gives, up to rounding, and `tests/test_fast.py` holds it to
that; `benchmarks/quantizer.py` and `benchmarks/step.py` show what it gains. All of it is for tensors on a CPU that are
computed eagerly: inside a compiled graph, a transform of `torch.func`, or on an accelerator the plain formulas run.
This is the only file that asks which of the two it is.

    blockwise   ten operations on one block after another, which stays in the processor's cache
    staircase   a multi-step function: comparisons added up; of many levels, a table
    ramps       its expectation under uniform noise, which is piecewise linear: windows that touch are one ramp
    nearest     under other noises, only the few thresholds that the noise reaches from x

Many pieces are looked up in a table (`search.py`): the cost does not grow with the number of levels.
"""

from __future__ import annotations

import abc
import bisect
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore[reportMissingModuleSource]

from lehr.search import search, table

# Floats in a block: 512 KiB, which with the formula's temporaries fits the second-level cache of today's cores and is
# long enough that the call of an operation costs little beside its work.
BLOCK = 2**17
FEW = 8  # up to so many thresholds or windows, one operation for each is faster than a table
_COMPARED = 32  # in a compiled graph or on an accelerator, up to so many
_Window = tuple[float, float, float]  # its middle, half-width and rise


def is_compiling() -> bool:
    """Whether torch.compile is making a graph of what runs."""
    return torch.compiler.is_compiling()


def is_readable(*values: Any) -> bool:
    """Whether the values of these tensors can be read without waiting: eager, on a CPU, outside of `torch.func`."""
    return not is_compiling() and all(
        value.device.type == "cpu" and not is_functorch_wrapped_tensor(value)
        for value in values
        if isinstance(value, Tensor)
    )


def number(value: float | Tensor) -> float | Tensor:
    """The number in a tensor of one element, where it can be read without waiting; else the tensor."""
    if isinstance(value, Tensor) and value.numel() == 1 and is_readable(value):
        return value.item()
    return value


def remember_signature(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Inspect the signature of an autograd function's `forward` once; torch would inspect it at each call."""
    forward.__signature__ = inspect.signature(forward)  # pyright: ignore[reportFunctionMemberAccess]
    return forward


def blockwise(function: Callable[..., Tensor], x: Tensor, *others: Any) -> Tensor:
    """Value of the elementwise `function(x, *others)`, in the shape, dtype and layout of `x`.

    Args:
        function: called with one block of each after another.
        x: the largest tensor.
        others: numbers, or tensors that broadcast over `x`.
    """
    if not is_readable(x, *others) or x.numel() <= BLOCK:
        return function(x, *others).to(x.dtype)
    result = torch.empty_like(x)
    aligned = [
        other.reshape((1,) * (x.ndim - other.ndim) + other.shape) if isinstance(other, Tensor) else other
        for other in others
    ]
    for out, *arguments in _blocks(result, x, *aligned):
        out.copy_(function(*arguments))
    return result


def _blocks(largest: Tensor, *others: Any) -> Iterator[tuple[Any, ...]]:
    """Cut along the dimension that lies farthest apart in memory until a block is small enough."""
    if largest.numel() <= BLOCK:
        yield largest, *others
        return
    dim = max(range(largest.ndim), key=lambda dim: (largest.size(dim) > 1, largest.stride(dim)))
    size = max(1, BLOCK * largest.size(dim) // largest.numel())
    parts = [
        other.split(size, dim) if isinstance(other, Tensor) and other.size(dim) > 1 else itertools.repeat(other)
        for other in others
    ]
    for block in zip(largest.split(size, dim), *parts):  # noqa: B905 - a repeated argument has no end
        yield from _blocks(*block)


def staircase(x: Tensor, thresholds: tuple[float, ...], levels: tuple[float, ...]) -> Tensor | None:
    """The level of each x, a threshold belonging to the level above it; NaN stays NaN. None: compare with each."""
    if not is_readable(x):
        return _searched(x, thresholds, levels) if len(thresholds) > _COMPARED else None
    y = x.clamp(0, 0)  # 0 that carries NaN on
    if len(thresholds) > FEW:
        index = search(thresholds, x.dtype).find(x.reshape(-1))
        return y.add_(table(levels, x.dtype).index_select(0, index).view_as(x))
    # Each x is at exactly one level, so the sum of level * [x is there] is exact for any levels. Comparisons that
    # write floats are many times faster than masks of bools.
    there, spare = torch.ones_like(x), torch.empty_like(x)
    for threshold, level in zip(thresholds, levels, strict=False):
        above = torch.ge(x, threshold, out=spare)
        there.sub_(above)
        y = y.add_(there, alpha=level) if level else y
        there, spare = above, there
    return y.add_(there, alpha=levels[-1])


def _searched(x: Tensor, thresholds: tuple[float, ...], levels: tuple[float, ...]) -> Tensor | None:
    """By binary search, on accelerators and in compiled graphs; `torch.func` cannot map it."""
    if not is_compiling() and is_functorch_wrapped_tensor(x):
        return None
    make = table.__wrapped__ if is_compiling() else table
    places, values = make(thresholds, x.dtype, x.device), make(levels, x.dtype, x.device)
    index = torch.bucketize(x.contiguous(), places, right=True, out_int32=True)
    return torch.where(x.isnan(), x, values[index])


class Expectation(abc.ABC):
    """x -> E[σ(x + ν)] under a noise with mean 0 and a known std: Theorem 2 in a quick form."""

    @abc.abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """q_0 + Σ_k δq_k F(x - θ_k)."""

    @abc.abstractmethod
    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """grad Σ_k δq_k f(x - θ_k)."""


@functools.lru_cache(maxsize=1024)
def ramps(thresholds: tuple[float, ...], levels: tuple[float, ...], half_width: float) -> Expectation:
    """The multi-step function under U[-half_width, half_width): piecewise linear, in the form that is the fastest."""
    windows = _merged(thresholds, levels, half_width)
    (place, wide, rise), *more = windows
    if more or place != 0 or rise != 2 * wide or levels[0] != -levels[-1]:
        middle = 0.5 * (levels[0] + levels[-1])
        return FewRamps(windows, middle) if len(windows) <= FEW else ManyRamps(windows, thresholds, levels)
    return Hardtanh(wide)


class Hardtanh(Expectation):
    """The paper's noise makes the ternary function Hardtanh: one operation each way."""

    def __init__(self, reach: float) -> None:
        self.reach = reach

    def value(self, x: Tensor) -> Tensor:
        """x, clamped."""
        return x.clamp(-self.reach, self.reach)

    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """grad within the reach."""
        return _gate(grad, x, -self.reach, self.reach)


class FewRamps(Expectation):
    """One clamp for each window."""

    def __init__(self, windows: Sequence[_Window], middle: float) -> None:
        self.windows = windows
        self.middle = middle  # of the levels: ramps about 0 are added to it

    def value(self, x: Tensor) -> Tensor:
        """The middle and a clamped line for each window."""
        total = None
        for place, wide, rise in self.windows:
            slope, top = 0.5 * rise / wide, 0.5 * rise
            u = x - place if place else x * slope
            ramp = (u if slope == 1 or not place else u.mul_(slope)).clamp_(-top, top)
            total = ramp if total is None else total.add_(ramp)
        assert total is not None
        return total.add_(self.middle) if self.middle else total

    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """The gradient of a Hardtanh for each window."""
        total = None
        for place, wide, rise in self.windows:
            inside, slope = _gate(grad, x, place - wide, place + wide), 0.5 * rise / wide
            total = (inside if slope == 1 else inside.mul_(slope)) if total is None else total.add_(inside, alpha=slope)
        assert total is not None
        return total


class ManyRamps(Expectation):
    """A table of the places where the slope changes, with value and slope from there on."""

    def __init__(self, windows: Sequence[_Window], thresholds: tuple[float, ...], levels: tuple[float, ...]) -> None:
        ends = sorted(
            end
            for place, wide, rise in windows
            for end in ((place - wide, 1, rise / (2 * wide)), (place + wide, -1, -rise / (2 * wide)))
        )
        opened, slope, value, last = 0, 0.0, levels[0], ends[0][0]
        pieces = [(last, value, slope)]
        for place, opens, change in ends:
            value += slope * (place - last)
            opened, slope, last = opened + opens, slope + change, place
            if not opened:  # between windows it is flat, and exactly a level
                slope, value = 0.0, levels[bisect.bisect_right(thresholds, place)]
            pieces.append((place, value, slope))
        self.places, self.values, self.slopes = zip(*pieces, strict=True)

    def value(self, x: Tensor) -> Tensor:
        """Value and slope of the piece."""
        grid, flat = search(self.places[1:], x.dtype), x.reshape(-1)
        index = grid.find(flat)
        # Infinity would be 0 * infinity on the outer pieces, which are flat.
        along, buffer = flat.clamp(grid.low, grid.high), torch.empty_like(flat)
        along.sub_(torch.index_select(table(self.places, x.dtype), 0, index, out=buffer))
        along.mul_(torch.index_select(table(self.slopes, x.dtype), 0, index, out=buffer))
        return along.add_(torch.index_select(table(self.values, x.dtype), 0, index, out=buffer)).view_as(x)

    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """The slope of the piece."""
        index = search(self.places[1:], x.dtype).find(x.reshape(-1))
        return table(self.slopes, x.dtype).index_select(0, index).view_as(x).mul_(grad)


def _gate(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """grad on [low, high), 0 elsewhere: what Hardtanh does to a gradient, in its one operation."""
    return torch.ops.aten.hardtanh_backward(grad, x, *_open_interval(low, high, x.dtype))


def nearest(thresholds: tuple[float, ...], levels: tuple[float, ...], noise: Any, dtype: torch.dtype) -> Nearest | None:
    """The multi-step function under another noise; None if leaving thresholds out saves nothing."""
    if len(thresholds) <= FEW:
        return None
    quick = Nearest(thresholds, levels, noise, dtype)
    return quick if 4 * quick.most <= len(thresholds) else None


class Nearest(Expectation):
    """The sums over those thresholds alone that the noise reaches from x.

    Thresholds farther below are passed for sure, those farther above are not reached. `noise` is a `lehr.noise.Noise`.
    """

    def __init__(
        self, thresholds: tuple[float, ...], levels: tuple[float, ...], noise: Any, dtype: torch.dtype
    ) -> None:
        self.thresholds, self.levels, self.noise = thresholds, levels, noise
        self.reach = noise.std * _reach(type(noise), dtype)
        self.most = _most_within(thresholds, 2 * self.reach)  # thresholds that one x reaches

    def value(self, x: Tensor) -> Tensor:
        """The level below the thresholds within reach, and δq_k F(x - θ_k) for each of them."""
        passed = self._passed(x)
        total = table(self.levels, x.dtype).index_select(0, passed).view_as(x)
        for threshold, jump in self._within_reach(x, passed):
            total = total + jump * self.noise.cdf(x - threshold)
        return total

    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """grad times the sum of δq_k f(x - θ_k) over the thresholds within reach."""
        total = torch.zeros_like(x)
        for threshold, jump in self._within_reach(x, self._passed(x)):
            total = total + jump * self.noise.pdf(x - threshold)
        return total * grad

    def _passed(self, x: Tensor) -> Tensor:
        """How many thresholds are farther below each x than the noise reaches."""
        return search(tuple(threshold + self.reach for threshold in self.thresholds), x.dtype).find(x.reshape(-1))

    def _within_reach(self, x: Tensor, passed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each x the next threshold and its jump, then the one after it."""
        far = max(map(abs, self.thresholds)) * 2 + 1e30  # a threshold that nothing reaches
        thresholds = table((*self.thresholds, *[far] * self.most), x.dtype)
        jumps = (above - below for below, above in itertools.pairwise(self.levels))
        heights = table((*jumps, *[0.0] * self.most), x.dtype)
        for later in range(self.most):
            index = passed + later
            yield thresholds.index_select(0, index).view_as(x), heights.index_select(0, index).view_as(x)


@functools.lru_cache(maxsize=64)
def _reach(kind: Any, dtype: torch.dtype) -> float:
    """The number of standard deviations from which on cdf and pdf of a noise vanish beside 1 in the dtype."""
    at = torch.linspace(0, 128, 1025, dtype=torch.float64)
    noise = kind.trusted(1.0, 0.0)
    gone = torch.maximum(noise.cdf(-at), noise.pdf(at)) < 0.01 * torch.finfo(dtype).eps
    return float(at[gone][0]) if gone.any() else float("inf")


def _merged(thresholds: tuple[float, ...], levels: tuple[float, ...], half_width: float) -> Sequence[_Window]:
    """Where the expectation under uniform noise rises.

    Windows that touch, with equal jumps, are one wider window: fewer operations, and no seam at which a point could
    count twice. 8 bits under the noise of half a step are a single ramp.
    """
    merged: list[_Window] = []
    last = None
    for threshold, (below, above) in zip(thresholds, itertools.pairwise(levels), strict=True):
        jump = above - below
        # Up to the precision of a std in float32.
        if last and math.isclose(threshold - last[0], 2 * half_width, rel_tol=1e-6) and math.isclose(jump, last[1]):
            place, wide, rise = merged.pop()
            merged.append((place + half_width, wide + half_width, rise + jump))
        else:
            merged.append((threshold, half_width, jump))
        last = threshold, jump
    return merged


@functools.lru_cache(maxsize=256)
def _most_within(thresholds: tuple[float, ...], length: float) -> int:
    """How many thresholds an interval of this length holds at most."""
    first = most = 0
    for count, threshold in enumerate(thresholds, 1):
        while threshold - thresholds[first] > length:
            first += 1
        most = max(most, count - first)
    return most


@functools.lru_cache(maxsize=256)
def _open_interval(low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """The open interval (a, b) that holds the same numbers of the dtype as [low, high)."""
    below = torch.tensor(-math.inf, dtype=dtype)
    return torch.tensor(low, dtype=dtype).nextafter(below).item(), torch.tensor(high, dtype=dtype).item()
