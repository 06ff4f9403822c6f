"""From the bytes of an image file to square RGB pixels: one decoding, one resampling, nothing in between.

A crop is a value that chooses a box of the image: `RandomCrop` for training on ImageNet (random position, area and
aspect ratio, mirrored or not), `CentreCrop` for evaluation, `MiddleSquare` for images that go into memory. The box is
resampled to its final size at once. Before that, libjpeg is told to decode at 1/2, 1/4 or 1/8 of the size where that
leaves the box at least `draft` times as large as its result (Pillow's draft mode; with 0, never).

Every mode of JPEG (and whatever else Pillow reads) becomes RGB; the orientation a camera noted is applied. A file that
cannot be decoded, or not to its end, has no pixels and a reason:

>>> image, reason = decode(b"no image", CentreCrop(224), random.Random(0))
>>> image is None, reason
(True, 'cannot identify image file')
"""

import io
import math
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from lehr.data.steps import mixed

_ORIENTATION = 0x0112  # the EXIF tag; from 5 on, rows and columns are exchanged
_ATTEMPTS = 10  # at a random box that lies inside the image

# Pillow reads more, and starts other programs for some (Ghostscript for EPS): these it decodes itself.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")


class Box(NamedTuple):
    """What is cut out of an image, in its pixels, and whether it is mirrored."""

    left: float
    top: float
    right: float
    bottom: float
    mirrored: bool = False


class Crop(ABC):
    """Chooses the box of an image that becomes `size` x `size` pixels."""

    size: int
    draft: int

    @abstractmethod
    def box(self, width: int, height: int, draws: random.Random) -> Box:
        """Return the box of an image so large."""


@dataclass(frozen=True)
class RandomCrop(Crop):
    """A box whose area is a random share of the image's within `area`, its width : height within `ratio`.

    The logarithm of the ratio is uniform; a box that does not fit is drawn again, and after ten times the largest box
    in the middle within the ratios is taken: torchvision's RandomResizedCrop, which the paper uses.
    """

    size: int
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    draft: int = 1

    def __post_init__(self) -> None:
        _check_size(self.size)
        for name, (low, high) in (("area", self.area), ("ratio", self.ratio)):
            if not 0 < low <= high < math.inf:
                raise ValueError(f"{name} is a range of positive numbers, got {low:g} to {high:g}")

    def box(self, width: int, height: int, draws: random.Random) -> Box:
        """Return a random box."""
        mirrored = self.flip and draws.random() < 0.5
        low, high = (math.log(ratio) for ratio in self.ratio)
        for _ in range(_ATTEMPTS):
            area = width * height * draws.uniform(*self.area)
            ratio = math.exp(draws.uniform(low, high))
            columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                left, top = draws.randint(0, width - columns), draws.randint(0, height - rows)
                return Box(left, top, left + columns, top + rows, mirrored)
        columns = min(width, max(1, round(height * self.ratio[1])))
        rows = min(height, max(1, round(width / self.ratio[0])))
        left, top = (width - columns) // 2, (height - rows) // 2
        return Box(left, top, left + columns, top + rows, mirrored)


@dataclass(frozen=True)
class CentreCrop(Crop):
    """The middle `size` x `size` pixels of the image with its shorter side resized to `shorter`.

    The box is the one those pixels come from, so that one resampling gives what resizing and then cropping gives; the
    whole image is decoded, so that results are those everyone reports.
    """

    size: int
    shorter: int = 256
    draft: int = 0

    def __post_init__(self) -> None:
        _check_size(self.size)
        if self.shorter < self.size:
            raise ValueError(
                f"{self.size} pixels cannot be cut from a side of {self.shorter}: shorter is at least size"
            )

    @classmethod
    def of(cls, size: int) -> "CentreCrop":
        """Return the usual crop to `size`: from a shorter side of 256 for 224 and 227, in proportion for others."""
        return cls(size, 256 if size in (224, 227) else round(size * 256 / 224))

    def box(self, width: int, height: int, draws: random.Random) -> Box:
        """Return the box in the middle."""
        shorter = min(width, height)
        resized = [side * self.shorter // shorter for side in (width, height)]
        left, top = (round((side - self.size) / 2) for side in resized)
        across, down = width / resized[0], height / resized[1]
        return Box(left * across, top * down, (left + self.size) * across, (top + self.size) * down)


@dataclass(frozen=True)
class MiddleSquare(Crop):
    """The largest square in the middle, which is what `lehr predict --resize` takes, of an image decoded in full.

    With draft = 4 a photograph of 12 megapixels is decoded in a seventh of the time, and pixels differ by 0.6 of 255 on
    average, less the larger the image is.
    """

    size: int
    draft: int = 4

    def __post_init__(self) -> None:
        _check_size(self.size)

    def box(self, width: int, height: int, draws: random.Random) -> Box:
        """Return the square in the middle."""
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        return Box(left, top, left + side, top + side)


class Sample(NamedTuple):
    """A labelled image as it is stored."""

    number: int  # among all samples of its data set
    name: str
    file: bytes | str  # its content, or why there is none
    label: int


class Decoded(NamedTuple):
    """The images of a batch that could be read with their labels, and (name, reason) of the others."""

    images: Tensor  # (some, 3, size, size), uint8, channels last in memory
    labels: Tensor  # (some,), int64
    failures: list[tuple[str, str]]


def decode_batch(samples: Sequence[Sample], crop: Crop, *, seed: int = 0, epoch: int = 0) -> Decoded:
    """Decode samples; what `crop` draws for one depends on (seed, epoch, its number) alone.

    >>> decode_batch([Sample(0, "a.jpg", "no such file", label=1)], CentreCrop(224)).failures
    [('a.jpg', 'no such file')]
    """
    pixels = torch.empty((len(samples), crop.size, crop.size, 3), dtype=torch.uint8)
    rows, labels, failures = pixels.numpy(), [], []
    for number, name, file, label in samples:
        draws = random.Random(mixed(seed, epoch, number))
        image, reason = (None, file) if isinstance(file, str) else decode(file, crop, draws)
        if image is None:
            failures.append((name, reason))
        else:
            rows[len(labels)] = np.asarray(image)
            labels.append(label)
    images = pixels[: len(labels)].permute(0, 3, 1, 2)
    return Decoded(images, torch.tensor(labels, dtype=torch.int64), failures)


def decode(file: bytes, crop: Crop, draws: random.Random) -> tuple[Image.Image | None, str]:
    """Return the crop of an image as RGB, or None and the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of metadata that nobody reads
            with Image.open(io.BytesIO(file), formats=FORMATS) as image:
                return _cut(image, crop, draws), ""
    except Exception as error:  # a damaged file can do anything to a parser
        reason = str(error).split(" <")[0] or type(error).__name__  # without the address of the buffer
        return None, reason


def _cut(image: Image.Image, crop: Crop, draws: random.Random) -> Image.Image:
    orientation = _orientation(image)
    swapped = orientation >= 5
    width, height = image.size[::-1] if swapped else image.size
    box = crop.box(width, height, draws)
    if crop.draft:
        least = [
            math.ceil(side * crop.draft * crop.size / (end - start))
            for side, start, end in ((width, box.left, box.right), (height, box.top, box.bottom))
        ]
        image.draft("RGB", (least[1], least[0]) if swapped else (least[0], least[1]))
    if orientation > 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"expected 8 bits a channel, found more (Pillow's mode {image.mode})")
    if image.mode != "RGB":
        image = image.convert("RGB")
    across, down = image.width / width, image.height / height
    part = (box.left * across, box.top * down, box.right * across, box.bottom * down)
    image = image.resize((crop.size, crop.size), Image.Resampling.BILINEAR, box=part)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if box.mirrored else image


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 (as it is) where there is none or the metadata is damaged."""
    if image.format == "PNG":
        image.load()  # its EXIF may stand after the pixels
    if "exif" not in image.info:
        return 1
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # as above; the pixels may well be whole
        return 1
    return orientation if orientation in range(1, 9) else 1


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"an image has at least 1 pixel a side, got size={size}")
