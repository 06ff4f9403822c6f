"""An autoencoder of linear layers, as MLPerf Tiny finds anomalies with: what it cannot rebuild was not in its training.

>>> import torch, lehr
>>> model = Autoencoder(features=20, hidden=16, code=4)
>>> x = torch.randn(3, 20)
>>> (model(x) - model.input(x)).square().mean(1).shape  # how strange each example is
torch.Size([3])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from lehr.models.signal_input import SignalInput


class Autoencoder(nn.Module):
    """[Linear - BatchNorm - ReLU] to the code and back, then Linear: the input again, normalised.

    MLPerf Tiny's has 640 features, layers of 128 and a code of 8.

    Args:
        features: the numbers of an example, float32.
        hidden: the width of the layers.
        code: the width of the layer in the middle.
        depth: layers before the code, and as many behind it.
        mean: of each feature, or one for all.
        std: of each feature, or one for all.
        input_bits: rounds the input to this many bits.
    """

    def __init__(
        self,
        features: int = 640,
        *,
        hidden: int = 128,
        code: int = 8,
        depth: int = 4,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        input_bits: int = 8,
    ) -> None:
        super().__init__()
        if min(features, hidden, code, depth) < 1:
            raise ValueError(f"sizes are at least 1, got {features} features, {hidden}, {code} and depth {depth}")
        means, stds = (tuple(x) * features if len(x) == 1 else tuple(x) for x in (mean, std))
        self.input = SignalInput(means, stds, input_bits)
        sizes = [features, *[hidden] * depth, code, *[hidden] * depth]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, features))

    def forward(
        self,
        x: Tensor,  # (batch, features), float32
    ) -> Tensor:
        """Return what is rebuilt of `self.input(x)`, (batch, features)."""
        return self.layers(self.input(x))
