"""The network of airbench (Jordan, 2024), which learns CIFAR-10 in few epochs, with a first layer that is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from lehr.models.activation import Activation, activation_named, start_biases_
from lehr.models.input import Input
from lehr.models.width import scaled


class Group(nn.Module):
    """Conv3x3, max-pool, BatchNorm, activation; Conv3x3, BatchNorm, activation."""

    def __init__(self, before: int, after: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(kernel_size=2)
        self.bn1 = nn.BatchNorm2d(after)
        self.act1 = activation()
        self.conv2 = nn.Conv2d(after, after, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.act2 = activation()

    def forward(
        self,
        x: Tensor,  # (batch, before, height, width)
    ) -> Tensor:
        """Return (batch, after, height / 2, width / 2)."""
        x = self.act1(self.bn1(self.pool(self.conv1(x))))
        return self.act2(self.bn2(self.conv2(x)))


class AirBench(nn.Module):
    """Conv3x3 32; groups of two Conv3x3 of 64, 256 and 256 channels; mean over the image, Linear.

    Each group halves the image behind its first convolution, so that most products are those of wide layers on few
    pixels. BatchNorm follows each layer, the last one too. At width 1 on 32x32 images: 2.0 M weights and 152 M
    MAC, the MAC of `VGG` at width 1/2.

    >>> import torch
    >>> AirBench(width=0.25)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
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
        if min(shape[1:]) < 8:
            raise ValueError(f"three 2x2 max-pools need images of at least 8x8 pixels, got {shape[1]}x{shape[2]}")
        if len(mean) != shape[0]:
            raise ValueError(f"images of {shape[0]} channels need as many means, got {tuple(mean)}")
        kind = activation_named(activation)
        channels = scaled(32, width)
        self.input = Input(mean, std, input_bits)
        self.conv1 = nn.Conv2d(shape[0], channels, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.act = kind()
        groups = []
        for features in (64, 256, 256):
            after = scaled(features, width)
            groups.append(Group(channels, after, kind))
            channels = after
        self.groups = nn.Sequential(*groups)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes, bias=False)
        self.bn2 = nn.BatchNorm1d(classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        *hidden, _ = (module for module in self.modules() if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)))
        start_biases_(activation, hidden)

    def forward(
        self,
        x: Tensor,  # (batch, *shape), uint8
    ) -> Tensor:
        """Return scores, (batch, class)."""
        x = self.groups(self.act(self.bn1(self.conv1(self.input(x)))))
        return self.bn2(self.fc(self.avgpool(x).flatten(1)))
