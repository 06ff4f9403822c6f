"""Additive Noise Annealing (the paper; Algorithm 1).

Weights and activations pass through multi-step functions under noise. The recipe's schedule anneals the forward noise
to 0; the backward noise stays (asynchronous) or follows it (synchronous). Without forward noise it is the
straight-through estimator, for which recipes use `Estimated`.

>>> import torch, lehr
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> ANA(noise="normal", std=0.3).convert_(model) is not None
True
>>> model[1]
Quantizer((-1, 0, 1) at (-0.5, 0.5), forward=Normal(std=0.3), backward=Normal(std=0.3))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from lehr.algorithms.algorithm import Algorithm, check_choices, clip_
from lehr.algorithms.description import Description
from lehr.algorithms.estimated import NOISES, STEPS, check_clip, check_learns, convert_under_, describe_estimators
from lehr.convert import Conversion, Scale
from lehr.estimator import Estimator, Mode
from lehr.noise import Dirac
from lehr.precision import Precision, step_of

NoiseName = Literal["uniform", "triangular", "normal", "logistic"]
StepName = Literal["ternary", "sign"]


@dataclass(frozen=True)
class ANA(Algorithm):
    """Multi-step functions under noise, on weights and activations.

    Args:
        noise: the kind of the forward noise.
        std: its standard deviation at the start of training; 0 is the straight-through estimator.
        backward_noise: the kind of the backward noise; default: that of the forward noise.
        backward_std: the standard deviation of the backward noise; default: that of the forward noise.
        mode: how values are computed under the forward noise, see `lehr.Estimator`.
        weights: the multi-step function of the weights.
        activations: the multi-step function of the activations.
        scale: fit the scale of each weight quantizer to the weights, per "tensor" or "channel", or keep it at 1
            ("fixed", as in the paper); None is "fixed" for a new network and "channel" for a trained one, whose small
            weights would otherwise all become 0.
        clip: clip the shadow weights to +-clip after each step, in units of the scale; weights with more levels than
            -1, 0, 1 as far beyond their last level; None: do not.
        first: quantize the first layer.
        last: quantize the last layer.
        noisy: which quantizers have forward noise; the others are hard from the start.
        sums: the precision of what is added, as in `quantize_`: a word such as "8bit", or "float".
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
    sums: str = "8bit"

    def __post_init__(self) -> None:
        check_choices(self)
        check_clip(self.clip)
        step_of(self.sums)  # ValueError for what is no precision
        for estimator in self.estimators:
            check_learns(estimator)

    @property
    def estimators(self) -> tuple[Estimator, Estimator]:
        """The estimators of weights and activations at the start of training."""
        weights = self._estimator(self.weights, 0 if self.noisy == "activations" else self.std)
        return weights, self._estimator(self.activations, 0 if self.noisy == "weights" else self.std)

    def describe(self) -> Description:
        """Return the row of ANA, or of the straight-through estimator if there is no forward noise."""
        return describe_estimators(*self.estimators, ends=(self.first, self.last))

    @property
    def takes_rules(self) -> bool:
        """Precisions by path have the noise of the rest."""
        return True

    def convert_(
        self, model: nn.Module, *, trained: bool = False, rules: Mapping[str, Precision] | None = None
    ) -> Conversion:
        """Quantize in place; initialise weights that are not `trained` around the thresholds, as in the paper."""
        ends = self.first, self.last
        return convert_under_(
            model, *self.estimators, self.scale, trained=trained, ends=ends, sums=self.sums, rules=rules
        )

    def after_step_(self, model: nn.Module) -> None:
        """Clip the shadow weights."""
        if self.clip is not None:
            clip_(model, self.clip)

    def _estimator(self, step: StepName, std: float) -> Estimator:
        forward = Dirac() if std == 0 else NOISES[self.noise](std)
        backward_std = self.std if self.backward_std is None else self.backward_std
        return Estimator(STEPS[step], forward, NOISES[self.backward_noise or self.noise](backward_std), self.mode)
