"""How large a network of Theorem 1 is: known before it is built, and refused if it does not fit in memory.

For a distance of ε the proof cuts each axis into n >= 2 √n0 S λ / ε parts. n is computed in exact arithmetic, and the
bound includes the rounding of the network's floating point numbers.

>>> plan = size(lipschitz=1, dimension=2, epsilon=0.1)
>>> plan.n, plan.N, plan.bound <= 0.1 / 4
(29, 841, True)
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import torch


@dataclass(frozen=True)
class Size:
    """The size of a network of Theorem 1: n cubes on each axis, N = n^dimension in all, and its certified bound."""

    dimension: int
    n: int
    bound: float

    @property
    def N(self) -> int:
        """The number of cubes."""
        return self.n**self.dimension

    @property
    def dense_weights(self) -> int:
        """The number of weights of the proof's three layers, with zeros: 2 n0 N x n0, N x 2 n0 N and 1 x N."""
        return 2 * self.dimension**2 * self.N + 2 * self.dimension * self.N**2 + self.N


def size(
    *,
    lipschitz: float,
    dimension: int,
    epsilon: float,
    side: float = 1.0,
    tight: bool = False,
    dtype: torch.dtype | None = None,
) -> Size:
    """Return the size of the network that `approximate` builds with the same arguments, without building it.

    >>> size(lipschitz=1, dimension=10, epsilon=0.01).N
    10328496345223305728741182449
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"the network computes in torch.float32 or torch.float64, got {dtype}")
    if dimension < 1:
        raise ValueError(f"dimension must be at least 1, got {dimension}")
    for name, value in (("side", side), ("epsilon", epsilon)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")
    if not 0 <= lipschitz < math.inf:
        raise ValueError(f"lipschitz must be finite and not negative, got {lipschitz}")
    limits = torch.finfo(dtype)
    if not limits.tiny / limits.eps <= side <= limits.max / 2:
        raise ValueError(f"side {side:g} is out of the range of {dtype}")

    # The smallest n with n >= 2 √n0 S λ / ε, or a quarter of that, in exact arithmetic: n² >= r is n² >= ceil(r).
    steepness = _written(side) * _written(lipschitz)
    ratio = dimension * (steepness * (Fraction(1, 2) if tight else 2) / _written(epsilon)) ** 2
    if tight and ratio:  # leave room for the rounding in the bound below
        rounding = 8 * Fraction(limits.eps) * (math.isqrt(math.ceil(ratio)) + 1)
        ratio = ratio / (1 - rounding) ** 2 if rounding < 1 else ratio
    n = max(1, math.isqrt(max(0, math.ceil(ratio) - 1)) + 1)
    if 16 * n * limits.eps > 1:
        finer = "torch.float64 or " if dtype == torch.float32 else ""
        raise ValueError(
            f"{dtype} cannot tell the faces of {_large(n)} cubes on an axis apart: use {finer}a larger epsilon"
        )
    # Rounding moves a threshold and a centre by at most a unit in the last place of S each.
    half = Fraction(1, 2 * n) + 2 * Fraction(limits.eps)
    return Size(dimension, n, math.sqrt(dimension) * float(steepness * half) * (1 + 2**-50))


def _written(number: float) -> Fraction:
    return Fraction(repr(float(number)))  # 0.3 means 3/10, so that n does not become 21 instead of 20


def check_memory(plan: Size, dtype: torch.dtype) -> None:
    """Raise MemoryError if the values and their differences, which `approximate` checks, do not fit in memory."""
    cubes = f"n = {plan.n:,} cubes on each axis, N = n^{plan.dimension} = {_large(plan.N)} in all"
    refuse_beyond_memory(cubes, 2 * plan.N, dtype)


def refuse_beyond_memory(what: str, numbers: int, dtype: torch.dtype) -> None:
    """Raise MemoryError if so many numbers do not fit in memory; `what` is the subject of the message."""
    needed, there = numbers * torch.finfo(dtype).bits // 8, _physical_memory()
    if needed > there:
        raise MemoryError(
            f"{what} need {_large(needed // 2**30)} GiB of memory, but this machine has {there // 2**30}: "
            f"use a larger epsilon or fewer dimensions"
        )


def _large(number: int) -> str:
    return f"{number:,}" if number < 10**30 else f"{Decimal(number):.3e}"


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 8 * 2**30
