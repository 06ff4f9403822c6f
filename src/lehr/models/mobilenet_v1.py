"""MobileNetV1 (Howard et al., 2017): depthwise separable convolutions one after the other.

MLPerf Tiny's network for visual wake words is this one at width 0.25, on 96x96 images of two classes.

>>> import lehr
>>> model = MobileNetV1((3, 96, 96), classes=2, width=0.25)
>>> [change.module for change in lehr.quantize_(model).converted][:4]
['features.0.0', 'features.0.2', 'features.1.0', 'features.1.2']
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lehr.models.input import Input
from lehr.models.separable import separable
from lehr.models.width import scaled

# Output channels and stride of each block.
_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


class MobileNetV1(nn.Module):
    """Conv3x3/2 32, thirteen depthwise separable convolutions, mean over the image, Linear.

    >>> import torch
    >>> MobileNetV1((3, 32, 32), classes=5, width=0.25)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
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
        shape: tuple[int, int, int] = (3, 224, 224),
        classes: int = 1000,
        *,
        width: float = 1.0,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        input_bits: int | None = None,
    ) -> None:
        super().__init__()
        if len(mean) != shape[0]:
            raise ValueError(f"images of {shape[0]} channels need as many means, got {tuple(mean)}")
        channels = scaled(32, width)
        stem = nn.Conv2d(shape[0], channels, kernel_size=3, stride=2, padding=1, bias=False)
        layers = [nn.Sequential(stem, nn.BatchNorm2d(channels), nn.ReLU())]
        for features, stride in _BLOCKS:
            after = scaled(features, width)
            layers.append(separable(channels, after, stride))
            channels = after
        self.input = Input(mean, std, input_bits)
        self.features = nn.Sequential(*layers)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(channels, classes)

    @property
    def annealing_groups(self) -> list[list[str]]:
        """The paths whose noise decays together: each block."""
        return [[f"features.{number}"] for number in range(len(self.features))]

    def forward(
        self,
        x: Tensor,  # (batch, *shape), uint8
    ) -> Tensor:
        """Return scores, (batch, class)."""
        return self.fc(self.pool(self.features(self.input(x))))
