"""A trained network as integers; its reference run (reference.py) is what every backend must equal.

An `IntegerNet` is a list of operations (operations.py) in topological order over named values; the first is the
`Table` that pixels go through, the last one is the output. Shapes, kinds and the exact range of every value are
worked out once, when the network is made.

>>> import numpy as np
>>> from lehr.deploy.operations import Affine, Flatten, Linear, Table, Weights
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

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lehr.deploy.operations import Affine, Conv, Operation, Shape, Table, Value, Weights, short
from lehr.deploy.reference import result
from lehr.table import Table as TextTable
from lehr.table import Tabular

Images = TypeVar("Images", np.ndarray, Tensor)

_FLOAT32_COUNTS = 2**24  # up to here every integer is a float32
_MOST_NUMBERS = 2**29  # in a value: C counts their bytes in int32
_LONGEST_NAME = 1000  # characters; C compilers need not take strings of more than 4095 bytes
_AT_ONCE = 2**24  # numbers that the reference run holds of the images it takes at once


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


@dataclass(frozen=True, repr=False)
class Summary(Tabular):
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

    def table(self) -> TextTable:
        """Return a row for each operation, and the totals."""
        rows = []
        for row in self.rows:
            bits = f"{row.weight_bits:.3g}" if row.weight_bits else None
            macs = f"{row.macs:,}" if row.macs else None
            shape = "x".join(map(str, row.shape))
            rows.append((row.name, row.operation, shape, bits, row.value_bits, macs, f"{row.bytes:,}"))
        total = ("total", "", "", "", "", f"{self.macs:,}", f"{self.bytes:,}")
        return TextTable(("name", "operation", "shape", "weight bits", "value bits", "MACs", "bytes"), rows, total)

    def __repr__(self) -> str:
        return f"Summary({len(self.rows)} operations, {self.macs:,} MACs, {self.bytes:,} bytes)"


@dataclass(frozen=True, eq=False, repr=False)
class IntegerNet:
    """A network of integers: `run` gives logits, `scores` the integers they come from, `predict` classes.

    The last operation is the output. `values` tells shape, kind and range of every value by name. `rounded` are the
    places where the network it was frozen from rounds its sums, a sentence each.
    """

    input_shape: Shape
    operations: tuple[Operation, ...]
    classes: tuple[str, ...] = ()  # names of the outputs, if they have names
    rounded: tuple[str, ...] = ()
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
            if len(operation.name) > _LONGEST_NAME:
                raise ValueError(
                    f"operation {index}: a name has at most {_LONGEST_NAME} characters, got {len(operation.name)}: "
                    f"{operation.name[:60]!r}..."
                )
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
        for name in self.classes:
            if len(name) > _LONGEST_NAME:
                raise ValueError(
                    f"a class name has at most {_LONGEST_NAME} characters, got {len(name)}: {name[:60]!r}..."
                )
        object.__setattr__(self, "input_shape", shape)
        object.__setattr__(self, "operations", operations)
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "rounded", tuple(self.rounded))
        object.__setattr__(self, "values", MappingProxyType(values))

    def __repr__(self) -> str:
        images, summary = "x".join(map(str, self.input_shape)), self.summary()
        outputs = self.values[self.operations[-1].name].shape[0]
        size = f"{len(self.operations)} operations, {summary.macs:,} MACs, {summary.bytes:,} bytes"
        return f"IntegerNet({images} images to {outputs} logits, {size}, {'' if self.exact else 'not '}exact)"

    def _repr_html_(self) -> str:
        return self.summary().table().html()

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it can be copied and sent to other processes."""
        return IntegerNet, (self.input_shape, self.operations, self.classes, self.rounded)

    @property
    def exact(self) -> bool:
        """Whether every integer is the one that the trained network computes, on any machine, proven by `freeze`."""
        return not self.inexact

    @property
    def inexact(self) -> tuple[str, ...]:
        """Where rounding can decide, a sentence for each place: a value in float, a sum beyond 2^24, `rounded`."""
        inner = [(operation.name, self.values[operation.name]) for operation in self.operations[:-1]]
        floats = [name for name, value in inner if value.kind == "float"]
        large = [(name, max(-value.low, value.high)) for name, value in inner if value.kind == "integer"]
        return (
            *([f"{short(floats)}: computed in float32"] if floats else []),
            *(
                f"{name}: reaches {size:,}, and float32 counts to 2^24"
                for name, size in large
                if size > _FLOAT32_COUNTS
            ),
            *self.rounded,
        )

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
            values[operation.name] = result(operation, *inputs)
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
        return torch.cat([self._value(part, name) for part in images.cpu().split(self._at_once())])

    def _at_once(self) -> int:
        """How many images a part of a batch has: few enough for the memory, whose numbers have 8 bytes."""
        gathered = [
            operation.gathered(self.values[operation.source], self.values[operation.name])
            for operation in self.operations
            if isinstance(operation, Conv)
        ]
        numbers = sum(value.size for value in self.values.values()) + max(gathered, default=0)
        return max(1, min(64, _AT_ONCE // numbers))

    def _value(self, images: Tensor, name: str) -> Tensor:
        """One value, flat, for a batch; the others are kept only while something reads them."""
        last_use = {source: operation.name for operation in self.operations for source in operation.sources}
        values: dict[str, Tensor] = {}
        for operation in self.operations:
            inputs = [values[source] for source in operation.sources] or [images]
            values[operation.name] = result(operation, *inputs)
            if operation.name == name:
                break
            for source in set(operation.sources):
                if last_use[source] == operation.name:
                    del values[source]
        return values[name].flatten(1)


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
