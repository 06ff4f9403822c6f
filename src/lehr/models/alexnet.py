"""The paper's AlexNet for ImageNet (its appendix, Table 4): five convolutions and three fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lehr.models.input import Input
from lehr.models.width import scaled

# Each convolution: output channels, kernel, stride, padding, and whether a 3x3 max-pool of stride 2 follows.
_CONVOLUTIONS = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)


class AlexNet(nn.Module):
    """Conv11x11/4 64-pool, 5x5 192-pool, 3x3 384, 256, 256-pool; Linear 4096, 4096, classes.

    BatchNorm follows each layer, and an activation each but the last; max-pools come before BatchNorm; there is no bias
    before BatchNorm and no dropout. At width 1 on 227x227 images: 61.1 M weights, 716.8 M MAC.

    >>> import torch
    >>> AlexNet((3, 63, 63), classes=5, width=1 / 16)(torch.zeros(2, 3, 63, 63, dtype=torch.uint8)).shape
    torch.Size([2, 5])

    Args:
        shape: (channels, height, width) of an image.
        classes: the number of classes.
        width: multiplies all channels.
        mean: the mean of each channel of the images, as a share of 255.
        std: their standard deviation.
        input_bits: rounds the input to this many bits, so that the first layer can run as integers; null for floats.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 227, 227),
        classes: int = 1000,
        *,
        width: float = 1.0,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        input_bits: int | None = None,
    ) -> None:
        super().__init__()
        channels, *sides = shape
        self.input = Input(mean, std, input_bits)
        layers: list[nn.Module] = []
        for features, kernel, stride, padding, pooled in _CONVOLUTIONS:
            after = scaled(features, width)
            layers.append(nn.Conv2d(channels, after, kernel, stride, padding, bias=False))
            sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
            if pooled:
                layers.append(nn.MaxPool2d(kernel_size=3, stride=2))
                sides = [(side - 3) // 2 + 1 for side in sides]
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
            channels = after
        if min(sides) < 1:
            raise ValueError(f"AlexNet needs images of at least 63x63 pixels, got {shape[1]}x{shape[2]}")
        self.features = nn.Sequential(*layers)
        inner = scaled(4096, width)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * sides[0] * sides[1], inner, bias=False),
            nn.BatchNorm1d(inner),
            nn.ReLU(),
            nn.Linear(inner, inner, bias=False),
            nn.BatchNorm1d(inner),
            nn.ReLU(),
            nn.Linear(inner, classes, bias=False),
            nn.BatchNorm1d(classes),
        )

    def forward(
        self,
        x: Tensor,  # (batch, *shape), uint8
    ) -> Tensor:
        """Return scores, (batch, class)."""
        return self.classifier(self.features(self.input(x)))
