"""What pools and averages become: the largest, or the sum, of each window; a division waits for the thresholds.

A max-pool moves before the functions that rise, and channels that fall are negated first. An average is a sum whose
division is one more function.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from lehr.deploy import fold
from lehr.deploy.conversion import Call
from lehr.deploy.net_builder import Traced
from lehr.deploy.operations import MaxPool, Pair, SumPool, Take, as_shape
from lehr.deploy.trace import pair

_ADAPTIVE_AVERAGES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)


def max_pool(call: Call) -> Traced:
    """The largest of each window."""
    (x,) = call.inputs
    value = call.value(x)
    turning = next((function.path for function in x.functions if function.turn is not None), None)
    if turning is not None:
        raise call.error(
            "falls and rises again",
            f"it takes the largest of what {turning} gives, which falls and rises again",
            "put the lehr.Quantizer before the pool",
        )
    kernel, stride, padding = _window(call, x)
    if value.kind == "float":
        x = call.as_float(x)
    elif x.functions:  # the largest f(s) is f(largest s) only where f rises
        ends = torch.tensor([[value.low], [value.high]]).float().expand(2, value.shape[0])
        start, end = fold.apply(x.functions, ends)
        if bool((end < start).any()):
            x = call.times(x, torch.where(end < start, -1, 1))
    x = _reaching(call, x, kernel, stride, padding)
    name = call.name()
    call.emit(MaxPool(name, x.name, kernel, stride, padding))
    return Traced(name, len(call.shape), x.functions, x.rounded)


def _reaching(call: Call, x: Traced, kernel: Pair, stride: Pair, padding: Pair) -> Traced:
    """What the windows of a size that is rounded up (ceil_mode) read: the last row and column again, inside of them."""
    channels, *sizes = call.value(x).shape
    geometry = zip(as_shape(call.shape[1:])[1:], kernel, stride, padding, sizes, strict=True)
    missing = [(count - 1) * s + k - 2 * p - size for count, k, s, p, size in geometry]
    if max(missing) <= 0:
        return x
    rows, columns = (
        np.minimum(np.arange(size + max(0, more)), size - 1) for size, more in zip(sizes, missing, strict=True)
    )
    name = call.name("edge")
    call.net.emit(Take(name, x.name, np.arange(channels) * sizes[0] * sizes[1], rows * sizes[1], columns))
    return replace(x, name=name)


def average_pool(call: Call) -> Traced:
    """The average of each window."""
    (x,), module = call.inputs, call.module
    value = call.value(x)
    kernel, stride, padding = _window(call, x)
    divisor = math.prod(kernel)
    if isinstance(module, nn.AvgPool1d | nn.AvgPool2d):
        if any(padding) and not module.count_include_pad:
            raise call.error(
                "average without its border", "it divides by fewer pixels at the border", "use count_include_pad=True"
            )
        divisor = (module.divisor_override if isinstance(module, nn.AvgPool2d) else None) or divisor
    affine = fold.composed(x.functions, value.shape[0])
    whole = divisor == math.prod(kernel) and not any(padding)  # else an average of shifts is not the shift
    if value.kind == "float" or affine is None or (bool(affine[1].any()) and not whole):
        x = call.as_float(x)
    name = call.name()
    call.emit(SumPool(name, x.name, kernel, stride, padding))
    several = isinstance(module, _ADAPTIVE_AVERAGES) and kernel != value.shape[1:]
    division = fold.divided(kernel if several else (divisor,), value.shape[0])  # as torch does it
    rounded = x.why_inexact and "averages of values that torch has rounded"
    return Traced(name, len(call.shape), (division, *x.functions), rounded)


def mean(call: Call) -> Traced:
    """An average over all rows and columns."""
    _check_axes(call, "average")
    return average_pool(call)


def largest(call: Call) -> Traced:
    """The largest of all rows and columns."""
    _check_axes(call, "maximum")
    return max_pool(call)


def _check_axes(call: Call, what: str) -> None:
    """FreezeError unless the call runs over all rows and columns, and over nothing else."""
    (x,) = call.inputs
    given = call.argument(1, "dim", "axis")
    axes = () if given is None else (given,) if isinstance(given, int) else tuple(given)
    if sorted(axis % x.rank for axis in axes) != list(range(2, x.rank)):
        raise call.error(
            "average over channels",
            f"it takes the {what} over dimensions {axes}" if axes else f"it takes the {what} over all dimensions",
            f"take it over rows and columns, {tuple(range(2, x.rank)) or 'of which there are none here'}",
        )


def _window(call: Call, x: Traced) -> tuple[Pair, Pair, Pair]:
    """Kernel, stride and padding of a pool; adaptive pools and means must divide their input evenly."""
    module, value = call.module, call.value(x)
    if isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.AvgPool1d | nn.AvgPool2d):
        if isinstance(module, nn.MaxPool1d | nn.MaxPool2d) and pair(module.dilation, 1, 2) != (1, 1):
            raise call.error("dilated pool", f"its dilation is {module.dilation}", "use a dilation of 1")
        space = 1 if isinstance(module, nn.MaxPool1d | nn.AvgPool1d) else 2
        stride = module.stride or module.kernel_size
        return pair(module.kernel_size, 1, space), pair(stride, 1, space), pair(module.padding, 0, space)
    before, after = value.shape[1:], as_shape(call.shape[1:])[1:]
    if call.shape[1] != value.shape[0] or any(a % b for a, b in zip(before, after, strict=True)):
        raise call.error(
            "windows of several sizes",
            f"windows of {before} -> {after} pixels are not all of one size",
            "average over all rows and columns, or choose sizes that divide evenly",
        )
    kernel = before[0] // after[0], before[1] // after[1]
    return kernel, kernel, (0, 0)
