"""Operations on each place by itself: step functions, sums of two values, and functions of floats."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        return within_int32(self.name, Value(a.shape, a.kind, a.low + b.low, a.high + b.high))


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
