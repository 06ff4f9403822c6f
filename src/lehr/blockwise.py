"""Elementwise arithmetic, block by block, so that its temporaries stay in the processor's cache.

A formula of ten elementwise operations reads and writes a large tensor ten times. On a CPU it is several times faster
to run all ten on one block after another, and the only memory it needs besides the result is a few blocks. Where a
compiler fuses the formula, or on an accelerator, the whole tensor is one block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

# Floats in a block: 512 KiB, which with the formula's temporaries fits the second-level cache of today's cores and is
# long enough that the call of an operation costs little beside its work.
BLOCK = 2**17


def blockwise(function: Callable[..., Tensor], x: Tensor, *others: Any) -> Tensor:
    """Value of the elementwise `function(x, *others, out)`, in the shape, dtype and layout of `x`.

    `others` are numbers, or tensors that broadcast over `x`. `function` writes into `out`, a block of the result, and
    returns it; if `out` is None it makes its own.
    """
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() <= BLOCK:
        return function(x, *others, out=None)
    result = torch.empty_like(x)
    aligned = [
        other.reshape((1,) * (x.ndim - other.ndim) + other.shape) if isinstance(other, Tensor) else other
        for other in others
    ]
    for out, *arguments in _blocks(result, x, *aligned):
        function(*arguments, out=out)
    return result


def _blocks(largest: Tensor, *others: Any) -> Iterator[tuple[Any, ...]]:
    """Cut along the dimension that lies farthest apart in memory until a block is small enough."""
    if largest.numel() <= BLOCK:
        yield largest, *others
        return
    dim = max(range(largest.ndim), key=lambda dim: (largest.size(dim) > 1, largest.stride(dim)))
    size = max(1, BLOCK * largest.size(dim) // largest.numel())
    parts = [
        other.split(size, dim) if isinstance(other, Tensor) and other.size(dim) > 1 else itertools.repeat(other)
        for other in others
    ]
    for block in zip(largest.split(size, dim), *parts):  # noqa: B905 - a repeated argument has no end
        yield from _blocks(*block)
