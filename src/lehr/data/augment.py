"""Random crops and flips of a whole batch at once, on the device the batch is on.

`CropFlip` moves each image by up to `padding` pixels, with black moving in (what padding and then cropping at
random does), and mirrors every second one. It is a value; its randomness comes from a generator given with
the batch:

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
    """Pad with `padding` black pixels, crop at random to the size before, mirror one image in two."""

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding is a number of pixels, at least 0, got {self.padding}")

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
        return padded.flatten(2).gather(2, pixels).unflatten(2, (height, width))
