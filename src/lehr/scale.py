"""The scale with which a quantizer fits given values best, in the least squared error.

The scale of weights may be any number, since it multiplies sums that are finished. The scale of activations is a power
of two unless asked otherwise: then every sum is one of integers times a power of two, which float32 adds without
rounding, and the frozen network equals the trained one by construction.

>>> import torch, lehr
>>> weight = torch.tensor([[-0.5, 0.0, 0.5, 0.6]])
>>> round(fit_scale(weight, lehr.Quantizer()).item(), 4)
0.5333
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lehr.quantizer import AbstractQuantizer

SAMPLE = 2**16  # so many values fit a scale as well as millions do
_EXPONENTS = 12  # powers of two that are tried below the one that reaches the largest value


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

    columns = max(SAMPLE // len(rows), 128)
    stride = -(-rows.shape[1] // columns)
    sample = rows[:, ::stride].double()
    for fraction in torch.logspace(-2, 0.3, 128, dtype=torch.float64).tolist():
        consider(consider(unit * fraction))
    if stride > 1:
        _, scale = levels_and_bottom(rows.double(), scale)
    return scale.to(weight.dtype).reshape(shape)


@torch.no_grad()
def fit_power_of_two(values: Tensor, quantizer: AbstractQuantizer) -> float:
    """The power of two that minimises |x - scale σ(x / scale)|² over all values; 1 if they are all 0."""
    largest = max(abs(level) for level in quantizer.levels)
    reach = values.abs().max().item()
    if not math.isfinite(reach):
        raise ValueError("an activation is not finite: see that the weights and the data are")
    if reach == 0:
        return 1.0
    top = math.ceil(math.log2(reach / largest)) + 1
    scales = [2.0**exponent for exponent in range(top, top - _EXPONENTS, -1)]
    errors = [(values - scale * quantizer.step(values / scale)).square().sum().item() for scale in scales]
    return scales[errors.index(min(errors))]
