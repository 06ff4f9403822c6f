"""Checks of the constants of operations: ValueError names the operation, what it got and what would be right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Pair = tuple[int, int]  # (rows, columns)

_LARGEST = 2**20 - 1  # kernel, stride, padding or dilation


def frozen(array: Any, dtype: type[np.generic]) -> np.ndarray:
    """Return a copy that cannot be written to."""
    copy = np.array(array, dtype=dtype, order="C")
    copy.flags.writeable = False
    return copy


def finite(name: str, what: str, array: Any) -> np.ndarray:
    """Return a float32 copy that cannot be written to; ValueError if it holds NaN or infinity."""
    array = frozen(array, np.float32)
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: {what} are finite float32")
    return array


def as_float32(name: str, what: str, number: float) -> float:
    """The float32 next to a number; ValueError for one that is beyond them all."""
    if math.isfinite(number) and abs(number) > float(np.finfo(np.float32).max):
        raise ValueError(f"{name}: {what} are float32, at most 3.4e38, got {number}")
    return float(np.float32(number))


def check_range(name: str, what: str, array: np.ndarray, low: int, high: int) -> None:
    """Raise ValueError if an entry lies outside low..high."""
    if array.size and (array.min() < low or array.max() > high):
        raise ValueError(f"{name}: {what} lie in {low}..{high}, got {array.min()}..{array.max()}")


def checked_pair(name: str, what: str, pair: Sequence[int], low: int) -> Pair:
    """Return rows and columns of a kernel, stride, padding or dilation; ValueError outside low..2^20 - 1."""
    rows, columns = (int(x) for x in pair)
    if min(rows, columns) < low or max(rows, columns) > _LARGEST:
        raise ValueError(f"{name}: {what} is {low} to {_LARGEST} for rows and columns, got {tuple(pair)}")
    return rows, columns


def short(items: Sequence[object]) -> str:
    """The first eight items, for a message."""
    text = ", ".join(map(str, items[:8]))
    return f"({text}{', ...' if len(items) > 8 else ''})"
