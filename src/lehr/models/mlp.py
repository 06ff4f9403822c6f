"""A multi-layer perceptron with BatchNorm, like QuantLab's network for MNIST."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn

from lehr.models.input import Input
from lehr.models.width import scaled


class MLP(nn.Module):
    """[Linear - BatchNorm - activation] for each hidden width, then Linear - BatchNorm.

    There is no bias before BatchNorm.

    >>> import torch
    >>> MLP(shape=(1, 8, 8), hidden=(64,))(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 10])

    Args:
        shape: (channels, height, width) of an image.
        classes: the number of classes.
        hidden: the widths of the hidden layers.
        width: multiplies the hidden widths.
        mean: the mean of each channel of the images, as a share of 255.
        std: their standard deviation.
        input_bits: rounds the input to this many bits, so that the first layer can run as integers; null for floats.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (1, 28, 28),
        classes: int = 10,
        *,
        hidden: Sequence[int] = (1024, 1024),
        width: float = 1.0,
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
        input_bits: int | None = None,
    ) -> None:
        super().__init__()
        if len(mean) != shape[0]:
            raise ValueError(f"images of {shape[0]} channels need as many means, got {tuple(mean)}")
        if any(features < 1 for features in hidden):
            raise ValueError(f"every hidden layer needs at least one feature, got {tuple(hidden)}")
        self.input = Input(mean, std, input_bits)
        sizes = [math.prod(shape), *(scaled(features, width) for features in hidden)]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
        layers += [nn.Linear(sizes[-1], classes, bias=False), nn.BatchNorm1d(classes)]
        self.layers = nn.Sequential(*layers)

    def forward(
        self,
        x: Tensor,  # (batch, *shape), uint8
    ) -> Tensor:
        """Return scores, (batch, class)."""
        return self.layers(self.input(x))
