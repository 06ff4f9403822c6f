"""Find where each element of a tensor lies among sorted places, faster than by binary search.

A grid of equal cells covers the places. The cell of x is one multiplication; it tells how many places lie in the cells
before it, and the few places in the cell itself are compared with x one by one.

>>> search((0.0, 0.5, 2.0), torch.float32).find(torch.tensor([-1.0, 0.5, 1.9, 7.0])).tolist()
[0, 2, 2, 3]
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_CELLS = 2**14  # 64 KiB: the grid stays in the cache beside a block of x
_MOST_ROUNDS = 4  # more comparisons within a cell are slower than binary search


@dataclass(frozen=True)
class Places:
    """Sorted places and the grid over them."""

    places: Tensor  # and NaN behind the last, which no x is above, infinity neither
    low: float  # below the first place
    high: float  # the last place
    before: Tensor  # for each cell, the number of places in the cells before it
    per_unit: float  # cells per unit of length
    rounds: int  # comparisons that decide within a cell; 0: too many, use binary search

    def find(self, x: Tensor) -> Tensor:
        """Return how many places are <= each x; for NaN, any number."""
        if not self.rounds:
            return torch.bucketize(x, self.places[:-1], right=True, out_int32=True)
        index, buffer = self.cell(x), torch.empty_like(x)
        count = self.before.index_select(0, index)
        for _ in range(self.rounds):
            torch.index_select(self.places, 0, index.copy_(count), out=buffer)
            count.add_(torch.ge(x, buffer, out=buffer))
        return index.copy_(count)

    def cell(self, x: Tensor) -> Tensor:
        """Return the cell of x: monotonic in x, rounding included, so only the places of its own cell are open."""
        at = x.clamp(self.low, self.high).sub_(self.low).mul_(self.per_unit)
        return at.to(torch.int32).clamp_(0, len(self.before) - 1)  # NaN has become any integer


@functools.lru_cache(maxsize=256)
def search(places: tuple[float, ...], dtype: torch.dtype) -> Places:
    """Return the finest grid that is worth its memory: cells are halved until one comparison decides in each."""
    at = torch.tensor(places, dtype=dtype)
    low, high = at[0].nextafter(at.new_tensor(-math.inf)).item(), at[-1].item()
    count, found = 4 * len(places), None
    while found is None or (found.rounds > 1 and count <= _MOST_CELLS):
        per_unit = count / max(high - low, torch.finfo(dtype).tiny)
        trial = Places(at, low, high, torch.zeros(count + 2, dtype=dtype), per_unit, 0)
        filled = torch.bincount(trial.cell(at), minlength=count + 2)
        rounds = int(filled.max())
        if found is None or rounds < found.rounds:
            found = dataclasses.replace(trial, before=(filled.cumsum(0) - filled).to(dtype), rounds=rounds)
        count *= 2
    rounds = found.rounds if found.rounds <= _MOST_ROUNDS else 0
    return dataclasses.replace(found, places=torch.cat([at, at.new_tensor([math.nan])]), rounds=rounds)


@functools.lru_cache(maxsize=256)
def table(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return the numbers as a tensor on the device, made once: copying them at each call would wait for the device."""
    return torch.tensor(numbers, dtype=dtype, device=device)
