"""A linear layer that quantizes a few rows of its weight at a time, which then stay in the processor's cache.

`quantize` followed by a product writes the quantized weight to memory and reads it back, and in the backward pass again
and with its gradient too. With millions of weights and few images, as in AlexNet, this takes longer than the product.
Here rows are quantized, multiplied and forgotten; the backward pass quantizes them once more. This pays off where
quantizing is a single operation, which it is under the paper's noise: a Hardtanh.

The result is that of the whole weight, up to the order in which the products add. `benchmarks/imagenet.py step`
measures the gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.autograd.function import once_differentiable

from lehr import fast
from lehr.estimator import Estimator
from lehr.expectation import quick_form
from lehr.fast_forms import Hardtanh, open_interval
from lehr.multistep import MultiStep
from lehr.noise import Noise

MANY_WEIGHTS, FEW_IMAGES = 2**20, 16  # with fewer weights or more images the product takes most of the time


def is_worthwhile(x: Tensor, weight: Tensor) -> bool:
    """Return whether there are many weights and few images."""
    return (
        isinstance(x, Tensor)  # torch.fx traces with other objects
        and weight.numel() >= MANY_WEIGHTS
        and 0 < x.numel() <= FEW_IMAGES * weight.shape[1]
        and x.shape[-1] == weight.shape[1]
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, estimator: Estimator) -> Tensor | None:
    """Return x times the transposed quantized weight, plus bias; None if it is not a Hardtanh of eager tensors.

    Args:
        x: the input, (..., features).
        weight: (outputs, features).
        bias: (outputs,).
        estimator: of the weight, whose scale is 1.
    """
    if not _is_plain(x, weight) or estimator.mode != "expectation":
        return None
    reaches = [_reach(weight, estimator.step, noise.read()) for noise in (estimator.forward, estimator.backward)]
    if None in reaches:
        return None
    y: Any = _ByRows.apply(x.reshape(-1, x.shape[-1]), weight, *reaches)
    y = y.reshape(*x.shape[:-1], -1)
    return y if bias is None else y + bias


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    """Return whether these are eager tensors of one dtype, of which nobody asks for more than their gradients."""
    return (
        fast.is_readable(x, weight)
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
        and all(unpack_dual(tensor).tangent is None for tensor in (x, weight))
    )


def _reach(weight: Tensor, step: MultiStep, noise: Noise) -> float | None:
    """Return r if the expectation under the noise is Hardtanh on [-r, r], else None."""
    if isinstance(noise.mean, Tensor) or noise.mean != 0:
        return None
    form = quick_form(weight, step, noise)
    return form.reach if isinstance(form, Hardtanh) else None


class _ByRows(torch.autograd.Function):
    """x times the transpose of the weight clamped to +-reach; the gradient passes within +-backward_reach."""

    @staticmethod
    def forward(ctx, x, weight, reach, backward_reach):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x, weight)
        ctx.reach, ctx.backward_reach = reach, backward_reach
        y, columns = x.new_empty(len(weight), len(x)), x.T
        for room, rows, out in _blocks(weight, y):
            torch.mm(torch.clamp(rows, -reach, reach, out=room), columns, out=out)
        return y.T.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        grad, grad_x, grad_weight = grads[0].T.contiguous(), torch.zeros_like(x), torch.empty_like(weight)
        ends = open_interval(-ctx.backward_reach, ctx.backward_reach, weight.dtype)
        for room, rows, above, out in _blocks(weight, grad, grad_weight):
            torch.ops.aten.hardtanh_backward(torch.mm(above, x, out=room), rows, *ends, grad_input=out)
            if ctx.needs_input_grad[0]:
                grad_x.addmm_(above.T, torch.clamp(rows, -ctx.reach, ctx.reach, out=room))
        return grad_x, grad_weight, None, None


def _blocks(weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield room for a few rows, always the same place, and these rows of the weight and of each other tensor."""
    count = max(1, fast.BLOCK // weight.shape[1])
    room = torch.empty_like(weight[:count])
    for rows, *parts in zip(*(tensor.split(count) for tensor in (weight, *others)), strict=True):
        yield room[: len(rows)], rows, *parts
