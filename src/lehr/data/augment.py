"""Augment a whole batch at once, on its device.

`CropFlip` shifts, mirrors and partly blackens images in memory; `Colour` changes the colours of streamed images, which
are cropped when they are decoded (decode.py). Both are values; the caller passes a random generator with the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""A function from (batch of uint8 images, generator on the same device) to the augmented batch."""

GREY = (0.299, 0.587, 0.114)  # luma of ITU-R BT.601, as Pillow's greyscale
# Eigenvalues and eigenvectors (columns: components) of the covariance of ImageNet's pixels / 255, as commonly used.
EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)


@dataclass(frozen=True)
class CropFlip:
    """Pad with black pixels or by reflection, crop at random to the original size, mirror one image in two.

    One gather does all of it: output pixel (y, x) of an image is pixel (y + dy, x + dx) of the padded image, or
    (y + dy, width - 1 - x + dx) if mirrored. It needs no synchronization with the device and no loop over images.

    Args:
        padding: the largest shift, in pixels.
        flip: whether to mirror.
        cutout: the side of a square, centred at a random pixel of each image, that is blackened and clipped at the
            edges (DeVries and Taylor 2017); 0: none.
        reflect: pad by reflecting the image at its edges instead of with black pixels.

    >>> pixels = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8)
    >>> moved = CropFlip(padding=4)(pixels, torch.Generator().manual_seed(0))
    >>> moved.shape, moved.dtype
    (torch.Size([64, 3, 32, 32]), torch.uint8)
    """

    padding: int = 4
    flip: bool = True
    cutout: int = 0
    reflect: bool = False

    def __post_init__(self) -> None:
        for name in ("padding", "cutout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be a number of pixels, at least 0, got {getattr(self, name)}")

    def __call__(
        self,
        images: Tensor,  # (batch, channel, height, width)
        generator: torch.Generator,  # on the device of the images
    ) -> Tensor:
        """Return the augmented images, with the same shape and dtype."""
        batch, channels, height, width = images.shape
        device = images.device
        y, x = torch.arange(height, device=device), torch.arange(width, device=device)
        dy, dx = torch.randint(2 * self.padding + 1, (2, batch, 1), generator=generator, device=device)
        rows, columns = y + dy, x + dx
        if self.flip:
            mirrored = torch.randint(2, (batch, 1), generator=generator, device=device, dtype=torch.bool)
            columns = torch.where(mirrored, columns.flip(1), columns)
        if self.reflect:
            if self.padding >= min(height, width):
                raise ValueError(
                    f"padding by reflection must be below {min(height, width)} for images of {height}x{width} pixels, "
                    f"got {self.padding}"
                )
            rows, columns = _reflected(rows - self.padding, height), _reflected(columns - self.padding, width)
            padded = images
        else:
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


@dataclass(frozen=True)
class Colour:
    """Change the colours of each image at random.

    Brightness blends an image with black, contrast with its mean grey, saturation with its greyscale; lighting adds
    random multiples of the principal components of ImageNet's colours (Krizhevsky et al., 2012). All are affine in the
    pixel, and without intermediate rounding they commute: contrast and saturation do not change the mean grey m,
    saturation does not change greys, brightness scales m like the pixels. So with factors b, c, s and grey weights g

        pixel -> b (c (s pixel + (1 - s) g·pixel) + (1 - c) m) + lighting

    needs one factor for the pixel, one for its grey and one offset per image. The paper gives no numbers except 0.1 for
    lighting; 0.4 was usual at its time.

    Args:
        brightness: the largest distance of its factor from 1; the factor is uniform.
        contrast: the same for contrast.
        saturation: the same for saturation.
        lighting: the standard deviation of the components' multiples.

    >>> images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
    >>> Colour()(images, torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    lighting: float = 0.1

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"{name}, the largest distance of a factor from 1, must be in [0, 1], got {getattr(self, name)}"
                )
        if not 0 <= self.lighting < float("inf"):
            raise ValueError(f"lighting, a standard deviation, must be at least 0, got {self.lighting}")

    def __call__(
        self,
        images: Tensor,  # (batch, 3, height, width), uint8
        generator: torch.Generator,  # on the device of the images
    ) -> Tensor:
        """Return the images with changed colours, uint8."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"Colour needs images of shape (batch, 3, height, width), got {tuple(images.shape)}")
        batch, device = len(images), images.device
        reach = _constant((self.brightness, self.contrast, self.saturation), device)
        factors = 1 + reach * (2 * torch.rand((batch, 3), generator=generator, device=device) - 1)
        brightness, contrast, saturation = factors[:, :, None].unbind(1)  # (batch, 1) each
        multiples = self.lighting * torch.randn((batch, 3), generator=generator, device=device)
        components = _constant(EIGENVECTORS, device) * _constant(EIGENVALUES, device)
        lighting = 255 * multiples @ components.T  # (batch, 3)

        pixels = images.permute(0, 2, 3, 1).flatten(1, 2).to(torch.float32, copy=True)  # (batch, pixel, 3)
        grey = pixels @ _constant(GREY, device)  # (batch, pixel)
        offset = brightness * (1 - contrast) * grey.mean(1, keepdim=True) + lighting  # (batch, 3)
        towards_grey = grey.mul_(brightness * contrast * (1 - saturation))
        pixels.mul_((brightness * contrast * saturation)[:, :, None]).add_(towards_grey[:, :, None])
        pixels.add_(offset[:, None, :] + 0.5).clamp_(0, 255)  # + 0.5, since the cast to uint8 truncates
        return pixels.to(torch.uint8).unflatten(1, images.shape[2:]).permute(0, 3, 1, 2)


def _reflected(places: Tensor, size: int) -> Tensor:
    """Reflect places before 0 and after size - 1 back into the range: -1 becomes 1."""
    return size - 1 - (size - 1 - places.abs()).abs()


def _constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """Return numbers as a tensor on the device, without synchronizing with it."""
    return torch.tensor(values).to(device, non_blocking=True)
