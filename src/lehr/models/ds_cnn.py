"""DS-CNN for keyword spotting (Zhang et al., 2017), as MLPerf Tiny has it: 10 MFCC features of 49 windows of time.

>>> import lehr
>>> model = DSCNN()
>>> sum(p.numel() for p in model.parameters() if p.ndim > 1)
22016
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lehr.models.input import Input
from lehr.models.separable import separable
from lehr.models.width import scaled

_KERNEL, _STRIDE = (10, 4), 2  # of the first convolution: 10 windows of time, 4 features


class DSCNN(nn.Module):
    """Conv10x4/2, four depthwise separable convolutions, mean over time and features, Linear; 2.7 M MAC at width 1.

    It takes uint8. For features in float set `model.input = lehr.models.Input.of(features)`, fitted to some of them.

    >>> import torch
    >>> DSCNN(width=0.25)(torch.zeros(2, 1, 49, 10, dtype=torch.uint8)).shape
    torch.Size([2, 12])

    Args:
        shape: (channels, windows of time, features) of an example.
        classes: the number of classes.
        width: multiplies the 64 channels.
        mean: the mean of each channel, as a share of 255.
        std: its standard deviation.
        input_bits: rounds the input to this many bits, so that the first layer can run as integers; null for floats.
        dropout: the share of features that are dropped before the last layer while training.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (1, 49, 10),
        classes: int = 12,
        *,
        width: float = 1.0,
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.25,),
        input_bits: int | None = None,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if len(mean) != shape[0]:
            raise ValueError(f"examples of {shape[0]} channels need as many means, got {tuple(mean)}")
        channels = scaled(64, width)
        self.input: nn.Module = Input(mean, std, input_bits)
        self.pad = nn.ZeroPad2d(_around(shape))
        self.conv = nn.Conv2d(shape[0], channels, _KERNEL, _STRIDE, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.blocks = nn.Sequential(*(separable(channels, channels) for _ in range(4)))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(channels, classes)

    @property
    def annealing_groups(self) -> list[list[str]]:
        """The paths whose noise decays together: each block."""
        return [[f"blocks.{number}"] for number in range(len(self.blocks))]

    def forward(
        self,
        x: Tensor,  # (batch, *shape), uint8
    ) -> Tensor:
        """Return scores, (batch, class)."""
        x = self.relu(self.bn(self.conv(self.pad(self.input(x)))))
        return self.fc(self.dropout(self.pool(self.blocks(x))))


def _around(shape: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Zeros left, right, above and below, with which the first convolution has half as many outputs, rounded up."""
    added = []
    for size, kernel in zip(shape[1:], _KERNEL, strict=True):
        total = max((-(-size // _STRIDE) - 1) * _STRIDE + kernel - size, 0)
        added.append((total // 2, total - total // 2))
    (above, below), (left, right) = added
    return left, right, above, below
