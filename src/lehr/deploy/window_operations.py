"""Operations that sum or compare values of several places: layers with weights, and pools."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lehr.deploy.abstract import Unary
from lehr.deploy.constants import Pair, checked_pair, finite
from lehr.deploy.values import Shape, Value, Weights, within_int32


@dataclass(frozen=True, eq=False)
class Conv(Unary):
    """Convolution, zero padded, without bias. Quantized weights, or a float32 array."""

    weight: Weights | np.ndarray  # (out, in / groups, rows, columns)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _weight(self.name, self.weight, 4))
        for what, low in (("stride", 1), ("padding", 0), ("dilation", 1)):
            object.__setattr__(self, what, checked_pair(self.name, what, getattr(self, what), low))
        if self.groups < 1 or self.shape[0] % self.groups:
            raise ValueError(f"{self.name}: {self.shape[0]} output channels cannot be cut into {self.groups} groups")

    @property
    @override
    def weights(self) -> Weights | np.ndarray:
        return self.weight

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the weights: (out, in / groups, rows, columns)."""
        out, channels, rows, columns = _weight_shape(self.weight)
        return out, channels, rows, columns

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        out, channels, rows, columns = self.shape
        if x.shape[0] != channels * self.groups:
            raise ValueError(
                f"{self.name}: weights for {channels * self.groups} channels, {self.source} has {x.shape[0]}"
            )
        space = _window(self.name, x, (rows, columns), self.stride, self.padding, self.dilation)
        return _sum_value(self.name, x, (out, *space), self.weight)

    def gathered(self, source: Value, result: Value) -> int:
        """The most numbers a backend lays out for one image: source for every weight, or the padded source."""
        (_, _, kernel_rows, kernel_columns), (channels, *sizes) = self.shape, source.shape
        rows, columns = (size + 2 * padding for size, padding in zip(sizes, self.padding, strict=True))
        out_rows, out_columns = result.shape[1:]
        at_columns = max(columns, kernel_columns * out_columns)
        return channels * max(rows, kernel_rows * out_rows) * at_columns


@dataclass(frozen=True, eq=False)
class Linear(Unary):
    """Matrix product with a flat value, without bias. Quantized weights, or a float32 array."""

    weight: Weights | np.ndarray  # (out, in)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _weight(self.name, self.weight, 2))

    @property
    @override
    def weights(self) -> Weights | np.ndarray:
        return self.weight

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        out, features = _weight_shape(self.weight)
        if x.shape != (features, 1, 1):
            raise ValueError(
                f"{self.name}: the weights take a flat value of {features}, {self.source} has shape {x.shape}"
            )
        return _sum_value(self.name, x, (out, 1, 1), self.weight)


@dataclass(frozen=True, eq=False)
class _Pool(Unary):
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    def __post_init__(self) -> None:
        for what, low in (("kernel", 1), ("stride", 1), ("padding", 0)):
            object.__setattr__(self, what, checked_pair(self.name, what, getattr(self, what), low))
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise ValueError(f"{self.name}: padding is at most half the kernel, got {self.padding} for {self.kernel}")

    def _space(self, x: Value) -> Shape:
        return x.shape[0], *_window(self.name, x, self.kernel, self.stride, self.padding)


@dataclass(frozen=True, eq=False)
class MaxPool(_Pool):
    """Largest value of each window; padding never wins."""

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        return dataclasses.replace(x, shape=self._space(x))


@dataclass(frozen=True, eq=False)
class SumPool(_Pool):
    """Sum of each window, padding being zero: an average whose division is left to what follows."""

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        if x.kind == "float":
            return Value(self._space(x), "float")
        count = math.prod(map(min, self.kernel, x.shape[1:]))  # what of a window lies inside
        value = Value(self._space(x), "integer", count * min(0, x.low), count * max(0, x.high))
        return within_int32(self.name, value)


def _sum_value(name: str, x: Value, shape: Shape, weight: Weights | np.ndarray) -> Value:
    """The range of sums of `x` with these weights: of all partial sums, in any order, padded or not."""
    if x.kind == "float" or not isinstance(weight, Weights) or not weight.is_integer:
        return Value(shape, "float")
    levels = np.array(weight.levels, np.int64)
    smallest = np.minimum(0, np.minimum(levels * x.low, levels * x.high))
    largest = np.maximum(0, np.maximum(levels * x.low, levels * x.high))
    rows = weight.codes.reshape(len(weight.codes), -1)
    together = max(1, 2**20 // rows.shape[1])  # rows: not all at once, for their sums take eight times the memory
    parts = [rows[at : at + together] for at in range(0, len(rows), together)]
    low = min(int(smallest[part].sum(1).min()) for part in parts)
    high = max(int(largest[part].sum(1).max()) for part in parts)
    return within_int32(name, Value(shape, "integer", low, high))


def _window(name: str, x: Value, kernel: Sequence[int], stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> Pair:
    space = []
    for size, k, s, p, d in zip(x.shape[1:], kernel, stride, padding, dilation, strict=True):
        free = size + 2 * p - (d * (k - 1) + 1)
        if free < 0:
            raise ValueError(f"{name}: a window of {d * (k - 1) + 1} does not fit {size} pixels padded by {p}")
        space.append(free // s + 1)
    return space[0], space[1]


def _weight(name: str, weight: Weights | np.ndarray, ndim: int) -> Weights | np.ndarray:
    if not isinstance(weight, Weights):
        weight = np.asarray(weight)
        if not np.issubdtype(weight.dtype, np.floating):
            raise TypeError(f"{name}: quantized weights are Weights, others a float array, got {weight.dtype}")
        weight = finite(name, "weights", weight)
    shape = _weight_shape(weight)
    if len(shape) != ndim or 0 in shape:
        raise ValueError(f"{name}: weights have {ndim} dimensions, none empty, got shape {shape}")
    return weight


def _weight_shape(weight: Weights | np.ndarray) -> tuple[int, ...]:
    return weight.codes.shape if isinstance(weight, Weights) else weight.shape
