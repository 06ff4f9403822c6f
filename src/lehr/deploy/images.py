"""Images from files, as a network takes them: uint8 (channel, row, column), checked."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

if TYPE_CHECKING:
    from lehr.deploy.integer_net import IntegerNet

# Pillow reads more, and starts other programs for some (Ghostscript for EPS): these it decodes itself.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
_MOST_PIXELS = 2**26  # Pillow holds four bytes for each, and up to three copies


class ImageError(ValueError):
    """An image file a network cannot take; the message says which, why and what would be right."""


def image_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files named, and the image files of the folders named, in order."""
    for path in paths:
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            yield from found or [path]  # which reading refuses
        else:
            yield path


def image_batch(image: object, net: IntegerNet, *, resize: bool = False) -> np.ndarray:
    """A batch of one image for a network: of a file, or of a PIL image."""
    if net.input_dtype != "uint8" or len(net.input_shape) != 3:
        shape = "x".join(map(str, net.input_shape))
        raise ImageError(f"this network takes {net.input_dtype} of shape {shape}, and no images: give it an array")
    if not isinstance(image, str | os.PathLike | Image.Image):
        raise TypeError(f"give an array of images, the path of one or a PIL image, got {type(image).__name__}")
    channels, rows, columns = net.input_shape
    source = image if isinstance(image, Image.Image) else Path(image)
    return read_image(source, (channels, rows, columns), resize=resize)[None]


def read_image(path: Path | Image.Image, shape: tuple[int, int, int], *, resize: bool = False) -> np.ndarray:
    """The pixels of a PNG, JPEG, ... for a network that takes `shape` (channel, row, column), turned upright.

    Colours become grey, and grey becomes colours, as the network asks; another size is an error unless `resize`, which
    cuts the middle out in the network's proportions and scales it. What is transparent has no colour, and is refused.
    """
    channels, rows, columns = shape
    if channels not in (1, 3):
        raise ImageError(f"image files have 1 or 3 channels, this network takes {channels}")
    try:
        if isinstance(path, Path) and path.exists() and not (path.is_file() or path.is_dir()):
            raise ValueError("it is no file on a disk but a pipe, a device or the like")
        with _opened(path) if isinstance(path, Path) else contextlib.nullcontext(path) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                raise ValueError(f"it has {opened.width}x{opened.height} pixels, more than {_MOST_PIXELS:,}")
            image = _opaque(_eight_bits(ImageOps.exif_transpose(opened))).convert("L" if channels == 1 else "RGB")
    except IsADirectoryError:
        raise ImageError(f"{path} holds no image file ({', '.join(sorted(SUFFIXES))})") from None
    except FileNotFoundError:
        raise ImageError(f"there is no file {path}") from None
    except Exception as error:  # a damaged file can do anything to a parser
        raise ImageError(f"{path} is no image that can be read: {error}") from error
    if image.size != (columns, rows):
        if not resize:
            raise ImageError(
                f"{path} has {image.width}x{image.height} pixels and this network takes {columns}x{rows}: "
                "resize it, or pass --resize (resize=True)"
            )
        image = ImageOps.fit(image, (columns, rows), Image.Resampling.BILINEAR)
    pixels = np.array(image, dtype=np.uint8)  # a copy: that of the image is read-only
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _opened(path: Path) -> Image.Image:
    """The image, not yet decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # how large it is, is checked next
        return Image.open(path, formats=FORMATS)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits scaled to 8; Pillow itself would clip it."""
    if image.mode.startswith("I;16"):
        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise OSError(f"its pixels are 32-bit {'integers' if image.mode == 'I' else 'floats'}, not of 8 or 16 bits")
    return image


def _opaque(image: Image.Image) -> Image.Image:
    """The image, if all of it can be seen."""
    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        raise ValueError("parts of it are transparent, and have no colour: lay it on a ground first")
    return image
