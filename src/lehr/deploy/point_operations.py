"""Operations on each place by itself: step functions, sums of two values, and functions of floats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from lehr.deploy.abstract import Operation, Unary, check_channels
from lehr.deploy.constants import as_float32, check_range, finite, frozen, short
from lehr.deploy.values import ALWAYS, NEVER, Value, within_int32


@dataclass(frozen=True, eq=False)
class Threshold(Unary):
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
            check_range(self.name, "thresholds", thresholds, ALWAYS, NEVER)
            thresholds = frozen(thresholds, np.int32)
        elif np.isnan(thresholds).any():
            raise ValueError(f"{self.name}: thresholds are numbers, got NaN")
        else:
            thresholds = frozen(thresholds, np.float32)
        if (thresholds[:, 1:] < thresholds[:, :-1]).any():
            raise ValueError(f"{self.name}: the thresholds of a channel ascend")
        levels = tuple(int(x) for x in self.levels)
        if levels != tuple(self.levels) or len(levels) != thresholds.shape[1] + 1:
            raise ValueError(
                f"{self.name}: {thresholds.shape[1]} thresholds need {thresholds.shape[1] + 1} "
                f"integer levels, got {short(self.levels)}"
            )
        check_range(self.name, "levels", np.array(levels), -(2**15), 2**15 - 1)
        object.__setattr__(self, "thresholds", thresholds)
        object.__setattr__(self, "directions", frozen(directions, np.int8))
        object.__setattr__(self, "levels", levels)

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        check_channels(self.name, "thresholds", len(self.thresholds), x)
        kind = "float" if self.thresholds.dtype == np.float32 else "integer"
        if kind != x.kind:
            raise ValueError(f"{self.name}: {kind} thresholds cannot cut {self.source}, which is {x.kind}")
        return Value(x.shape, "integer", min(self.levels), max(self.levels))


@dataclass(frozen=True, eq=False)
class Requantize(Unary):
    """A step function of many evenly spaced levels: (multiplier * s + offset * 2^(shift - 20)) >> shift, in low..high.

    One multiplier and one offset per channel, where a `Threshold` has one number for each step. `>>` rounds down, and
    64 bits hold every product. An offset counts 2^-20 of a level.
    """

    multipliers: np.ndarray  # (channel,), int32
    offsets: np.ndarray  # (channel,), int32
    shift: int  # OFFSET_BITS to MOST_SHIFT
    low: int
    high: int

    OFFSET_BITS: ClassVar[int] = 20
    MOST_SHIFT: ClassVar[int] = 40

    def __post_init__(self) -> None:
        for what in ("multipliers", "offsets"):
            array = np.asarray(getattr(self, what))
            if array.ndim != 1 or not len(array) or not np.issubdtype(array.dtype, np.integer):
                raise ValueError(f"{self.name}: {what} are integers of shape (channel,), got {array.shape}")
            check_range(self.name, what, array, ALWAYS, NEVER)
            object.__setattr__(self, what, frozen(array, np.int32))
        if len(self.multipliers) != len(self.offsets):
            raise ValueError(f"{self.name}: {len(self.multipliers)} multipliers, but {len(self.offsets)} offsets")
        if not self.OFFSET_BITS <= self.shift <= self.MOST_SHIFT:
            raise ValueError(f"{self.name}: shift is {self.OFFSET_BITS} to {self.MOST_SHIFT}, got {self.shift}")
        if not -(2**15) <= self.low <= self.high < 2**15 or self.high - self.low > 255:
            raise ValueError(f"{self.name}: up to 256 levels in -32768..32767, got {self.low}..{self.high}")

    def of(self, sums: np.ndarray) -> np.ndarray:
        """The levels of sums, (..., channel)."""
        offsets = self.offsets.astype(np.int64) << (self.shift - self.OFFSET_BITS)
        levels = (self.multipliers * sums.astype(np.int64) + offsets) >> self.shift
        return levels.clip(self.low, self.high)

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        check_channels(self.name, "multipliers", len(self.multipliers), x)
        if x.kind != "integer":
            raise ValueError(f"{self.name}: only integers are requantized, {self.source} is float: use a Threshold")
        most = int(np.abs(self.multipliers.astype(np.int64)).max()) * max(-x.low, x.high, 0)
        most += int(np.abs(self.offsets.astype(np.int64)).max()) << (self.shift - self.OFFSET_BITS)
        if most >= 2**52:
            raise ValueError(f"{self.name}: its products reach {most}, and 2^52 is the most that doubles hold exactly")
        ends = self.of(np.array([[x.low], [x.high]]))
        return Value(x.shape, "integer", int(ends.min()), int(ends.max()))

    def threshold(self) -> Threshold:
        """The same step function with its thresholds written out."""
        steps = np.arange(self.low + 1, self.high + 1, dtype=np.int64) << self.shift
        offsets = self.offsets.astype(np.int64)[:, None] << (self.shift - self.OFFSET_BITS)
        directions = np.where(self.multipliers < 0, -1, 1)
        sizes = np.maximum(np.abs(self.multipliers.astype(np.int64)), 1)[:, None]
        needed = -((offsets - steps) // sizes)  # ceil((step - offset) / size)
        constant = (self.multipliers == 0)[:, None]
        reached = np.where(constant, np.where(offsets >= steps, ALWAYS, NEVER), needed).clip(ALWAYS, NEVER)
        return Threshold(self.name, self.source, reached, directions, tuple(range(self.low, self.high + 1)))


@dataclass(frozen=True, eq=False)
class Add(Operation):
    """first_factor * first + second_factor * second, of one shape and kind.

    The factors bring integers to one common scale; floats are added as they are.
    """

    first: str
    second: str
    first_factor: int = 1
    second_factor: int = 1

    def __post_init__(self) -> None:
        for factor in (self.first_factor, self.second_factor):
            if not 1 <= abs(factor) < 2**15:
                raise ValueError(f"{self.name}: factors are +-1 to 32767, got {factor}")

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
        if a.kind == "float":
            if (self.first_factor, self.second_factor) != (1, 1):
                raise ValueError(f"{self.name}: floats are added as they are, without factors")
            return Value(a.shape, "float")
        ends = []
        for x, factor in ((a, self.first_factor), (b, self.second_factor)):
            product = sorted((factor * x.low, factor * x.high))
            within_int32(self.name, Value(x.shape, "integer", *product))
            ends.append(product)
        low, high = (first + second for first, second in zip(*ends, strict=True))
        return within_int32(self.name, Value(a.shape, "integer", low, high))


@dataclass(frozen=True, eq=False)
class Multiply(Operation):
    """Product of two integer values, the second of one shape with the first or one number for each channel."""

    first: str
    second: str

    @property
    @override
    def sources(self) -> tuple[str, ...]:
        return (self.first, self.second)

    @override
    def infer(self, *inputs: Value) -> Value:
        a, b = inputs
        if a.kind != "integer" or b.kind != "integer":
            raise ValueError(f"{self.name}: only integers are multiplied, got {a.kind} and {b.kind}")
        if b.shape not in (a.shape, (a.shape[0], 1, 1)):
            raise ValueError(
                f"{self.name}: {self.second} has shape {b.shape}: it must have that of {self.first}, {a.shape}, or one "
                "number for each channel"
            )
        corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return within_int32(self.name, Value(a.shape, "integer", min(corners), max(corners)))


@dataclass(frozen=True, eq=False)
class Affine(Unary):
    """scale * x + shift per channel in float32, rounded after the product and after the sum (never fused)."""

    scale: np.ndarray  # (channel,), float32
    shift: np.ndarray  # (channel,), float32

    def __post_init__(self) -> None:
        scale, shift = (finite(self.name, what, getattr(self, what)) for what in ("scale", "shift"))
        if scale.ndim != 1 or scale.shape != shift.shape:
            raise ValueError(f"{self.name}: scale and shift have shape (channel,), got {scale.shape} and {shift.shape}")
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "shift", shift)

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        check_channels(self.name, "scale", len(self.scale), x)
        return Value(x.shape, "float")


@dataclass(frozen=True, eq=False)
class Clip(Unary):
    """min(max(x, low), high) of floats: ReLU is Clip(0, inf), ReLU6 is Clip(0, 6)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"{self.name}: low is at most high, got {self.low} and {self.high}")
        for what in ("low", "high"):
            object.__setattr__(self, what, as_float32(self.name, what, getattr(self, what)))
        if self.low == math.inf or self.high == -math.inf:
            raise ValueError(f"{self.name}: no float lies between {self.low} and {self.high}")

    @override
    def infer(self, *inputs: Value) -> Value:
        (x,) = inputs
        if x.kind != "float":
            raise ValueError(f"{self.name}: only floats are clipped, {self.source} is integer: use a Threshold")
        return x
