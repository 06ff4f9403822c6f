"""Ternary Weight Networks (Li et al. 2016, arXiv 1605.04711): weights at -α, 0 and +α, float activations.

The threshold of a layer with weights W is Δ = 0.7 E|W|, which nearly minimises |W - α W^t|² for uniform or normal
weights; the scale is the mean size of the weights above it (Section 2.3, eq. 5 and 6)::

    w^t = +1 if w >= Δ,  0 if -Δ <= w < Δ,  -1 if w < -Δ        α = E[|w| : |w| > Δ]

Both are fitted again after each step. The gradient of α w^t passes unchanged to the shadow weight w (Section 2.4, as in
BinaryConnect): the straight-through estimator, without bounds.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> conversion = TWN().convert_(model)
>>> model[0].quantized_weight.unique().numel()
3
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lehr.algorithms.algorithm import Algorithm, quantized_layers
from lehr.algorithms.description import FLOATS, STRAIGHT_THROUGH, Description, becomes, end_layers
from lehr.convert import Conversion, quantize_
from lehr.multistep import MultiStep
from lehr.quantizer import AbstractQuantizer, gradient_of

_TINY = 1e-12  # for weights that are all 0, which have no scale


class ThresholdTernary(AbstractQuantizer):
    """scale * ternary(x) with thresholds at +-threshold; both are fitted to the weights, and dy/dx = 1."""

    scale: Tensor  # pyright: ignore[reportIncompatibleVariableOverride] - there always is one
    threshold: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.step = MultiStep.ternary()
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("threshold", torch.full((), 0.5))

    @torch.no_grad()
    def fit_(self, weight: Tensor, ratio: float) -> None:
        """Set the threshold to `ratio` E|w| and the scale to E[|w| : |w| > threshold]."""
        size = weight.abs()
        self.threshold.copy_(ratio * size.mean()).clamp_(min=_TINY)
        above = size > self.threshold
        self.scale.copy_((size * above).sum() / above.sum().clamp(min=1)).clamp_(min=_TINY)

    def forward(self, x: Tensor) -> Tensor:
        """Quantize."""
        return self.step(x / (2 * self.threshold)) * self.scale + gradient_of(x)

    @torch.no_grad()
    def codes(self, x: Tensor) -> Tensor:
        """Return the index of each value's level."""
        return self.step.codes(x / (2 * self.threshold))

    def extra_repr(self) -> str:
        """Return levels, threshold and scale."""
        return f"{self.step.levels} at +-{self.threshold:.4g}, scale={self.scale:.4g}"


@dataclass(frozen=True)
class TWN(Algorithm):
    """Ternary weights with one scale per layer.

    Args:
        threshold: Δ / E|w|.
        first: quantize the first layer.
        last: quantize the last layer.
    """

    threshold: float = 0.7
    first: bool = True
    last: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.threshold < math.inf:
            raise ValueError(
                f"threshold, a multiple of the mean size of the weights, must be positive, got {self.threshold}"
            )

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description(
            "TWN",
            "",
            "-α, 0, α",
            FLOATS,
            end_layers(self.first, self.last),
            estimator=STRAIGHT_THROUGH,
            becomes=becomes(weights=True, activations=False),
        )

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Quantize the weights; the shadow weights are kept."""
        conversion = quantize_(
            model,
            weights=ThresholdTernary(),
            activations=None,
            skip_first=not self.first,
            skip_last=not self.last,
            scale="fixed",
        )
        self.after_step_(model)
        return conversion

    def after_step_(self, model: nn.Module) -> None:
        """Fit thresholds and scales to the new weights."""
        for _, layer in quantized_layers(model):
            if isinstance(layer.quantizer, ThresholdTernary):
                layer.quantizer.fit_(layer.weight, self.threshold)
