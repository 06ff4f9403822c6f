"""A trained network as integers: plain dataclasses and the reference run that every backend must equal.

An `IntegerNet` is a list of operations in topological order over named values. It starts with a `Table`,
which maps each pixel (uint8) to an integer, and usually goes on with

    Conv or Linear      s = sum of weight * value, both integers: no rounding anywhere
    MaxPool or SumPool  the largest, or the sum, of a window (an average, its division left to the thresholds)
    Threshold           code = number of k with direction * s >= t_k; the value is levels[code]
    Add, Flatten        residual additions; (channel, row, column) order
    Affine              logit = scale * s + shift, per class, in float32

The kind of a value follows from its operation: a sum is an integer if weights and values are integers, and
float32 otherwise, so layers that were not quantized are the same operations on floats: `Affine` is also
BatchNorm and dequantization, `Clip` is ReLU6, and a `Threshold` with float thresholds quantizes.

Shapes, kinds and the exact range of every value are worked out once, when the network is made. A sum that
could leave int32 is refused there, so no backend has to think of overflow. H(0) = 1: direction * s >= t_k
goes up.

>>> import numpy as np
>>> net = IntegerNet((1, 1, 2), (
...     Table("pixels", np.arange(256)[None] // 128),
...     Flatten("flat", "pixels"),
...     Linear("sums", "flat", Weights.of([[1, -1], [0, 1]])),
...     Affine("logits", "sums", scale=[0.5, 1.0], shift=[0.0, -1.0]),
... ))
>>> net.run(np.array([[[[200, 7]]]], dtype=np.uint8))
array([[ 0.5, -1. ]], dtype=float32)
>>> net.values["sums"]
Value(shape=(2, 1, 1), kind='integer', low=-1, high=1)
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

Shape = tuple[int, int, int]  # (channel, row, column)
Pair = tuple[int, int]  # (rows, columns)
Images = TypeVar("Images", np.ndarray, Tensor)

# The outermost thresholds: every sum passes ALWAYS, none passes NEVER, so a channel whose scale is
# zero can be written as a constant. Sums therefore stay strictly between them.
ALWAYS, NEVER = -(2**31 - 1), 2**31 - 1
_MOST_NUMBERS = 2**29  # in a value: C counts their bytes in int32


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
            raise ValueError(f"levels are 1 to 256 numbers in increasing order, got {_short(levels)}")
        if not all(math.isfinite(x) for x in levels):
            raise ValueError(f"levels are finite, got {_short(levels)}")
        if all(isinstance(x, int) for x in levels):
            if levels[0] < -128 or levels[-1] > 127:
                raise ValueError(f"integer weight levels lie in -128..127, got {_short(levels)}; give floats instead")
        else:
            levels = tuple(float(np.float32(x)) for x in levels)
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

    @abstractmethod
    def run(self, *inputs: Tensor) -> Tensor:
        """Its result for a batch: int64 for integers, float32 for floats, (image, channel, row, column)."""

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
    """The first operation, a table per channel from pixels to int16, or to float32 for a float network."""

    table: np.ndarray  # (channel, 256)

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
        if len(self.table) != image.shape[0]:
            raise ValueError(f"{self.name}: a table for {len(self.table)} channels, but the image has {image.shape[0]}")
        if self.table.dtype == np.float32:
            return Value(image.shape, "float")
        return Value(image.shape, "integer", int(self.table.min()), int(self.table.max()))

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        (image,) = inputs
        table = torch.from_numpy(self.table.copy())
        x = table[torch.arange(len(table))[:, None, None], image.long()]
        return x if x.is_floating_point() else x.long()


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

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        return _exact_conv(inputs[0], self.weight, self.stride, self.padding, self.dilation, self.groups)


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

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        return _exact_conv(inputs[0], self.weight)


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

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return F.max_pool2d(x.double(), self.kernel, self.stride, self.padding).to(x.dtype)


@dataclass(frozen=True, eq=False)
class SumPool(_Pool):
    """Sum of each window, padding being zero: an average whose division is left to what follows."""

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        if x.kind == "float":
            return Value(self._space(x), "float")
        count = math.prod(self.kernel)
        value = Value(self._space(x), "integer", count * min(0, x.low), count * max(0, x.high))
        return _checked(self.name, value)

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        sums = F.avg_pool2d(x.double(), self.kernel, self.stride, self.padding, divisor_override=1)
        return sums.to(x.dtype)


@dataclass(frozen=True, eq=False)
class Threshold(_Unary):
    """The multi-step function: code = number of k with direction * s >= t_k, value = levels[code].

    One row of ascending thresholds and one direction (+1 or -1) per channel. Integer thresholds for integer
    sums (`ALWAYS` and `NEVER` make constant channels), float32 ones for floats. Levels are int16.
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
                f"integer levels, got {_short(self.levels)}"
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

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        (s,) = inputs
        thresholds = torch.from_numpy(self.thresholds.astype(np.float32 if s.is_floating_point() else np.int64))
        signed = s * _per_channel(self.directions, s.dtype)
        columns = signed.transpose(0, 1).reshape(len(thresholds), -1).contiguous()
        codes = torch.searchsorted(thresholds, columns, right=True)  # counts t_k <= direction * s
        values = torch.tensor(self.levels)[codes]
        return values.reshape(s.shape[1], s.shape[0], *s.shape[2:]).transpose(0, 1)


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

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        return inputs[0] + inputs[1]


@dataclass(frozen=True, eq=False)
class Flatten(_Unary):
    """(channel, row, column) -> (features, 1, 1), in that order."""

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        return dataclasses.replace(x, shape=(x.size, 1, 1))

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        return inputs[0].flatten(1)[:, :, None, None]


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

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.float() * _per_channel(self.scale, torch.float32) + _per_channel(self.shift, torch.float32)


@dataclass(frozen=True, eq=False)
class Clip(_Unary):
    """min(max(x, low), high) of floats: ReLU is Clip(0, inf), ReLU6 is Clip(0, 6)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"{self.name}: low is at most high, got {self.low} and {self.high}")

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        if x.kind != "float":
            raise ValueError(f"{self.name}: only floats are clipped, {self.source} is integer: use a Threshold")
        return x

    @override
    def run(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(self.low, self.high)


@dataclass(frozen=True)
class SummaryRow:
    """One operation in numbers: distinct values as bits, work for one image, size in a packed file."""

    name: str
    operation: str
    shape: Shape
    weight_bits: float  # log2 of the number of levels; 32 for floats; 0 without weights
    value_bits: int  # width of the narrowest signed integer that holds the result; 32 for floats
    macs: int
    bytes: int


@dataclass(frozen=True)
class Summary:
    """A row for each operation and their totals; `str` is a table."""

    rows: tuple[SummaryRow, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulates for one image."""
        return sum(row.macs for row in self.rows)

    @property
    def bytes(self) -> int:
        """Size of all constants in a packed file."""
        return sum(row.bytes for row in self.rows)

    def __str__(self) -> str:
        lines = [("name", "operation", "shape", "weight bits", "value bits", "MACs", "bytes")]
        for row in self.rows:
            bits = f"{row.weight_bits:.3g}" if row.weight_bits else ""
            macs = f"{row.macs:,}" if row.macs else ""
            shape = "x".join(map(str, row.shape))
            lines.append((row.name, row.operation, shape, bits, str(row.value_bits), macs, f"{row.bytes:,}"))
        lines.append(("total", "", "", "", "", f"{self.macs:,}", f"{self.bytes:,}"))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = ["<", "<", "<", ">", ">", ">", ">"]
        return "\n".join(
            "  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(line, aligned, widths, strict=True)).rstrip()
            for line in lines
        )


@dataclass(frozen=True, eq=False)
class IntegerNet:
    """A network of integers: `run` gives logits, `scores` the integers they come from, `predict` classes.

    The last operation is the output. `values` tells shape, kind and range of every value by name.
    """

    input_shape: Shape
    operations: tuple[Operation, ...]
    classes: tuple[str, ...] = ()  # names of the outputs, if they have names
    values: Mapping[str, Value] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shape = tuple(int(x) for x in self.input_shape)
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError(f"input_shape is (channel, row, column), each at least 1, got {self.input_shape}")
        operations = tuple(self.operations)
        if not operations or not isinstance(operations[0], Table):
            raise ValueError("the first operation is the Table that pixels go through")
        values: dict[str, Value] = {}
        used: set[str] = set()
        image = Value((shape[0], shape[1], shape[2]), "integer", 0, 255)
        for index, operation in enumerate(operations):
            if isinstance(operation, Table) and index:
                raise ValueError(f"{operation.name}: only the first operation is a Table")
            if operation.name in values or not operation.name:
                raise ValueError(f"operation {index}: a value needs a name of its own, got {operation.name!r}")
            for source in operation.sources:
                if source not in values:
                    raise ValueError(f"{operation.name}: it reads {source!r}, which no earlier operation makes")
            inputs = [values[source] for source in operation.sources] if index else [image]
            value = values[operation.name] = operation.infer(*inputs)
            if value.size > _MOST_NUMBERS:
                raise ValueError(f"{operation.name}: it makes {value.size} numbers, more than {_MOST_NUMBERS}")
            used.update(operation.sources)
        unused = [name for name in values if name not in used and name != operations[-1].name]
        if unused:
            raise ValueError(f"nothing reads {', '.join(unused)}: the last operation is the only output")
        outputs = values[operations[-1].name].size
        if self.classes and len(self.classes) != outputs:
            raise ValueError(f"{len(self.classes)} class names for {outputs} outputs")
        object.__setattr__(self, "input_shape", shape)
        object.__setattr__(self, "operations", operations)
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "values", MappingProxyType(values))

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it can be copied and sent to other processes."""
        return IntegerNet, (self.input_shape, self.operations, self.classes)

    @property
    def output(self) -> Value:
        """The last value."""
        return self.values[self.operations[-1].name]

    @property
    def score_name(self) -> str:
        """Name of what `scores` gives: the integers the last `Affine` reads, or else the output itself."""
        last = self.operations[-1]
        if isinstance(last, Affine) and self.values[last.source].kind == "integer":
            return last.source
        return last.name

    def run(self, images: Images) -> Images:
        """Float32 logits (integers if the network ends with integers), (image, class), for a uint8 batch."""
        return self._run(images, self.operations[-1].name)

    def scores(self, images: Images) -> Images:
        """The integer scores, int64 (image, class); equal bit for bit in every backend."""
        return self._run(images, self.score_name)

    def predict(self, images: Images) -> Images:
        """The class of each image: the first of the largest logits."""
        logits = self.run(images)
        return logits.argmax(1)  # pyright: ignore[reportReturnType]

    def trace(self, images: Tensor) -> dict[str, Tensor]:
        """Every value by name for a uint8 batch, to look at or to compare with."""
        values: dict[str, Tensor] = {}
        for operation in self.operations:
            inputs = [values[source] for source in operation.sources] or [images]
            values[operation.name] = operation.run(*inputs)
        return values

    def save(self, path: str | Path) -> None:
        """Write a packed `.lehr` file."""
        from lehr.deploy.pack import save

        save(self, path)

    def summary(self) -> Summary:
        """Bits, multiply-accumulates and bytes of each operation."""
        rows = []
        for operation in self.operations:
            value = self.values[operation.name]
            weights = operation.weights
            bits = 0.0 if weights is None else 32.0
            if isinstance(weights, Weights):
                bits = max(1.0, math.log2(len(weights.levels)))
            value_bits = 8 * value.dtype.itemsize
            if value.kind == "integer":
                value_bits = 1 + max(value.high, -value.low - 1, 0).bit_length()
            kind = type(operation).__name__
            macs = operation.macs(value)
            rows.append(SummaryRow(operation.name, kind, value.shape, bits, value_bits, macs, operation.bytes))
        return Summary(tuple(rows))

    def _run(self, images: Images, name: str) -> Images:
        check_images(images, self.input_shape)
        if isinstance(images, np.ndarray):
            return self._run(torch.from_numpy(np.ascontiguousarray(images)), name).numpy()
        if not len(images):
            value = self.values[name]
            return torch.empty(0, value.size, dtype=torch.float32 if value.kind == "float" else torch.int64)
        # 64 images at a time bound the memory: the values are int64 and the sums float64.
        return torch.cat([self.trace(part)[name].flatten(1) for part in images.cpu().split(64)])


def check_images(images: np.ndarray | Tensor, shape: Shape) -> None:
    """Raise unless `images` is a uint8 batch of images of this shape."""
    if not isinstance(images, (np.ndarray, Tensor)):
        raise TypeError(f"images are a numpy array or a torch tensor, got {type(images).__name__}")
    if images.dtype not in (np.uint8, torch.uint8):
        raise TypeError(f"images are uint8 pixels, 0 to 255 and not normalised, got {images.dtype}")
    if images.ndim != 4 or tuple(images.shape[1:]) != shape:
        raise ValueError(
            f"images have shape (image, {', '.join(map(str, shape))}), got {tuple(images.shape)}"
            + (": add a batch dimension" if tuple(images.shape) == shape else "")
        )


def _exact_conv(
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


def _sum_value(name: str, x: Value, shape: Shape, weight: Weights | np.ndarray) -> Value:
    """The range of sums of `x` with these weights: of all partial sums, in any order, padded or not."""
    if x.kind == "float" or not isinstance(weight, Weights) or not weight.is_integer:
        return Value(shape, "float")
    levels = np.array(weight.levels, np.int64)
    smallest = np.minimum(0, np.minimum(levels * x.low, levels * x.high))
    largest = np.maximum(0, np.maximum(levels * x.low, levels * x.high))
    rows = weight.codes.reshape(len(weight.codes), -1)
    low = min(int(smallest[row].sum()) for row in rows)
    high = max(int(largest[row].sum()) for row in rows)
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
    if min(rows, columns) < low or max(rows, columns) > _MOST_NUMBERS:
        raise ValueError(f"{name}: {what} is {low} to {_MOST_NUMBERS} for rows and columns, got {tuple(pair)}")
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


def _frozen(array: Any, dtype: type[np.generic]) -> np.ndarray:
    copy = np.array(array, dtype=dtype, order="C")
    copy.flags.writeable = False
    return copy


def _per_channel(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.tensor(array, dtype=dtype)[:, None, None]


def _short(items: Sequence[object]) -> str:
    text = ", ".join(map(str, items[:8]))
    return f"({text}{', ...' if len(items) > 8 else ''})"
