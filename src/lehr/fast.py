"""Compute the numbers of `expectation.py` and `multistep.py` faster; all code that exists only for speed is here.

Each function equals a plain formula elsewhere up to rounding; `tests/test_fast.py` compares them, and
`benchmarks/quantizer.py` and `benchmarks/step.py` measure the gain. It is used for eager tensors on a CPU; inside a
compiled graph, a transform of `torch.func`, or on an accelerator the plain formulas run. Only this file makes that
choice.

    blockwise   apply all operations to one block after another, which stays in the processor's cache
    staircase   a multi-step function: a sum of comparisons, or a table for many levels
    ramps       its expectation under uniform noise, which is piecewise linear; adjacent windows are one ramp
    nearest     under other noises, a sum over the few thresholds that the noise reaches from x
    uniform_slope   under uniform noise whose std cannot be read, as in a compiled graph, a difference of two steps

Many pieces are looked up in a table (`search.py`), so that the cost does not grow with the number of levels.
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

# Floats in a block: 512 KiB, which fits the second-level cache of current cores together with the formula's
# temporaries, and is large enough that the overhead of a call is small.
BLOCK = 2**17
FEW = 8  # up to this many thresholds or windows, one operation for each is faster than a table
_COMPARED = 32  # the same in a compiled graph or on an accelerator
_Window = tuple[float, float, float]  # middle, half-width and rise


def is_compiling() -> bool:
    """Return whether torch.compile is tracing."""
    return torch.compiler.is_compiling()


def is_readable(*values: Any) -> bool:
    """Return whether these tensors can be read without waiting: eager, on a CPU, outside of `torch.func`."""
    return not is_compiling() and all(
        value.device.type == "cpu" and not is_functorch_wrapped_tensor(value)
        for value in values
        if isinstance(value, Tensor)
    )


def number(value: float | Tensor) -> float | Tensor:
    """Return the number in a tensor of one element if it can be read without waiting, else the tensor."""
    if isinstance(value, Tensor) and value.numel() == 1 and is_readable(value):
        return value.item()
    return value


def remember_signature(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Store the signature of an autograd function's `forward`, which torch would inspect at each call."""
    forward.__signature__ = inspect.signature(forward)  # pyright: ignore[reportFunctionMemberAccess]
    return forward


def blockwise(function: Callable[..., Tensor], x: Tensor, *others: Any) -> Tensor:
    """Return the elementwise `function(x, *others)`, in the shape, dtype and layout of `x`.

    Args:
        function: called with the arguments block by block.
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
    """Yield the arguments in blocks, split along the dimension with the largest stride until they are small enough."""
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
    """Return σ(x); NaN stays NaN. Return None where comparing with each threshold is faster or the only way.

    Args:
        x: a floating-point tensor.
        thresholds: of the multi-step function.
        levels: of the multi-step function.
    """
    if not is_readable(x):
        return _searched(x, thresholds, levels) if len(thresholds) > _COMPARED else None
    if len(thresholds) <= FEW and _climbs_exactly(levels, x.dtype):
        y, above = x.clamp(levels[0], levels[0]), torch.empty_like(x)  # the lowest level, and NaN for NaN
        for threshold, (below, level) in zip(thresholds, itertools.pairwise(levels), strict=True):
            # Comparisons that write floats are many times faster than boolean masks.
            y.add_(torch.ge(x, threshold, out=above), alpha=level - below)
        return y
    index = search(thresholds, x.dtype).find(x.reshape(-1))
    return x.clamp(0, 0).add_(table(levels, x.dtype).index_select(0, index).view_as(x))


@functools.lru_cache(maxsize=256)
def _climbs_exactly(levels: tuple[float, ...], dtype: torch.dtype) -> bool:
    """Return whether adding one jump after another to the lowest level gives each level without rounding."""
    level = torch.tensor(levels[0], dtype=dtype)
    for below, above in itertools.pairwise(levels):
        level = level + torch.tensor(above - below, dtype=dtype)
        if level.item() != above:
            return False
    return True


def _searched(x: Tensor, thresholds: tuple[float, ...], levels: tuple[float, ...]) -> Tensor | None:
    """Return σ(x) by binary search, for accelerators and compiled graphs; None in `torch.func`, which cannot map it."""
    if not is_compiling() and is_functorch_wrapped_tensor(x):
        return None
    make = table.__wrapped__ if is_compiling() else table
    places, values = make(thresholds, x.dtype, x.device), make(levels, x.dtype, x.device)
    index = torch.bucketize(x.contiguous(), places, right=True, out_int32=True)
    return torch.where(x.isnan(), x, values[index])


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
        total = None
        for place, wide, rise in self.windows:
            inside, slope = _gate(grad, x, place - wide, place + wide), 0.5 * rise / wide
            total = (inside if slope == 1 else inside.mul_(slope)) if total is None else total.add_(inside, alpha=slope)
        assert total is not None
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
    return torch.ops.aten.hardtanh_backward(grad, x, *_open_interval(low, high, x.dtype))


def uniform_slope(x: Tensor, step: Callable[[Tensor], Tensor], half_width: float | Tensor) -> Tensor:
    """Return Σ_k δq_k f(x - θ_k) for U[-w, w) as (σ(x + w) - σ(x - w)) / 2w: the jumps between x - w and x + w.

    Two searches, however many levels; a compiled graph, which cannot read w, would else have an operation for each.

    Args:
        x: a floating-point tensor.
        step: the multi-step function σ.
        half_width: w, which may be a tensor that broadcasts over x; where it is 0, the slope is 0.
    """
    slope = (step(x + half_width) - step(x - half_width)) / (2 * half_width)
    return torch.where((half_width > 0) & ~x.isnan(), slope, 0.0).to(x.dtype)


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
def _open_interval(low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """Return the open interval (a, b) that contains the same numbers of the dtype as [low, high)."""
    below = torch.tensor(-math.inf, dtype=dtype)
    return torch.tensor(low, dtype=dtype).nextafter(below).item(), torch.tensor(high, dtype=dtype).item()
