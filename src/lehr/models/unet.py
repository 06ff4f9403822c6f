"""A small U-Net (Ronneberger et al., 2015): a class for each pixel.

The image is halved and enlarged again; what each level saw on the way down is put beside what comes up. The transposed
convolutions and the concatenations become integers as well.

>>> import torch, lehr
>>> model = UNet((3, 32, 32), classes=2, channels=(8, 16))
>>> model(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape
torch.Size([1, 2, 32, 32])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lehr.models.input import Input


class UNet(nn.Module):
    """Blocks of two Conv3x3; MaxPool between them downwards, ConvTranspose2x2 and concatenation upwards; Conv1x1.

    Args:
        shape: (channels, height, width) of an image; height and width are multiples of 2 to the levels.
        classes: the number of classes.
        channels: of each level, the last one being the bottom.
        mean: the mean of each channel of the images, as a share of 255.
        std: their standard deviation.
        input_bits: rounds the input to this many bits, so that the first layer can run as integers; null for floats.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 64, 64),
        classes: int = 2,
        *,
        channels: Sequence[int] = (16, 32, 64),
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        input_bits: int | None = None,
    ) -> None:
        super().__init__()
        halved = 2 ** (len(channels) - 1)
        if len(channels) < 2 or any(size % halved for size in shape[1:]):
            raise ValueError(
                f"{len(channels)} levels halve an image {len(channels) - 1} times: height and width must be multiples "
                f"of {halved}, got {shape[1:]}, and there are two levels or more"
            )
        self.input = Input(mean, std, input_bits)
        self.down = nn.ModuleList(_block(*pair) for pair in itertools.pairwise((shape[0], *channels)))
        self.pool = nn.MaxPool2d(2)
        upwards = list(itertools.pairwise(reversed(channels)))
        self.up = nn.ModuleList(_enlarged(*pair) for pair in upwards)
        self.join = nn.ModuleList(_block(2 * after, after) for _, after in upwards)
        self.head = nn.Conv2d(channels[0], classes, kernel_size=1)

    @property
    def annealing_groups(self) -> list[list[str]]:
        """The paths whose noise decays together: each level, downwards and upwards."""
        downwards = [[f"down.{number}"] for number in range(len(self.down))]
        return downwards + [[f"up.{number}", f"join.{number}"] for number in range(len(self.up))]

    def forward(
        self,
        x: Tensor,  # (batch, *shape), uint8
    ) -> Tensor:
        """Return scores, (batch, class, height, width)."""
        seen = [self.down[0](self.input(x))]
        for block in self.down[1:]:
            seen.append(block(self.pool(seen[-1])))
        x = seen.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([seen.pop(), up(x)], 1))
        return self.head(x)


def _block(before: int, after: int) -> nn.Sequential:
    """Return two of Conv3x3, BatchNorm, ReLU."""
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


def _enlarged(before: int, after: int) -> nn.Sequential:
    """Return ConvTranspose2x2 of stride 2, BatchNorm, ReLU."""
    enlarge = nn.ConvTranspose2d(before, after, kernel_size=2, stride=2, bias=False)
    return nn.Sequential(enlarge, nn.BatchNorm2d(after), nn.ReLU())
