"""Additive Noise Annealing (the paper; Algorithm 1).

Weights and activations pass through multi-step functions under noise; the forward noise is annealed away by the
recipe's schedule, the backward noise stays (asynchronous) or follows it (synchronous). Without forward noise it is the
straight-through estimator, which recipes name as such (`Estimated`).

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

from lehr.algorithms.algorithm import Algorithm, check_choices, clip_
from lehr.algorithms.description import Description
from lehr.algorithms.estimated import NOISES, STEPS, check_clip, check_learns, convert_under_, describe_estimators
from lehr.convert import Conversion, Scale
from lehr.estimator import Estimator, Mode
from lehr.noise import Dirac

NoiseName = Literal["uniform", "triangular", "normal", "logistic"]
StepName = Literal["ternary", "sign"]


@dataclass(frozen=True)
class ANA(Algorithm):
    """Multi-step functions under noise, on weights and activations.

    Args:
        noise: the kind of the forward noise.
        std: its standard deviation as training begins; 0 is the straight-through estimator.
        backward_noise: the kind of the backward noise; that of the forward noise unless given.
        backward_std: the standard deviation of the backward noise; that of the forward noise unless given.
        mode: what becomes of the forward noise, see `lehr.Estimator`.
        weights: the multi-step function of the weights.
        activations: the multi-step function of the activations.
        scale: fits each weight quantizer's scale to the weights, per "tensor" or "channel", or keeps it at 1 ("fixed",
            as the paper does); None is "channel" for a network that comes trained, whose small weights would all fall
            to 0 otherwise, and "fixed" for a new one.
        clip: keeps the shadow weights within +-clip after each step, in units of the scale; None leaves them free.
        first: whether the first layer is quantized too.
        last: whether the last layer is.
        noisy: "weights" or "activations" gives forward noise to these alone; the others are hard from the beginning.
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
        check_clip(self.clip)
        for estimator in self.estimators:
            check_learns(estimator)

    @property
    def estimators(self) -> tuple[Estimator, Estimator]:
        """Of the weights and of the activations, as training begins."""
        weights = self._estimator(self.weights, 0 if self.noisy == "activations" else self.std)
        return weights, self._estimator(self.activations, 0 if self.noisy == "weights" else self.std)

    def describe(self) -> Description:
        """ANA, or the straight-through estimator without forward noise."""
        return describe_estimators(*self.estimators, ends=(self.first, self.last))

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Quantize in place; weights that are not `trained` start around the thresholds, as in the paper."""
        return convert_under_(model, *self.estimators, self.scale, trained=trained, ends=(self.first, self.last))

    def after_step_(self, model: nn.Module) -> None:
        """Clip the shadow weights."""
        if self.clip is not None:
            clip_(model, self.clip)

    def _estimator(self, step: StepName, std: float) -> Estimator:
        forward = Dirac() if std == 0 else NOISES[self.noise](std)
        backward_std = self.std if self.backward_std is None else self.backward_std
        return Estimator(STEPS[step], forward, NOISES[self.backward_noise or self.noise](backward_std), self.mode)
