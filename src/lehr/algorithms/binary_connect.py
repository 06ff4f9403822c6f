"""BinaryConnect (Courbariaux et al., NIPS 2015): weights at -1 and +1, activations as they are.

The weights pass through sign in forward and backward computations; gradients are added to real-valued shadow weights,
which are clipped to [-1, 1] after each step (Section 2.4, Algorithm 1). Deterministic (eq. 1) it is the
straight-through estimator with U[-1, 1] on weights alone; stochastic (eq. 2, 3), w is +1 with probability
p = clip((w + 1)/2, 0, 1), which is what sign(w + ν) is for ν ~ U[-1, 1]: the same quantizer with that noise drawn at
each step. It is drawn to the end of training, never annealed; the network that is evaluated has the deterministic
weights in both cases (Section 2.6, method 1; the authors evaluated the stochastic one with its real weights, which
would not be a quantized network). BatchNorm must be re-estimated for them (`batchnorm_batches`).

>>> import torch, lehr
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> conversion = BinaryConnect(stochastic=True).convert_(model)
>>> model[0].quantizer
Quantizer((-1, 1) at (0), forward=Uniform(std=0.5774), backward=Uniform(std=0.5774), mode=sample)
>>> model[1]
ReLU()
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from lehr.algorithms.algorithm import Algorithm, clip_, quantized_layers
from lehr.algorithms.description import FLOATS, Description, becomes, end_layers
from lehr.convert import Conversion, quantize_
from lehr.estimator import BINARY_CONNECT, STE
from lehr.layers import Quantizer


@dataclass(frozen=True)
class BinaryConnect(Algorithm):
    """Binary weights, drawn at random while training if `stochastic`; `first` and `last` say whether all layers."""

    stochastic: bool = False
    first: bool = True
    last: bool = True

    @property
    def anneals(self) -> bool:
        """Its noise stays."""
        return False

    def describe(self) -> Description:
        """Binary weights."""
        return Description(
            "BinaryConnect",
            "stochastic" if self.stochastic else "",
            "-1, 1",
            FLOATS,
            end_layers(self.first, self.last),
            estimator=str(BINARY_CONNECT if self.stochastic else STE),
            becomes=becomes(weights=True, activations=False),
        )

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Quantize the weights; a trained network gets a scale for each output channel."""
        conversion = quantize_(
            model,
            weights=Quantizer(BINARY_CONNECT if self.stochastic else STE),
            activations=None,
            skip_first=not self.first,
            skip_last=not self.last,
            scale="channel" if trained else "fixed",
        )
        if not trained:
            for _, layer in quantized_layers(model):
                layer.reset_parameters()
        return conversion

    def after_step_(self, model: nn.Module) -> None:
        """Clip the shadow weights to [-1, 1], in units of the scale."""
        clip_(model, 1.0)

    @torch.no_grad()
    def after_training_(self, model: nn.Module) -> None:
        """Keep the deterministic weights."""
        for _, layer in quantized_layers(model):
            assert isinstance(layer.quantizer, Quantizer)
            layer.quantizer.forward_std.zero_()
