"""Find the position of each element of a tensor among sorted places, faster than by binary search.

A grid of equal cells covers the places. One multiplication gives the cell of x, which stores the number of places in
the cells before it; the few places in the cell itself are compared with x one by one.

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

_MOST_CELLS = 2**14  # 64 KiB: the grid fits the cache together with a block of x
_MOST_ROUNDS = 4  # more comparisons within a cell are slower than binary search


@dataclass(frozen=True)
class Places:
    """Sorted places and the grid over them."""

    places: Tensor  # with NaN after the last, since no x, not even infinity, is >= NaN
    low: float  # below the first place
    high: float  # the last place
    before: Tensor  # for each cell, the number of places in the cells before it
    per_unit: float  # cells per unit of length
    rounds: int  # comparisons needed within a cell; 0: too many, use binary search

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
        """Return the cell of x; it is monotonic in x, even with rounding, so only this cell's places are compared."""
        at = x.clamp(self.low, self.high).sub_(self.low).mul_(self.per_unit)
        return at.to(torch.int32).clamp_(0, len(self.before) - 1)  # NaN became an arbitrary integer


@functools.lru_cache(maxsize=256)
def search(places: tuple[float, ...], dtype: torch.dtype) -> Places:
    """Return a grid over the places: cells are halved until each holds one place or the grid is too large."""
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
    """Return the numbers as a tensor on the device; cached, since a copy at each call would wait for the device."""
    return torch.tensor(numbers, dtype=dtype, device=device)
