"""Compute the numbers of `expectation.py` and `multistep.py` faster; code that exists only for speed begins here.

Each function equals a plain formula elsewhere up to rounding; `tests/test_fast.py` compares them, and
`benchmarks/quantizer.py` and `benchmarks/step.py` measure the gain. Most of it is for eager tensors on a CPU
(`is_readable`); searched staircases and `uniform_slope` serve compiled graphs and accelerators. `quick_form` in
expectation.py chooses between these and the plain formulas.

    blockwise       apply all operations to one block after another, which stays in the processor's cache
    staircase       a multi-step function: comparisons; many levels by a table, or even ones in a graph by a division
    uniform_slope   its slope under uniform noise whose std cannot be read, as in a compiled graph: two steps
    fast_forms.py   its expectation under noise of a known std: ramps, or the few thresholds that the noise reaches
    fast_linear.py  linear layers with so many weights that reading them takes the time, a few rows after another

Many pieces are looked up in a table (`search.py`), so that the cost does not grow with the number of levels.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
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
        if len(thresholds) <= _COMPARED:
            return None
        exact = x.dtype in (torch.float32, torch.float64) and _is_even(thresholds) and _is_even(levels)
        return (_even_staircase if exact else _searched)(x, thresholds, levels)
    if len(thresholds) <= FEW and _climbs_exactly(levels, x.dtype):
        y, above = x.clamp(levels[0], levels[0]), torch.empty_like(x)  # the lowest level, and NaN for NaN
        for threshold, (below, level) in zip(thresholds, itertools.pairwise(levels), strict=True):
            # Comparisons that write floats are many times faster than boolean masks.
            y.add_(torch.ge(x, threshold, out=above), alpha=level - below)
        return y
    index = search(thresholds, x.dtype).find(x.reshape(-1))
    return x.clamp(0, 0).add_(table(levels, x.dtype).index_select(0, index).view_as(x))


def _even_staircase(x: Tensor, thresholds: tuple[float, ...], levels: tuple[float, ...]) -> Tensor:
    """Return σ(x) of even thresholds and levels by a division, whose rounding two comparisons correct."""
    first, gap = thresholds[0], thresholds[1] - thresholds[0]
    code = ((x - first) / gap).floor().add(1).clamp(0, len(thresholds))
    above, below = x >= first + code * gap, x < first + (code - 1) * gap
    code = (code + above.to(x.dtype) - below.to(x.dtype)).clamp(0, len(thresholds))
    return levels[0] + code * (levels[1] - levels[0])


def _is_even(numbers: tuple[float, ...]) -> bool:
    """Return whether float32 computes number k as numbers[0] + k * gap without rounding."""
    first, gap = numbers[0], numbers[1] - numbers[0]
    even = (first + k * gap for k in range(-1, len(numbers) + 1))
    return all(_fits(k * gap) for k in range(-1, len(numbers) + 1)) and all(
        _fits(number) and (k in (0, len(numbers) + 1) or number == numbers[k - 1]) for k, number in enumerate(even)
    )


def _fits(number: float) -> bool:
    """Return whether float32 has the number: 24 bits are enough for it."""
    return (math.frexp(number)[0] * 2**24).is_integer() and (number == 0 or 2.0**-126 <= abs(number) < 2.0**127)


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
