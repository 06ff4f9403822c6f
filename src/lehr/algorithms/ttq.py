"""Trained Ternary Quantization (Zhu et al., ICLR 2017): weights at -W^n, 0 and +W^p, with two learned scales a layer.

The threshold of a layer is Δ = t max|w| (eq. 9), from its shadow weights w (eq. 6)::

    w^t = +W^p if w >= Δ,  0 if -Δ <= w < Δ,  -W^n if w < -Δ

With g the gradient of w^t, the gradients of the scales are sums of g over their weights (eq. 7; the paper prints the
second without its sign), and those of the shadow weights are scaled (eq. 8)::

    dL/dW^p = Σ_{w >= Δ} g,   dL/dW^n = -Σ_{w < -Δ} g,   dL/dw = W^p g,  g  or  W^n g  in the three cases

The scales start at the mean size of their weights. Activations stay floats.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> conversion = TTQ().convert_(model)
>>> sorted(name for name, _ in model[0].named_parameters())
['bias', 'quantizer.negative.relative', 'quantizer.positive.relative', 'weight']
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lehr.algorithms.algorithm import Algorithm, quantized_layers
from lehr.algorithms.description import FLOATS, Description, becomes, end_layers
from lehr.algorithms.learned_scale import LearnedScale
from lehr.convert import Conversion, quantize_
from lehr.multistep import MultiStep
from lehr.quantizer import AbstractQuantizer, gradient_of

_TINY = 1e-12  # for weights that are all 0


class TrainedTernary(AbstractQuantizer):
    """`positive` for x >= threshold, -`negative` for x < -threshold, 0 between."""

    threshold: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.step = MultiStep.ternary()
        self.scale = None
        self.positive = LearnedScale()
        self.negative = LearnedScale()
        self.register_buffer("threshold", torch.full((), 0.5))

    @torch.no_grad()
    def start_(self, weight: Tensor, share: float) -> None:
        """Initialise each scale as the mean size of its weights."""
        self.follow_(weight, share)
        for scale, sign in ((self.positive, 1), (self.negative, -1)):
            above = sign * weight > self.threshold
            scale.start_((sign * weight * above).sum() / above.sum().clamp(min=1))

    @torch.no_grad()
    def follow_(self, weight: Tensor, share: float) -> None:
        """Set the threshold to `share` of the largest weight, and keep the scales positive."""
        self.threshold.copy_(share * weight.abs().max()).clamp_(min=_TINY)
        self.positive.keep_positive_()
        self.negative.keep_positive_()

    @property
    def levels(self) -> tuple[float, ...]:
        """The learned levels."""
        return (-self.negative.value.item(), 0.0, self.positive.value.item())

    def forward(self, x: Tensor) -> Tensor:
        """Quantize; the gradients are eq. 7 and 8."""
        sign = self.step(x / (2 * self.threshold))
        above, below = (sign > 0).to(x.dtype), (sign < 0).to(x.dtype)
        slope = above * self.positive.value + below * self.negative.value + (sign == 0)
        return above * self.positive() - below * self.negative() + slope * gradient_of(x)

    @torch.no_grad()
    def codes(self, x: Tensor) -> Tensor:
        """Return the index of each value's level."""
        return self.step.codes(x / (2 * self.threshold))

    def extra_repr(self) -> str:
        """Return the levels and the threshold."""
        return f"({', '.join(f'{level:.4g}' for level in self.levels)}) at +-{self.threshold:.4g}"


@dataclass(frozen=True)
class TTQ(Algorithm):
    """Ternary weights with two learned scales per layer.

    Args:
        threshold: t = Δ / max|w|.
        first: quantize the first layer.
        last: quantize the last layer.
    """

    threshold: float = 0.05
    first: bool = True
    last: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold, a share of the largest weight, must be between 0 and 1, got {self.threshold}")

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description(
            "TTQ",
            "",
            "-Wⁿ, 0, Wᵖ",
            FLOATS,
            end_layers(self.first, self.last),
            estimator="straight-through, times the scale of the level",
            becomes=becomes(weights=True, activations=False),
        )

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Quantize the weights; the shadow weights are kept."""
        conversion = quantize_(
            model,
            weights=TrainedTernary(),
            activations=None,
            skip_first=not self.first,
            skip_last=not self.last,
            scale="fixed",
        )
        for quantizer, weight in _trained(model):
            quantizer.start_(weight, self.threshold)
        return conversion

    def after_step_(self, model: nn.Module) -> None:
        """Fit the thresholds to the new weights."""
        for quantizer, weight in _trained(model):
            quantizer.follow_(weight, self.threshold)


def _trained(model: nn.Module) -> list[tuple[TrainedTernary, Tensor]]:
    layers = (layer for _, layer in quantized_layers(model))
    return [(layer.quantizer, layer.weight) for layer in layers if isinstance(layer.quantizer, TrainedTernary)]
