"""BinaryConnect (Courbariaux et al., NIPS 2015): weights at -1 and +1, float activations.

Forward and backward passes use sign(w); gradients update the real-valued shadow weights w, which are clipped to [-1, 1]
after each step (Section 2.4, Algorithm 1). The deterministic variant (eq. 1) is the straight-through estimator with
U[-1, 1] for weights only. In the stochastic variant (eq. 2, 3) a weight is +1 with probability
p = clip((w + 1)/2, 0, 1), as is sign(w + ν) for ν ~ U[-1, 1]: the same quantizer with that noise, drawn at each step
and never annealed. Both are evaluated with the deterministic weights (Section 2.6, method 1; the authors evaluated the
stochastic one with its real weights, which is not a quantized network), so BatchNorm must be re-estimated
(`batchnorm_batches`).

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
from lehr.estimator import BINARY_CONNECT_STOCHASTIC, STE
from lehr.quantizer import Quantizer


@dataclass(frozen=True)
class BinaryConnect(Algorithm):
    """Binary weights.

    Args:
        stochastic: draw the weights at random during training.
        first: quantize the first layer.
        last: quantize the last layer.
    """

    stochastic: bool = False
    first: bool = True
    last: bool = True

    @property
    def anneals(self) -> bool:
        """False: its noise stays."""
        return False

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description(
            "BinaryConnect",
            "stochastic" if self.stochastic else "",
            "-1, 1",
            FLOATS,
            end_layers(self.first, self.last),
            estimator=str(BINARY_CONNECT_STOCHASTIC if self.stochastic else STE),
            becomes=becomes(weights=True, activations=False),
        )

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Quantize the weights; give a trained network a scale for each output channel."""
        conversion = quantize_(
            model,
            weights=Quantizer(BINARY_CONNECT_STOCHASTIC if self.stochastic else STE),
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
        """Switch to the deterministic weights."""
        for _, layer in quantized_layers(model):
            assert isinstance(layer.quantizer, Quantizer)
            layer.quantizer.forward_std.zero_()
