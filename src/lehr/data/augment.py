"""Random crops and flips of a whole batch at once, on the device the batch is on.

`CropFlip` moves each image by up to `padding` pixels, with black moving in (what padding and then cropping at
random does), mirrors every second one, and can blacken a square in each. It is a value; its randomness comes from
a generator given with the batch:

>>> import torch
>>> augment = CropFlip(padding=4)
>>> pixels = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8)
>>> moved = augment(pixels, torch.Generator().manual_seed(0))
>>> moved.shape, moved.dtype
(torch.Size([64, 3, 32, 32]), torch.uint8)

One gather does all of it: output pixel (y, x) of an image is pixel (y + dy, x + dx) of the padded image, or
(y + dy, width - 1 - x + dx) where it is mirrored. Nothing waits for the device and nothing loops over images.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""From (batch of uint8 images, generator on the same device) to the batch to train on."""


@dataclass(frozen=True)
class CropFlip:
    """Pad with `padding` black pixels, crop at random to the size before, mirror one image in two.

    With `cutout` (DeVries and Taylor 2017) a square of so many pixels a side is blackened about any pixel of each
    image, and is cut off at the image's edges.
    """

    padding: int = 4
    flip: bool = True
    cutout: int = 0

    def __post_init__(self) -> None:
        for name in ("padding", "cutout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is a number of pixels, at least 0, got {getattr(self, name)}")

    def __call__(
        self,
        images: Tensor,  # (batch, channel, height, width)
        generator: torch.Generator,  # on the device of the images
    ) -> Tensor:
        """Return as many images of the same shape and type."""
        batch, channels, height, width = images.shape
        device = images.device
        y, x = torch.arange(height, device=device), torch.arange(width, device=device)
        dy, dx = torch.randint(2 * self.padding + 1, (2, batch, 1), generator=generator, device=device)
        rows, columns = y + dy, x + dx
        if self.flip:
            mirrored = torch.randint(2, (batch, 1), generator=generator, device=device, dtype=torch.bool)
            columns = torch.where(mirrored, columns.flip(1), columns)
        padded = functional.pad(images, (self.padding,) * 4)
        pixels = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # (batch, height, width)
        pixels = pixels.flatten(1)[:, None, :].expand(-1, channels, -1)
        moved = padded.flatten(2).gather(2, pixels).unflatten(2, (height, width))
        if self.cutout:
            top, left = (
                torch.randint(size, (batch, 1), generator=generator, device=device) - self.cutout // 2
                for size in (height, width)
            )
            within_rows = (y >= top) & (y < top + self.cutout)
            within_columns = (x >= left) & (x < left + self.cutout)
            moved.masked_fill_((within_rows[:, :, None] & within_columns[:, None, :])[:, None], 0)
        return moved
