"""Soft Threshold Ternary Networks (Xu et al., IJCAI 2020; arXiv 2204.01234): a ternary weight is two binary ones.

In training each layer has two shadow weights w and v (its Section 3.2)::

    t = (sign(w) + sign(v)) / 2

so that a weight is 0 where the signs disagree, and no threshold must be chosen. After training, t is an ordinary
ternary weight. Signs have the gradient 1 on [-1, 1], to which shadow weights are clipped; activations are ternary, with
straight-through gradients. The paper's factor α of each filter, the mean size of both shadow weights, is left to the
following BatchNorm; a trained network, which may have none, gets a fitted scale.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> conversion = STTN().convert_(model)
>>> sorted(name for name, _ in model[0].named_parameters())
['bias', 'quantizer.second', 'weight']
>>> set(model[0].quantized_weight.unique().tolist()) <= {-1.0, 0.0, 1.0}
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lehr.algorithms.algorithm import Algorithm, clip_, clip_weight_, quantized_layers
from lehr.algorithms.description import Description, becomes, end_layers
from lehr.convert import Conversion, quantize_
from lehr.estimator import STE
from lehr.expectation import quantize
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Uniform
from lehr.quantizer import AbstractQuantizer, Quantizer

_SIGN = MultiStep.sign()


class SumOfSigns(AbstractQuantizer):
    """scale (sign(x) + sign(second)) / 2, where `second` is a parameter with the shape of x."""

    scale: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.step = MultiStep.ternary()
        self.register_buffer("scale", None)
        self.second = nn.Parameter(torch.empty(0))

    @torch.no_grad()
    def start_(self, weight: Tensor, *, trained: bool) -> None:
        """Initialise the second weight like the first; or, if `trained`, so that each weight gets its nearest level."""
        if trained:
            small = weight.abs() < (0.5 if self.scale is None else 0.5 * self.scale)
            second = torch.where(small, -weight, weight)
            second[weight == 0] = -torch.finfo(weight.dtype).eps  # sign(0) = 1
        else:
            reach = 1 / math.sqrt(max(weight[0].numel(), 1)) if len(weight) else 0.0
            second = torch.empty_like(weight).uniform_(-reach, reach)
        self.second = nn.Parameter(second)

    def forward(self, x: Tensor) -> Tensor:
        """Add the signs, each with its gradient."""
        scale = 1.0 if self.scale is None else self.scale
        one, other = (quantize(w, STE, scale=scale) for w in (x, self.second))
        return (one + other) * 0.5

    @torch.no_grad()
    def codes(self, x: Tensor) -> Tensor:
        """Return the index of each value's level: the number of its positive signs."""
        return _SIGN.codes(x) + _SIGN.codes(self.second)

    def _load_own(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Add or remove the scale, as in the state."""
        saved = state_dict.get(prefix + "scale")
        self.scale = None if saved is None else torch.empty_like(saved, device=self.second.device)

    def extra_repr(self) -> str:
        """Return the levels."""
        return f"{self.levels}, half the sum of two signs"


@dataclass(frozen=True)
class STTN(Algorithm):
    """Sums of two binary weights, and ternary activations.

    Args:
        window: the half-width of the activations' gradient at each threshold.
        first: quantize the first layer.
        last: quantize the last layer.
    """

    window: float = 0.5
    first: bool = True
    last: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.window < math.inf:
            raise ValueError(f"window, a half-width, must be positive, got {self.window}")

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description(
            "STTN",
            weights="-1, 0, 1",
            activations="-1, 0, 1",
            end_layers=end_layers(self.first, self.last),
            estimator="STE for each of the two signs of a weight",
            becomes=becomes(weights=True, activations=True),
        )

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Quantize; the model's weights become the first of the two."""
        conversion = quantize_(
            model,
            weights=SumOfSigns(),
            activations=Quantizer(MultiStep.ternary(), Dirac(), Uniform.half_width(self.window)),
            skip_first=not self.first,
            skip_last=not self.last,
            scale="channel" if trained else "fixed",
            sums=None,  # the paper quantizes no sums
        )
        for quantizer, weight in _sums(model):
            quantizer.start_(weight, trained=trained)
        return conversion

    def after_step_(self, model: nn.Module) -> None:
        """Clip both shadow weights to [-1, 1], in units of the scale."""
        clip_(model, 1.0)
        for quantizer, _ in _sums(model):
            clip_weight_(quantizer.second, 1.0, quantizer.scale)


def _sums(model: nn.Module) -> list[tuple[SumOfSigns, Tensor]]:
    layers = (layer for _, layer in quantized_layers(model))
    return [(layer.quantizer, layer.weight) for layer in layers if isinstance(layer.quantizer, SumOfSigns)]
