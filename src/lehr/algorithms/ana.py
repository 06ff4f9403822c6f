"""Additive Noise Annealing (the paper; Algorithm 1), and the straight-through estimator as its special case.

Weights and activations pass through multi-step functions under noise; the forward noise is annealed away by the
recipe's schedule, the backward noise stays (asynchronous) or follows it (synchronous). STE is ANA without forward noise
(Corollary 1 for sign; the same for any other multi-step function).

>>> import torch, lehr
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> ANA(noise="normal", std=0.3).convert_(model) is not None
True
>>> model[1]
Quantizer((-1, 0, 1) at (-0.5, 0.5), forward=Normal(std=0.3), backward=Normal(std=0.3))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import nn

from lehr.algorithms.algorithm import Algorithm, check_choices, clip_, quantized_layers
from lehr.convert import Conversion, Scale, quantize_
from lehr.expectation import Mode
from lehr.layers import Quantizer
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Logistic, Noise, Normal, Triangular, Uniform

NOISES: dict[str, type[Noise]] = {
    "uniform": Uniform,
    "triangular": Triangular,
    "normal": Normal,
    "logistic": Logistic,
}
STEPS = {"ternary": MultiStep.ternary(), "sign": MultiStep.sign()}
NoiseName = Literal["uniform", "triangular", "normal", "logistic"]
StepName = Literal["ternary", "sign"]


@dataclass(frozen=True)
class ANA(Algorithm):
    """Multi-step functions under noise, on weights and activations.

    `std` is the standard deviation of the forward noise when training begins (0: none, the straight-through
    estimator) and `backward_std` that of the backward noise, the same unless given; `backward_noise` its kind,
    likewise. `mode` is how the forward noise is computed with. `clip` keeps the shadow weights within +-clip after
    each step, in units of the scale (None: free). `scale` fits each weight quantizer's scale to the weights, per
    "tensor" or "channel", or keeps it at 1 ("fixed", as the paper does); None is "channel" for a network that comes
    trained, whose small weights would all fall to 0 otherwise, and "fixed" for a new one. `first` and `last` say
    whether those layers are quantized too. `noisy` keeps the forward noise from the weights or from the activations:
    those are hard from the beginning.
    """

    noise: NoiseName = "uniform"
    std: float = math.sqrt(3) / 6
    backward_noise: NoiseName | None = None
    backward_std: float | None = None
    mode: Mode = "expectation"
    weights: StepName = "ternary"
    activations: StepName = "ternary"
    scale: Scale | None = None
    clip: float | None = None
    first: bool = True
    last: bool = True
    noisy: Literal["both", "weights", "activations"] = "both"

    def __post_init__(self) -> None:
        check_choices(self)
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be positive, or None for no clipping, got {self.clip}")
        quantizer = self._quantizer("ternary", self.std)  # complains about a wrong noise now
        if not bool(quantizer.backward_std > 0):
            raise ValueError("without backward noise nothing is learned: give a backward_std above 0")

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Quantize in place; weights that are not `trained` start around the thresholds, as in the paper."""
        conversion = quantize_(
            model,
            weights=self._quantizer(self.weights, 0 if self.noisy == "activations" else self.std),
            activations=self._quantizer(self.activations, 0 if self.noisy == "weights" else self.std),
            skip_first=not self.first,
            skip_last=not self.last,
            scale=self.scale or ("channel" if trained else "fixed"),
        )
        if not trained:
            for _, layer in quantized_layers(model):
                layer.reset_parameters()
        return conversion

    def after_step_(self, model: nn.Module) -> None:
        """Clip the shadow weights."""
        if self.clip is not None:
            clip_(model, self.clip)

    def _quantizer(self, step: StepName, std: float) -> Quantizer:
        forward = Dirac() if std == 0 else NOISES[self.noise](std)
        backward_std = self.std if self.backward_std is None else self.backward_std
        backward = NOISES[self.backward_noise or self.noise](backward_std)
        return Quantizer(STEPS[step], forward, backward, self.mode)
