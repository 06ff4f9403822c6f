"""The width of a network: a factor of its numbers of channels."""

from __future__ import annotations

import math


def check_width(width: float) -> None:
    """Raise ValueError unless `width` is positive and finite."""
    if not 0 < width < math.inf:
        raise ValueError(f"width must be positive, got {width}")


def scaled(channels: int, width: float) -> int:
    """Return `channels` times `width`, rounded, at least 1."""
    check_width(width)
    return max(1, round(channels * width))
