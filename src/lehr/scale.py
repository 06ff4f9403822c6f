"""Scales that fit what they quantize, with the least squared error.

>>> import torch, lehr
>>> weight = torch.tensor([[-0.5, 0.0, 0.5, 0.6]])
>>> round(fit_scale(weight, lehr.Quantizer()).item(), 4)
0.5333
"""

from __future__ import annotations

import torch
from torch import Tensor

from lehr.layers import AbstractQuantizer

_SAMPLE = 2**16  # so many values fit a scale as well as millions do


@torch.no_grad()
def fit_scale(weight: Tensor, quantizer: AbstractQuantizer, *, per_channel: bool = False) -> Tensor:
    """The scale that minimises |w - scale σ(w / scale)|², of a tensor or of each of its output channels.

    The error is piecewise quadratic in the scale. Tried are 128 candidates, between 1/100 of and twice the scale that
    maps the largest weight to the largest level, and the bottom <w, σ>/<σ, σ> of the parabola each is on. Of many
    weights an even sample is tried, and the bottom is that of all of them. Weights that are all 0 fit any scale and get
    one of order 1, with which they can still grow.
    """
    if not weight.is_meta and not weight.isfinite().all():
        raise ValueError("its weights are not all finite")
    shape = (-1, *[1] * (weight.ndim - 1)) if per_channel else ()
    if not weight.numel():
        return weight.new_ones(len(weight) if per_channel else 1).reshape(shape)
    rows = weight.detach().flatten(1) if per_channel else weight.detach().reshape(1, -1)
    largest = max(abs(level) for level in quantizer.step.levels)
    unit = rows.abs().amax(1, keepdim=True).double() / largest
    unit = unit.masked_fill(unit == 0, 1.0)
    scale, least = unit, torch.full_like(unit, torch.inf)

    def levels_and_bottom(rows: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        levels = quantizer.step(rows / candidate)
        bottom = (rows * levels).sum(1, keepdim=True) / levels.square().sum(1, keepdim=True)
        return levels, torch.where(bottom > 0, bottom, candidate)

    def consider(candidate: Tensor) -> Tensor:
        nonlocal scale, least
        levels, bottom = levels_and_bottom(sample, candidate)
        error = (sample - candidate * levels).square().sum(1, keepdim=True)
        scale = torch.where(error <= least, candidate, scale)
        least = torch.minimum(error, least)
        return bottom

    columns = max(_SAMPLE // len(rows), 128)
    stride = -(-rows.shape[1] // columns)
    sample = rows[:, ::stride].double()
    for fraction in torch.logspace(-2, 0.3, 128, dtype=torch.float64).tolist():
        consider(consider(unit * fraction))
    if stride > 1:
        _, scale = levels_and_bottom(rows.double(), scale)
    return scale.to(weight.dtype).reshape(shape)
