"""The paper's VGG-like network (its appendix, Table 3): six convolutions and three fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lehr.models.activation import Activation, activation_named, start_biases_
from lehr.models.input import Input
from lehr.models.width import scaled


class VGG(nn.Module):
    """Conv3x3 128, 128-pool, 256, 256-pool, 512, 512-pool; Linear 1024, 1024, classes.

    BatchNorm follows each layer, and an activation each but the last; max-pools come before BatchNorm; there is no bias
    before BatchNorm. At width 1 on 32x32 images: 14.0 M weights, 617 M MAC.

    >>> import torch
    >>> VGG(width=1 / 16)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 10])

    Args:
        shape: (channels, height, width) of an image.
        classes: the number of classes.
        width: multiplies all channels.
        mean: the mean of each channel of the images, as a share of 255.
        std: their standard deviation.
        input_bits: rounds the input to this many bits, so that the first layer can run as integers; null for floats.
        activation: relu, hardtanh or ramp: see `lehr.models.activation`.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 32, 32),
        classes: int = 10,
        *,
        width: float = 1.0,
        mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
        std: Sequence[float] = (0.2470, 0.2430, 0.2610),
        input_bits: int | None = None,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        activate = activation_named(activation)
        channels, height, columns = shape
        if min(height, columns) < 8:
            raise ValueError(f"three 2x2 max-pools need images of at least 8x8 pixels, got {height}x{columns}")
        if len(mean) != shape[0]:
            raise ValueError(f"images of {shape[0]} channels need as many means, got {tuple(mean)}")
        self.input = Input(mean, std, input_bits)
        layers: list[nn.Module] = []
        for index, features in enumerate((128, 128, 256, 256, 512, 512)):
            after = scaled(features, width)
            layers.append(nn.Conv2d(channels, after, kernel_size=3, padding=1, bias=False))
            if index % 2 == 1:
                layers.append(nn.MaxPool2d(kernel_size=2))
            layers += [nn.BatchNorm2d(after), activate()]
            channels = after
        self.features = nn.Sequential(*layers)
        inner = scaled(1024, width)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * (height // 8) * (columns // 8), inner, bias=False),
            nn.BatchNorm1d(inner),
            activate(),
            nn.Linear(inner, inner, bias=False),
            nn.BatchNorm1d(inner),
            activate(),
            nn.Linear(inner, classes, bias=False),
            nn.BatchNorm1d(classes),
        )
        *hidden, _ = (module for module in self.modules() if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)))
        start_biases_(activation, hidden)

    def forward(
        self,
        x: Tensor,  # (batch, *shape), uint8
    ) -> Tensor:
        """Return scores, (batch, class)."""
        return self.classifier(self.features(self.input(x)))
