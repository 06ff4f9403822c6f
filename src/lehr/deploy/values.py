"""What flows through an integer network, `Value`, and what it is multiplied with, `Weights`.

>>> Value((2, 1, 1), "integer", -3, 130).dtype
dtype('int16')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lehr.deploy.constants import as_float32, frozen, short

Shape = tuple[int, int, int]  # (channel, row, column)

# The outermost thresholds: every sum passes ALWAYS, none passes NEVER, so a channel whose scale is
# zero can be written as a constant. Sums therefore stay strictly between them.
ALWAYS, NEVER = -(2**31 - 1), 2**31 - 1


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
            levels = tuple(as_float32("Weights", "levels", x) for x in levels)
        if codes.size and (codes.min() < 0 or codes.max() >= len(levels)):
            raise ValueError(f"codes lie in 0..{len(levels) - 1}, got {codes.min()}..{codes.max()}")
        object.__setattr__(self, "codes", frozen(codes, np.uint8))
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


def within_int32(name: str, value: Value) -> Value:
    """Refuse integers that could leave int32; an exact test, so nothing that fits is refused."""
    if value.low <= ALWAYS or value.high >= NEVER:
        raise ValueError(f"{name}: its sums reach {value.low}..{value.high}, beyond int32: give fewer inputs or levels")
    return value


def as_shape(shape: Sequence[int]) -> Shape:
    """(channel, row, column) of an input or output of any rank: the last dimension is the columns.

    >>> as_shape((20,)), as_shape((3, 128))
    ((20, 1, 1), (3, 1, 128))
    """
    channels, *space = shape or (1,)
    rows, columns = (*(1,) * (2 - len(space)), *space)
    return channels, rows, columns
