"""A step function of many even levels as one product, sum and shift per channel, where that is exactly the same.

The thresholds of a uniform quantizer behind BatchNorm lie on a line: level y is reached from x = t_y on. So

    floor((m x + b) / 2^h) >= y  exactly where  x >= t_y,   if   m t_y + b >= y 2^h  and  m (t_y - 1) + b < y 2^h

for every level y. These are linear in m and b, and there are few of them, one pair for each step within the range of x.
`line` looks for the slope that keeps furthest from all of them, rounds it to an integer, and tests every one of them in
integers: what it returns equals the thresholds for every x in the range. Thresholds that float32 has moved off the line
have no such m and b, and stay thresholds.

Few sums need few bits: `narrowed` looks for numbers whose products stay in 32 bits, which vectors multiply faster.

>>> line(np.array([[-3, 0, 4, 7]]), np.array([1]), first=-2, low=-9, high=9)
(array([1227133513]), array([1]), 32)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lehr.deploy.operations import Requantize

_MOST = 2**31 - 1
_HALVINGS = 64  # of the interval of slopes: float64 has no more bits


def line(
    thresholds: np.ndarray,  # (channel, K), ascending
    directions: np.ndarray,  # (channel,), +-1
    *,
    first: int,
    low: int,
    high: int,
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Multipliers, offsets and shift of a `Requantize` that equals these thresholds; None if there are none.

    Args:
        thresholds: level first + k is reached where direction * s >= thresholds[channel, k - 1].
        directions: of each channel.
        first: the lowest level.
        low: the least s there is.
        high: the largest s.
    """
    conditions = _conditions(thresholds, directions, first, low, high)
    channels = len(thresholds)

    def room(slope: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How far apart both kinds of conditions are for lines of this slope, and the places that say so."""
        levels, least_x, below_x, is_least, is_below = conditions
        least = np.where(is_least, levels - slope[:, None] * least_x, -np.inf)
        below = np.where(is_below, levels - slope[:, None] * below_x, np.inf)
        rows, a, b = np.arange(channels), least.argmax(1), below.argmin(1)
        return below[rows, b] - least[rows, a], least_x[rows, a], below_x[rows, b]

    start, end = np.zeros(channels), np.full(channels, 2.0 ** (31 - Requantize.OFFSET_BITS))
    for _ in range(_HALVINGS):  # the room is concave in the slope, and rises with it where least_x > below_x
        middle = (start + end) / 2
        gap, left, right = room(middle)
        up = np.isfinite(gap) & (left > right)
        start, end = np.where(up, middle, start), np.where(up, end, middle)
    return _rounded((start + end) / 2, directions, conditions, max(-low, high, 1), bits=51)


def narrowed(operation: Requantize, low: int, high: int) -> Requantize | None:
    """The same levels for every s in low..high, by products and sums within int32; None if there are no such numbers.

    >>> wide = Requantize("r", "s", *line(np.array([[-3, 0, 4, 7]]), np.array([1]), first=-2, low=-9, high=9), -2, 2)
    >>> small = narrowed(wide, -9, 9)
    >>> sums = np.arange(-9, 10)[:, None]
    >>> bool((small.of(sums) == wide.of(sums)).all())
    True
    >>> bool((np.abs(small.multipliers * sums) < 2**31).all())
    True
    """
    steps = operation.threshold()
    conditions = _conditions(steps.thresholds, steps.directions, operation.low, low, high)
    slope = np.abs(operation.multipliers) / 2.0**operation.shift
    found = _rounded(slope, steps.directions, conditions, max(-low, high, 1), bits=31)
    return (
        None if found is None else Requantize(operation.name, operation.source, *found, operation.low, operation.high)
    )


class _Conditions(NamedTuple):
    """At these places the line must be at least, and below, the level beside them, where it must at all."""

    levels: np.ndarray
    least_x: np.ndarray
    below_x: np.ndarray
    is_least: np.ndarray
    is_below: np.ndarray


def _conditions(thresholds: np.ndarray, directions: np.ndarray, first: int, low: int, high: int) -> _Conditions:
    """One pair for each step within the range; those that are always or never taken have one of an end."""
    rising = directions > 0
    ends = np.where(rising, low, -high)[:, None], np.where(rising, high, -low)[:, None]  # of direction * s
    cuts = thresholds.astype(np.int64)
    within = (cuts > ends[0]) & (cuts <= ends[1])
    return _Conditions(
        levels=np.broadcast_to(first + 1 + np.arange(cuts.shape[1]), cuts.shape),
        least_x=np.where(within, cuts, ends[0]),
        below_x=np.where(within, cuts - 1, ends[1]),
        is_least=within | (cuts <= ends[0]),
        is_below=within | (cuts > ends[1]),
    )


def _rounded(
    slope: np.ndarray, directions: np.ndarray, conditions: _Conditions, most: int, bits: int
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Integers for lines of this slope that meet all conditions; |m s| + |b| < 2^bits for |s| up to `most`."""
    levels, least_x, below_x, is_least, is_below = conditions
    steepest = max(float(slope.max()), 2.0**-9)
    farthest = most * steepest + np.abs(levels).max() + 1  # in levels, and offsets are no larger
    shift = min(Requantize.MOST_SHIFT, int(np.floor(np.log2(_MOST / steepest))), int(bits - 1 - np.log2(farthest)))
    if shift < Requantize.OFFSET_BITS:
        return None
    multipliers = np.rint(slope * 2.0**shift).astype(np.int64)
    units, part = levels.astype(np.int64) << shift, 1 << (shift - Requantize.OFFSET_BITS)
    smallest = np.where(is_least, units - multipliers[:, None] * least_x, np.iinfo(np.int64).min).max(1)
    largest = np.where(is_below, units - multipliers[:, None] * below_x - 1, np.iinfo(np.int64).max).min(1)
    offsets = np.where(is_least.any(1), -(-smallest // part), largest // part)
    fits = (offsets * part >= smallest) & (offsets * part <= largest)
    if not fits.all() or multipliers.max() > _MOST or np.abs(offsets).max() > _MOST:
        return None
    if multipliers.max() * most + np.abs(offsets).max() * part >= 1 << bits:
        return None
    return np.where(directions > 0, multipliers, -multipliers), offsets, shift
