"""Elementwise arithmetic, block by block, so that its temporaries stay in the processor's cache.

A formula of ten elementwise operations reads and writes a large tensor ten times. On a CPU it is several times faster
to run all ten on one block after another, and the only memory it needs besides the result is a few blocks. Where a
compiler fuses the formula, or on an accelerator, the whole tensor is one block.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Floats in a block: 1 MiB, which with the formula's temporaries fits the second-level cache of today's cores and
# is long enough that the call of an operation costs little beside its work.
BLOCK = 2**18


def blockwise(function: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    """Value of the elementwise `function(x, *others)`; all tensors have the shape of `x`, the result its layout."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() <= BLOCK:
        return function(x, *others)
    order = sorted(range(x.ndim), key=lambda dim: -x.stride(dim))
    flat = [tensor.permute(order) for tensor in (x, *others)]
    result = torch.empty_like(x)
    out = result.permute(order)
    if not all(tensor.is_contiguous() for tensor in (*flat, out)):  # gaps, overlaps, or layouts that differ
        return function(x, *others)
    blocks = [tensor.view(-1).split(BLOCK) for tensor in (*flat, out)]
    for *arguments, block in zip(*blocks, strict=True):
        block.copy_(function(*arguments))
    return result
