"""The expectation of a multi-step function under noise of mean 0 and a known std, in the fastest form there is.

    ramps     under uniform noise it is piecewise linear; adjacent windows are one ramp
    nearest   under other noises, a sum over the few thresholds that the noise reaches from x

Both give an `Expectation`, which has the two lines of Theorem 2, equal to those of `expectation.py` up to rounding.

>>> import torch
>>> ramps((-0.5, 0.5), (-1.0, 0.0, 1.0), half_width=0.5).value(torch.tensor([-3.0, 0.2]))  # Hardtanh
tensor([-1.0000,  0.2000])
"""

from __future__ import annotations

import abc
import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lehr.fast import FEW
from lehr.search import search, table

_Window = tuple[float, float, float]  # middle, half-width and rise


class Expectation(abc.ABC):
    """x -> E[σ(x + ν)] under a noise with mean 0 and a known std: a quick form of Theorem 2."""

    @abc.abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """Return q_0 + Σ_k δq_k F(x - θ_k)."""

    @abc.abstractmethod
    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """Return grad Σ_k δq_k f(x - θ_k)."""


@functools.lru_cache(maxsize=1024)
def ramps(thresholds: tuple[float, ...], levels: tuple[float, ...], half_width: float) -> Expectation:
    """Return the fastest form of the multi-step function under U[-half_width, half_width), which is piecewise linear.

    Args:
        thresholds: of the multi-step function.
        levels: of the multi-step function.
        half_width: of the noise.
    """
    windows = _merged(thresholds, levels, half_width)
    (place, wide, rise), *more = windows
    if more or place != 0 or rise != 2 * wide or levels[0] != -levels[-1]:
        middle = 0.5 * (levels[0] + levels[-1])
        return FewRamps(windows, middle) if len(windows) <= FEW else ManyRamps(windows, thresholds, levels)
    return Hardtanh(wide)


class Hardtanh(Expectation):
    """The ternary function under the paper's noise: Hardtanh, one operation forward and one backward."""

    def __init__(self, reach: float) -> None:
        self.reach = reach

    def value(self, x: Tensor) -> Tensor:
        """Return x, clamped."""
        return x.clamp(-self.reach, self.reach)

    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """Return grad within the reach, 0 elsewhere."""
        return _gate(grad, x, -self.reach, self.reach)


class FewRamps(Expectation):
    """One clamp for each window."""

    def __init__(self, windows: Sequence[_Window], middle: float) -> None:
        self.windows = windows
        self.middle = middle  # of the levels; ramps about 0 are added to it

    def value(self, x: Tensor) -> Tensor:
        """Return the middle plus a clamped line for each window."""
        total = None
        for place, wide, rise in self.windows:
            slope, top = 0.5 * rise / wide, 0.5 * rise
            u = x - place if place else x * slope
            ramp = (u if slope == 1 or not place else u.mul_(slope)).clamp_(-top, top)
            total = ramp if total is None else total.add_(ramp)
        assert total is not None
        return total.add_(self.middle) if self.middle else total

    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """Return the sum of a Hardtanh's gradient for each window."""
        slopes = [0.5 * rise / wide for _, wide, rise in self.windows]
        inside = (_gate(grad, x, place - wide, place + wide) for place, wide, _ in self.windows)
        if slopes == [0.5, 0.5]:  # as with STE of half-width 1: the mean of both takes one operation
            return next(inside).lerp_(next(inside), 0.5)
        total = next(inside) if slopes[0] == 1 else next(inside).mul_(slopes[0])
        for gate, slope in zip(inside, slopes[1:], strict=True):
            total.add_(gate, alpha=slope)
        return total


class ManyRamps(Expectation):
    """A table of the places where the slope changes, with the value and the slope of the piece that begins there."""

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
        """Return the value at the start of each x's piece plus slope times distance."""
        grid, flat = search(self.places[1:], x.dtype), x.reshape(-1)
        index = grid.find(flat)
        # Clamped, since 0 * infinity on the flat outer pieces would be NaN.
        along, buffer = flat.clamp(grid.low, grid.high), torch.empty_like(flat)
        along.sub_(torch.index_select(table(self.places, x.dtype), 0, index, out=buffer))
        along.mul_(torch.index_select(table(self.slopes, x.dtype), 0, index, out=buffer))
        return along.add_(torch.index_select(table(self.values, x.dtype), 0, index, out=buffer)).view_as(x)

    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """Return grad times the slope of the piece."""
        index = search(self.places[1:], x.dtype).find(x.reshape(-1))
        return table(self.slopes, x.dtype).index_select(0, index).view_as(x).mul_(grad)


def _gate(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Return grad on [low, high), 0 elsewhere, by the one operation of Hardtanh's gradient."""
    return torch.ops.aten.hardtanh_backward(grad, x, *open_interval(low, high, x.dtype))


def nearest(thresholds: tuple[float, ...], levels: tuple[float, ...], noise: Any, dtype: torch.dtype) -> Nearest | None:
    """Return the multi-step function under another noise than uniform; None if skipping thresholds saves nothing.

    Args:
        thresholds: of the multi-step function.
        levels: of the multi-step function.
        noise: a `lehr.noise.Noise` with mean 0.
        dtype: to compute in.
    """
    if len(thresholds) <= FEW:
        return None
    quick = Nearest(thresholds, levels, noise, dtype)
    return quick if 4 * quick.most <= len(thresholds) else None


class Nearest(Expectation):
    """Sums over only those thresholds that the noise reaches from x.

    Thresholds farther below x are certainly passed, those farther above certainly not. The arguments are those of
    `nearest`.
    """

    def __init__(
        self, thresholds: tuple[float, ...], levels: tuple[float, ...], noise: Any, dtype: torch.dtype
    ) -> None:
        self.thresholds, self.levels, self.noise = thresholds, levels, noise
        self.reach = noise.std * _reach(type(noise), dtype)
        self.most = _most_within(thresholds, 2 * self.reach)  # the largest number of thresholds within reach of an x

    def value(self, x: Tensor) -> Tensor:
        """Return the level below the thresholds within reach plus δq_k F(x - θ_k) for each of them."""
        passed = self._passed(x)
        total = table(self.levels, x.dtype).index_select(0, passed).view_as(x)
        for threshold, jump in self._within_reach(x, passed):
            total = total + jump * self.noise.cdf(x - threshold)
        return total

    def gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """Return grad times the sum of δq_k f(x - θ_k) over the thresholds within reach."""
        total = torch.zeros_like(x)
        for threshold, jump in self._within_reach(x, self._passed(x)):
            total = total + jump * self.noise.pdf(x - threshold)
        return total * grad

    def _passed(self, x: Tensor) -> Tensor:
        """Return how many thresholds are farther below each x than the noise reaches."""
        return search(tuple(threshold + self.reach for threshold in self.thresholds), x.dtype).find(x.reshape(-1))

    def _within_reach(self, x: Tensor, passed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for each x, the next threshold and its jump, then the one after it."""
        far = max(map(abs, self.thresholds)) * 2 + 1e30  # a threshold that nothing reaches
        thresholds = table((*self.thresholds, *[far] * self.most), x.dtype)
        jumps = (above - below for below, above in itertools.pairwise(self.levels))
        heights = table((*jumps, *[0.0] * self.most), x.dtype)
        for later in range(self.most):
            index = passed + later
            yield thresholds.index_select(0, index).view_as(x), heights.index_select(0, index).view_as(x)


@functools.lru_cache(maxsize=64)
def _reach(kind: Any, dtype: torch.dtype) -> float:
    """Return the number of standard deviations beyond which cdf and pdf of a noise are negligible in the dtype."""
    at = torch.linspace(0, 128, 1025, dtype=torch.float64)
    noise = kind.trusted(1.0, 0.0)
    gone = torch.maximum(noise.cdf(-at), noise.pdf(at)) < 0.01 * torch.finfo(dtype).eps
    return float(at[gone][0]) if gone.any() else float("inf")


def _merged(thresholds: tuple[float, ...], levels: tuple[float, ...], half_width: float) -> Sequence[_Window]:
    """Return the windows in which the expectation under uniform noise rises.

    Adjacent windows with equal jumps become one wider window: fewer operations, and no seam where a point could count
    twice. 8 bits under noise of half a step are a single ramp.
    """
    merged: list[_Window] = []
    last = None
    for threshold, (below, above) in zip(thresholds, itertools.pairwise(levels), strict=True):
        jump = above - below
        # Equal up to the precision of a std in float32.
        if last and math.isclose(threshold - last[0], 2 * half_width, rel_tol=1e-6) and math.isclose(jump, last[1]):
            place, wide, rise = merged.pop()
            merged.append((place + half_width, wide + half_width, rise + jump))
        else:
            merged.append((threshold, half_width, jump))
        last = threshold, jump
    return merged


@functools.lru_cache(maxsize=256)
def _most_within(thresholds: tuple[float, ...], length: float) -> int:
    """Return the largest number of thresholds in an interval of this length."""
    first = most = 0
    for count, threshold in enumerate(thresholds, 1):
        while threshold - thresholds[first] > length:
            first += 1
        most = max(most, count - first)
    return most


@functools.lru_cache(maxsize=256)
def open_interval(low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """Return the open interval (a, b) that contains the same numbers of the dtype as [low, high)."""
    below = torch.tensor(-math.inf, dtype=dtype)
    return torch.tensor(low, dtype=dtype).nextafter(below).item(), torch.tensor(high, dtype=dtype).item()
