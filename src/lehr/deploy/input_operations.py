"""The operations a network begins with: a table for pixels and numbers of 8 bits, floats as they are, or rounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lehr.deploy.abstract import Operation, Unary, check_channels
from lehr.deploy.constants import check_range, finite, frozen
from lehr.deploy.values import Value


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
            check_range(self.name, "table entries", table, -(2**15), 2**15 - 1)
            object.__setattr__(self, "table", frozen(table, np.int16))
        else:
            object.__setattr__(self, "table", finite(self.name, "table entries", table))

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
class Round(Unary):
    """The integer next to (x - mean) * factor, within -limit..limit: floor(... + 0.5), float32 after each step.

    One mean and factor for each channel, or one for all. NaN becomes -limit, as it reaches no threshold.
    """

    mean: np.ndarray  # (channel or 1,), float32
    factor: np.ndarray  # the same
    limit: int

    def __post_init__(self) -> None:
        for what in ("mean", "factor"):
            array = finite(self.name, what, getattr(self, what))
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
                check_channels(self.name, what, len(getattr(self, what)), x)
        return Value(x.shape, "integer", -self.limit, self.limit)
