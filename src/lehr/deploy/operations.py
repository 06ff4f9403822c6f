"""The vocabulary of integer networks: values, quantized weights and the operations, as plain dataclasses.

A network starts with a `Table`, which maps each pixel or number of 8 bits to an integer, or with `Floats`, which are
float32 as they come, and `Round`, which makes integers of them. It usually goes on with

    Conv or Linear      s = sum of weight * value, both integers: no rounding anywhere
    MaxPool or SumPool  the largest, or the sum, of a window (an average, its division left to the thresholds)
    Threshold           code = number of k with direction * s >= t_k; the value is levels[code]
    Add, Flatten        residual additions; (channel, row, column) order
    Affine              logit = scale * s + shift, per class, in float32

The kind of a value follows from its operation: a sum is an integer if weights and values are integers, and
float32 otherwise, so layers that were not quantized are the same operations on floats: `Affine` is also
BatchNorm and dequantization, `Clip` is ReLU6, and a `Threshold` with float thresholds quantizes.

`Operation.infer` computes shape, kind and the exact range of a result. A sum that could leave int32 is refused
there, so no backend has to think of overflow. H(0) = 1: direction * s >= t_k goes up.

>>> Linear("sums", "flat", Weights.of([[1, -1], [0, 1]])).infer(Value((2, 1, 1), "integer", 0, 1))
Value(shape=(2, 1, 1), kind='integer', low=-1, high=1)
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from typing_extensions import override

Shape = tuple[int, int, int]  # (channel, row, column)
Pair = tuple[int, int]  # (rows, columns)

# The outermost thresholds: every sum passes ALWAYS, none passes NEVER, so a channel whose scale is
# zero can be written as a constant. Sums therefore stay strictly between them.
ALWAYS, NEVER = -(2**31 - 1), 2**31 - 1
_LARGEST = 2**20 - 1  # kernel, stride, padding or dilation


@dataclass(frozen=True)
class Value:
    """What is known of a value before any image is seen: shape, kind and, for integers, the range."""

    shape: Shape
    kind: Literal["integer", "float"]
    low: int = 0
    high: int = 0

    @property
    def dtype(self) -> np.dtype:
        """The narrowest of int8, int16, int32 that holds the range; float32 for floats."""
        if self.kind == "float":
            return np.dtype(np.float32)
        return np.result_type(np.min_scalar_type(min(self.low, -1)), np.min_scalar_type(min(-self.high - 1, -1)))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Weights:
    """Quantized weights: `levels[codes]`. Integer levels (int8) make integer sums; other levels are floats.

    A common factor of the levels belongs to what follows the layer (thresholds, or an `Affine`), not here.

    >>> Weights.of([[1, 0], [-1, -1]]).levels
    (-1, 0, 1)
    """

    codes: np.ndarray  # uint8, (out, in / groups, rows, columns) or (out, in)
    levels: tuple[int, ...] | tuple[float, ...]

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes)
        if not np.issubdtype(codes.dtype, np.integer):
            raise TypeError(f"codes are integers that count levels from 0, got {codes.dtype}")
        levels = tuple(x.item() if isinstance(x, np.generic) else x for x in self.levels)
        if not 1 <= len(levels) <= 256 or list(levels) != sorted(set(levels)):
            raise ValueError(f"levels are 1 to 256 numbers in increasing order, got {short(levels)}")
        if not all(math.isfinite(x) for x in levels):
            raise ValueError(f"levels are finite, got {short(levels)}")
        if all(isinstance(x, int) for x in levels):
            if levels[0] < -128 or levels[-1] > 127:
                raise ValueError(f"integer weight levels lie in -128..127, got {short(levels)}; give floats instead")
        else:
            levels = tuple(_float32("Weights", "levels", x) for x in levels)
        if codes.size and (codes.min() < 0 or codes.max() >= len(levels)):
            raise ValueError(f"codes lie in 0..{len(levels) - 1}, got {codes.min()}..{codes.max()}")
        object.__setattr__(self, "codes", _frozen(codes, np.uint8))
        object.__setattr__(self, "levels", levels)

    @classmethod
    def of(cls, values: Any) -> Weights:
        """The weights with these values; the levels are the distinct values."""
        levels, codes = np.unique(np.asarray(values), return_inverse=True)
        return cls(codes.reshape(np.shape(values)), tuple(levels.tolist()))

    @property
    def is_integer(self) -> bool:
        """Whether sums with these weights are integers."""
        return all(isinstance(x, int) for x in self.levels)

    @property
    def values(self) -> np.ndarray:
        """The weights themselves: int8, or float32 if the levels are floats."""
        return np.array(self.levels, np.int8 if self.is_integer else np.float32)[self.codes]

    @property
    def packed_bytes(self) -> int:
        """Size when packed: five trits a byte for three levels, else the fewest whole bits a code."""
        if len(self.levels) == 3:
            return -(-self.codes.size // 5)
        return -(-self.codes.size * max(1, (len(self.levels) - 1).bit_length()) // 8)


@dataclass(frozen=True, eq=False)
class Operation(ABC):
    """One step. Its result is the value called `name`."""

    name: str

    @property
    @abstractmethod
    def sources(self) -> tuple[str, ...]:
        """The values it reads."""

    @abstractmethod
    def infer(self, *inputs: Value) -> Value:
        """What its result is, given what its sources are; raises ValueError where they do not fit."""

    @property
    def weights(self) -> Weights | np.ndarray | None:
        """Its weights, if it has some."""
        return None

    def macs(self, result: Value) -> int:
        """Multiply-accumulates for one image."""
        weights = self.weights
        if weights is None:
            return 0
        shape = weights.codes.shape if isinstance(weights, Weights) else weights.shape
        return math.prod(shape[1:]) * result.size

    @property
    def bytes(self) -> int:
        """Size of its constants in a packed file."""
        weights = self.weights
        if isinstance(weights, Weights):
            return weights.packed_bytes
        arrays = (getattr(self, x.name) for x in dataclasses.fields(self))
        return sum(x.nbytes for x in arrays if isinstance(x, np.ndarray))


@dataclass(frozen=True, eq=False)
class _Unary(Operation):
    source: str

    @property
    @override
    def sources(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Table(Operation):
    """The first operation, a table from pixels to int16, or to float32 for a float network.

    One row for each channel, or one for all. A row begins with the entry of the smallest input: 0, or -128 for int8.
    """

    table: np.ndarray  # (channel or 1, 256)

    def __post_init__(self) -> None:
        table = np.asarray(self.table)
        if table.ndim != 2 or table.shape[1] != 256 or not len(table):
            raise ValueError(f"{self.name}: a table has shape (channel, 256), got {table.shape}")
        if np.issubdtype(table.dtype, np.integer):
            _check_range(self.name, "table entries", table, -(2**15), 2**15 - 1)
            object.__setattr__(self, "table", _frozen(table, np.int16))
        else:
            object.__setattr__(self, "table", _finite(self.name, "table entries", table))

    @property
    @override
    def sources(self) -> tuple[str, ...]:
        return ()

    @override
    def infer(self, *inputs: Value) -> Value:
        (image,) = inputs
        if len(self.table) not in (1, image.shape[0]):
            raise ValueError(f"{self.name}: a table for {len(self.table)} channels, but the image has {image.shape[0]}")
        if self.table.dtype == np.float32:
            return Value(image.shape, "float")
        return Value(image.shape, "integer", int(self.table.min()), int(self.table.max()))


@dataclass(frozen=True, eq=False)
class Floats(Operation):
    """The first operation of a network that takes float32: its input as it is."""

    @property
    @override
    def sources(self) -> tuple[str, ...]:
        return ()

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        if x.kind != "float":
            raise ValueError(f"{self.name}: the input is of integers: begin with a Table")
        return x


@dataclass(frozen=True, eq=False)
class Round(_Unary):
    """The integer next to (x - mean) * factor, within -limit..limit: floor(... + 0.5), float32 after each step.

    One mean and factor for each channel, or one for all. NaN becomes -limit, as it reaches no threshold.
    """

    mean: np.ndarray  # (channel or 1,), float32
    factor: np.ndarray  # the same
    limit: int

    def __post_init__(self) -> None:
        for what in ("mean", "factor"):
            array = _finite(self.name, what, getattr(self, what))
            if array.ndim != 1 or not len(array):
                raise ValueError(f"{self.name}: {what} has shape (channel,), got {array.shape}")
            object.__setattr__(self, what, array)
        if not 1 <= self.limit < 2**15:
            raise ValueError(f"{self.name}: limit is 1 to {2**15 - 1}, got {self.limit}")

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        if x.kind != "float":
            raise ValueError(f"{self.name}: only floats are rounded, {self.source} is integer")
        for what in ("mean", "factor"):
            if len(getattr(self, what)) > 1:
                _check_channels(self.name, what, len(getattr(self, what)), x)
        return Value(x.shape, "integer", -self.limit, self.limit)


@dataclass(frozen=True, eq=False)
class Conv(_Unary):
    """Convolution, zero padded, without bias. Quantized weights, or a float32 array."""

    weight: Weights | np.ndarray  # (out, in / groups, rows, columns)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _weight(self.name, self.weight, 4))
        for what, low in (("stride", 1), ("padding", 0), ("dilation", 1)):
            object.__setattr__(self, what, _pair(self.name, what, getattr(self, what), low))
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
class Linear(_Unary):
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
class _Pool(_Unary):
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    def __post_init__(self) -> None:
        for what, low in (("kernel", 1), ("stride", 1), ("padding", 0)):
            object.__setattr__(self, what, _pair(self.name, what, getattr(self, what), low))
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
        return _checked(self.name, value)


@dataclass(frozen=True, eq=False)
class Threshold(_Unary):
    """The multi-step function: code = number of k with direction * s >= t_k, value = levels[code].

    One row of ascending thresholds and one direction (+1 or -1) per channel. Integer thresholds for integer
    sums (`ALWAYS` and `NEVER` make constant channels), float32 ones for floats, of which NaN reaches none. Levels are
    int16.
    """

    thresholds: np.ndarray  # (channel, K), int32 or float32
    directions: np.ndarray  # (channel,), int8
    levels: tuple[int, ...]  # K + 1

    def __post_init__(self) -> None:
        thresholds, directions = np.asarray(self.thresholds), np.asarray(self.directions)
        if thresholds.ndim != 2 or not 1 <= thresholds.shape[1] <= 255:
            raise ValueError(f"{self.name}: thresholds have shape (channel, 1 to 255), got {thresholds.shape}")
        if directions.shape != thresholds.shape[:1] or not np.isin(directions, (-1, 1)).all():
            raise ValueError(f"{self.name}: directions are +1 or -1, one for each of {len(thresholds)} channels")
        if np.issubdtype(thresholds.dtype, np.integer):
            _check_range(self.name, "thresholds", thresholds, ALWAYS, NEVER)
            thresholds = _frozen(thresholds, np.int32)
        elif np.isnan(thresholds).any():
            raise ValueError(f"{self.name}: thresholds are numbers, got NaN")
        else:
            thresholds = _frozen(thresholds, np.float32)
        if (thresholds[:, 1:] < thresholds[:, :-1]).any():
            raise ValueError(f"{self.name}: the thresholds of a channel ascend")
        levels = tuple(int(x) for x in self.levels)
        if levels != tuple(self.levels) or len(levels) != thresholds.shape[1] + 1:
            raise ValueError(
                f"{self.name}: {thresholds.shape[1]} thresholds need {thresholds.shape[1] + 1} "
                f"integer levels, got {short(self.levels)}"
            )
        _check_range(self.name, "levels", np.array(levels), -(2**15), 2**15 - 1)
        object.__setattr__(self, "thresholds", thresholds)
        object.__setattr__(self, "directions", _frozen(directions, np.int8))
        object.__setattr__(self, "levels", levels)

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        _check_channels(self.name, "thresholds", len(self.thresholds), x)
        kind = "float" if self.thresholds.dtype == np.float32 else "integer"
        if kind != x.kind:
            raise ValueError(f"{self.name}: {kind} thresholds cannot cut {self.source}, which is {x.kind}")
        return Value(x.shape, "integer", min(self.levels), max(self.levels))


@dataclass(frozen=True, eq=False)
class Add(Operation):
    """Sum of two values of the same shape and kind; integers must already be at one common scale."""

    first: str
    second: str

    @property
    @override
    def sources(self) -> tuple[str, ...]:
        return (self.first, self.second)

    @override
    def infer(self, *inputs: Value) -> Value:
        a, b = inputs
        if (a.shape, a.kind) != (b.shape, b.kind):
            raise ValueError(
                f"{self.name}: {self.first} is {a.kind} {a.shape} and {self.second} is {b.kind} {b.shape}: "
                "only values of one shape and kind can be added"
            )
        return _checked(self.name, Value(a.shape, a.kind, a.low + b.low, a.high + b.high))


@dataclass(frozen=True, eq=False)
class Flatten(_Unary):
    """(channel, row, column) -> (features, 1, 1), in that order."""

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        return dataclasses.replace(x, shape=(x.size, 1, 1))


@dataclass(frozen=True, eq=False)
class Affine(_Unary):
    """scale * x + shift per channel in float32, rounded after the product and after the sum (never fused)."""

    scale: np.ndarray  # (channel,), float32
    shift: np.ndarray  # (channel,), float32

    def __post_init__(self) -> None:
        scale, shift = (_finite(self.name, what, getattr(self, what)) for what in ("scale", "shift"))
        if scale.ndim != 1 or scale.shape != shift.shape:
            raise ValueError(f"{self.name}: scale and shift have shape (channel,), got {scale.shape} and {shift.shape}")
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "shift", shift)

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        _check_channels(self.name, "scale", len(self.scale), x)
        return Value(x.shape, "float")


@dataclass(frozen=True, eq=False)
class Clip(_Unary):
    """min(max(x, low), high) of floats: ReLU is Clip(0, inf), ReLU6 is Clip(0, 6)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"{self.name}: low is at most high, got {self.low} and {self.high}")
        for what in ("low", "high"):
            object.__setattr__(self, what, _float32(self.name, what, getattr(self, what)))
        if self.low == math.inf or self.high == -math.inf:
            raise ValueError(f"{self.name}: no float lies between {self.low} and {self.high}")

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        if x.kind != "float":
            raise ValueError(f"{self.name}: only floats are clipped, {self.source} is integer: use a Threshold")
        return x


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
    return _checked(name, Value(shape, "integer", low, high))


def _checked(name: str, value: Value) -> Value:
    """Refuse integers that could leave int32; an exact test, so nothing that fits is refused."""
    if value.low <= ALWAYS or value.high >= NEVER:
        raise ValueError(f"{name}: its sums reach {value.low}..{value.high}, beyond int32: give fewer inputs or levels")
    return value


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
        weight = _finite(name, "weights", weight)
    shape = _weight_shape(weight)
    if len(shape) != ndim or 0 in shape:
        raise ValueError(f"{name}: weights have {ndim} dimensions, none empty, got shape {shape}")
    return weight


def _weight_shape(weight: Weights | np.ndarray) -> tuple[int, ...]:
    return weight.codes.shape if isinstance(weight, Weights) else weight.shape


def _pair(name: str, what: str, pair: Sequence[int], low: int) -> Pair:
    rows, columns = (int(x) for x in pair)
    if min(rows, columns) < low or max(rows, columns) > _LARGEST:
        raise ValueError(f"{name}: {what} is {low} to {_LARGEST} for rows and columns, got {tuple(pair)}")
    return rows, columns


def _check_range(name: str, what: str, array: np.ndarray, low: int, high: int) -> None:
    if array.size and (array.min() < low or array.max() > high):
        raise ValueError(f"{name}: {what} lie in {low}..{high}, got {array.min()}..{array.max()}")


def _check_channels(name: str, what: str, channels: int, x: Value) -> None:
    if channels != x.shape[0]:
        raise ValueError(f"{name}: {what} for {channels} channels, its source has {x.shape[0]}")


def _finite(name: str, what: str, array: Any) -> np.ndarray:
    array = _frozen(array, np.float32)
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: {what} are finite float32")
    return array


def _float32(name: str, what: str, number: float) -> float:
    """The float32 next to a number; ValueError for one that is beyond them all."""
    if math.isfinite(number) and abs(number) > float(np.finfo(np.float32).max):
        raise ValueError(f"{name}: {what} are float32, at most 3.4e38, got {number}")
    return float(np.float32(number))


def _frozen(array: Any, dtype: type[np.generic]) -> np.ndarray:
    copy = np.array(array, dtype=dtype, order="C")
    copy.flags.writeable = False
    return copy


def as_shape(shape: Sequence[int]) -> Shape:
    """(channel, row, column) of an input or output of any rank: the last dimension is the columns.

    >>> as_shape((20,)), as_shape((3, 128))
    ((20, 1, 1), (3, 1, 128))
    """
    channels, *space = shape or (1,)
    rows, columns = (*(1,) * (2 - len(space)), *space)
    return channels, rows, columns


def short(items: Sequence[object]) -> str:
    """The first eight items, for a message."""
    text = ", ".join(map(str, items[:8]))
    return f"({text}{', ...' if len(items) > 8 else ''})"
