"""Operations that only move values to other places.

`Take` is all of slicing, channel shuffles, transposes, nearest upsampling, constant padding and pixel shuffles: each
place of its result names the place of the source it comes from, as a sum of three offsets, one of its channel, one of
its row and one of its column.

>>> x = Value((2, 2, 3), "integer", 0, 9)  # 12 numbers: a channel is 6 apart from the next, a row 3, a column 1
>>> Take("second channel", "x", channels=[6], rows=[0, 3], columns=[0, 1, 2]).infer(x).shape
(1, 2, 3)
>>> Take("twice as wide", "x", channels=[0, 6], rows=[0, 3], columns=[0, 0, 1, 1, 2, 2]).infer(x).shape
(2, 2, 6)
>>> Take("padded", "x", channels=[0, 6], rows=[-1, 0, 3, -1], columns=[0, 1, 2]).infer(x).shape
(2, 4, 3)
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lehr.deploy.abstract import Operation, Unary
from lehr.deploy.constants import as_float32, check_range, frozen
from lehr.deploy.values import Value

_LARGEST_FILL = 2**15


@dataclass(frozen=True, eq=False)
class Flatten(Unary):
    """(channel, row, column) -> (features, 1, 1), in that order."""

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        return dataclasses.replace(x, shape=(x.size, 1, 1))


@dataclass(frozen=True, eq=False)
class Concat(Operation):
    """The channels of several values, one value behind the other; rows, columns and kind are the same in all."""

    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts:
            raise ValueError(f"{self.name}: it joins one value or more, got none")

    @property
    @override
    def sources(self) -> tuple[str, ...]:
        return self.parts

    @override
    def infer(self, *inputs: Value) -> Value:
        first = inputs[0]
        for part, value in zip(self.parts, inputs, strict=True):
            if (value.shape[1:], value.kind) != (first.shape[1:], first.kind):
                raise ValueError(
                    f"{self.name}: {self.parts[0]} is {first.kind} {first.shape} and {part} is {value.kind} "
                    f"{value.shape}: only values of one kind, with the same rows and columns, can be joined"
                )
        channels = sum(value.shape[0] for value in inputs)
        low, high = min(value.low for value in inputs), max(value.high for value in inputs)
        return Value((channels, *first.shape[1:]), first.kind, low, high)


@dataclass(frozen=True, eq=False)
class Take(Unary):
    """result[c, r, k] = source[channels[c] + rows[r] + columns[k]], source being flat; `fill` where one of them is -1.

    Args:
        channels: For each channel of the result, an offset in the flat source, or -1.
        rows: The same for its rows.
        columns: The same for its columns.
        fill: What stands where nothing is taken; below 2^15 in size for integers.
    """

    channels: np.ndarray  # int32
    rows: np.ndarray
    columns: np.ndarray
    fill: float = 0.0

    def __post_init__(self) -> None:
        for what in ("channels", "rows", "columns"):
            offsets = np.asarray(getattr(self, what))
            if offsets.ndim != 1 or not offsets.size or not np.issubdtype(offsets.dtype, np.integer):
                raise ValueError(f"{self.name}: {what} are offsets, one or more integers, got {offsets.dtype}")
            check_range(self.name, what, offsets, -1, 2**31 - 1)
            object.__setattr__(self, what, frozen(offsets, np.int32))
        if not math.isfinite(self.fill):
            raise ValueError(f"{self.name}: fill is a number, got {self.fill}")
        object.__setattr__(self, "fill", as_float32(self.name, "fill", self.fill))

    @property
    def offsets(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of channels, rows and columns."""
        return self.channels, self.rows, self.columns

    @property
    def is_filled(self) -> bool:
        """Whether some places of the result are `fill`."""
        return any((offsets < 0).any() for offsets in self.offsets)

    def places(self) -> np.ndarray:
        """For each place of the result, (channel, row, column), that of the flat source; -1 where `fill` stands."""
        channels, rows, columns = np.ix_(*(offsets.astype(np.int64) for offsets in self.offsets))
        nothing = (channels < 0) | (rows < 0) | (columns < 0)
        return np.where(nothing, -1, channels + rows + columns)

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        furthest = sum(int(offsets.max(initial=0)) for offsets in self.offsets)
        if furthest >= x.size:
            raise ValueError(f"{self.name}: it takes place {furthest} of {self.source}, which has {x.size}")
        channels, rows, columns = (len(offsets) for offsets in self.offsets)
        if x.kind == "float" or not self.is_filled:
            return dataclasses.replace(x, shape=(channels, rows, columns))
        if not self.fill.is_integer() or abs(self.fill) >= _LARGEST_FILL:
            raise ValueError(f"{self.name}: integers are filled up with one below 2^15 in size, got {self.fill:g}")
        fill = int(self.fill)
        return Value((channels, rows, columns), "integer", min(x.low, fill), max(x.high, fill))
