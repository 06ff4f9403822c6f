"""A step function of many even levels as one product, sum and shift per channel, where that is exactly the same.

The thresholds of a uniform quantizer behind BatchNorm lie on a line: level y is reached from x = t_y on. So

    floor((m x + b) / 2^h) >= y  exactly where  x >= t_y,   if   m t_y + b >= y 2^h  and  m (t_y - 1) + b < y 2^h

for every level y. These are linear in m and b, and there are few of them, one pair for each step within the range of x.
`line` looks for the slope that keeps furthest from all of them, rounds it to an integer, and tests every one of them in
integers: what it returns equals the thresholds for every x in the range. Thresholds that float32 has moved off the line
have no such m and b, and stay thresholds.

>>> line(np.array([[-3, 0, 4, 7]]), np.array([1]), first=-2, low=-9, high=9)
(array([1227133513]), array([1]), 32)
"""

from __future__ import annotations

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
    channels, count = thresholds.shape
    rising = directions > 0
    ends = np.where(rising, low, -high)[:, None], np.where(rising, high, -low)[:, None]  # of direction * s
    cuts = thresholds.astype(np.int64)
    levels = np.broadcast_to(first + 1 + np.arange(count), cuts.shape)
    within = (cuts > ends[0]) & (cuts <= ends[1])
    always, never = cuts <= ends[0], cuts > ends[1]
    # At these places the line must be at least, and below, the level beside them; where always or never, at an end.
    least_x, below_x = np.where(within, cuts, ends[0]), np.where(within, cuts - 1, ends[1])
    is_least, is_below = within | always, within | never

    def room(slope: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How far apart both kinds of conditions are for lines of this slope, and the places that say so."""
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
    slope = (start + end) / 2
    steepest = max(float(slope.max()), 2.0**-9)
    farthest = max(-low, high, 1) * steepest + np.abs(levels).max() + 1  # in levels; products stay below 2^51
    shift = min(Requantize.MOST_SHIFT, int(np.floor(np.log2(_MOST / steepest))), int(50 - np.log2(farthest)))
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
    return np.where(rising, multipliers, -multipliers), offsets, shift
