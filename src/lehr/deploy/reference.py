"""What each operation computes: the reference that every backend must equal, integer for integer.

`result` is one function with an implementation for each operation, written to be read. Values are (image, channel, row,
column): int64 for integers, which no sum leaves, and float32 for floats.

>>> import numpy as np
>>> from lehr.deploy.operations import Weights
>>> result(Linear("sums", "flat", Weights.of([[1, -1], [0, 1]])), torch.tensor([5, 2]).reshape(1, 2, 1, 1)).flatten()
tensor([3, 2])
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lehr.deploy.operations import (
    Add,
    Affine,
    Clip,
    Concat,
    Conv,
    Flatten,
    Floats,
    Linear,
    MaxPool,
    Multiply,
    Operation,
    Pair,
    Requantize,
    Round,
    SumPool,
    Table,
    Take,
    Threshold,
    Weights,
)


@singledispatch
def result(operation: Operation, *inputs: Tensor) -> Tensor:
    """The result of one operation for a batch.

    Args:
        operation: What to compute.
        inputs: The values of its sources; for a `Table` or `Floats`, the network's input.
    """
    raise TypeError(f"{operation.name}: the reference run has no {type(operation).__name__}")


@result.register
def _(operation: Table, pixels: Tensor) -> Tensor:
    entries = torch.from_numpy(operation.table.copy())
    first = torch.iinfo(pixels.dtype).min
    found = entries[torch.arange(len(entries))[:, None, None], pixels.long() - first]
    return found if found.is_floating_point() else found.long()


@result.register
def _(operation: Floats, x: Tensor) -> Tensor:
    return x


@result.register
def _(operation: Round, x: Tensor) -> Tensor:
    nearest = ((x - _per_channel(operation.mean)) * _per_channel(operation.factor) + 0.5).floor()
    return nearest.nan_to_num(nan=-operation.limit).clamp(-operation.limit, operation.limit).long()


@result.register
def _(operation: Conv, x: Tensor) -> Tensor:
    return _conv(x, operation.weight, operation.stride, operation.padding, operation.dilation, operation.groups)


@result.register
def _(operation: Linear, x: Tensor) -> Tensor:
    return _conv(x, operation.weight)


@result.register
def _(operation: MaxPool, x: Tensor) -> Tensor:
    return F.max_pool2d(x.double(), operation.kernel, operation.stride, operation.padding).to(x.dtype)


@result.register
def _(operation: SumPool, x: Tensor) -> Tensor:
    window = operation.kernel, operation.stride, operation.padding
    return F.avg_pool2d(x.double(), *window, divisor_override=1).to(x.dtype)


@result.register
def _(operation: Threshold, s: Tensor) -> Tensor:
    thresholds = torch.from_numpy(operation.thresholds.astype(np.float32 if s.is_floating_point() else np.int64))
    signed = s * _per_channel(operation.directions).to(s.dtype)
    columns = signed.transpose(0, 1).reshape(len(thresholds), -1).contiguous()
    codes = torch.searchsorted(thresholds, columns, right=True)  # counts t_k <= direction * s
    codes = codes.masked_fill(columns.isnan(), 0)  # NaN reaches no threshold; searchsorted puts it after all of them
    values = torch.tensor(operation.levels)[codes]
    return values.reshape(s.shape[1], s.shape[0], *s.shape[2:]).transpose(0, 1)


@result.register
def _(operation: Requantize, s: Tensor) -> Tensor:
    return torch.from_numpy(operation.of(s.movedim(1, -1).numpy())).movedim(-1, 1)


@result.register
def _(operation: Add, a: Tensor, b: Tensor) -> Tensor:
    return operation.first_factor * a + operation.second_factor * b


@result.register
def _(operation: Multiply, a: Tensor, b: Tensor) -> Tensor:
    return a * b


@result.register
def _(operation: Flatten, x: Tensor) -> Tensor:
    return x.flatten(1)[:, :, None, None]


@result.register
def _(operation: Concat, *parts: Tensor) -> Tensor:
    return torch.cat(parts, 1)


@result.register
def _(operation: Take, x: Tensor) -> Tensor:
    places = torch.from_numpy(operation.places())
    fill = operation.fill if x.is_floating_point() else int(operation.fill)
    return x.flatten(1)[:, places.clamp(min=0)].masked_fill(places < 0, fill)


@result.register
def _(operation: Affine, x: Tensor) -> Tensor:
    return x.float() * _per_channel(operation.scale) + _per_channel(operation.shift)


@result.register
def _(operation: Clip, x: Tensor) -> Tensor:
    return x.clamp(operation.low, operation.high)


def _conv(
    x: Tensor,
    weight: Weights | np.ndarray,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Convolve in float64, where integer sums are exact in any order: they stay far below 2**53.

    Sums with floats are rounded to float32 once, at the end, as integers are before; every backend accumulates them in
    float64.
    """
    values = weight.values if isinstance(weight, Weights) else weight
    integer = values.dtype == np.int8 and not x.is_floating_point()
    kernel = torch.from_numpy(values.astype(np.float64))
    kernel = kernel.reshape(*kernel.shape, *(1,) * (4 - kernel.ndim))
    sums = F.conv2d((x if integer else x.float()).double(), kernel, None, stride, padding, dilation, groups)
    return sums.long() if integer else sums.float()


def _per_channel(array: np.ndarray) -> Tensor:
    return torch.tensor(array)[:, None, None]
