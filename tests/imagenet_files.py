"""Image files for tests: the sample of ImageNet where it is present, drawn ones otherwise."""

import functools
import io
import os
import random
from pathlib import Path

import torch
from PIL import Image

from lehr.data.shapes import draw

ROOT = Path(__file__).parent.parent


@functools.cache
def photographs() -> tuple[Path, ...]:
    """Real JPEGs of ImageNet, or nothing: LEHR_IMAGENET_SAMPLE, or the sample beside the repository."""
    sample = Path(os.environ.get("LEHR_IMAGENET_SAMPLE") or ROOT.parent / "shared" / "data" / "imagenet-sample")
    return tuple(sorted((sample / "train").glob("*/*.JPEG")))


@functools.cache
def contents() -> tuple[bytes, ...]:
    """Return valid JPEG files, real ones if available."""
    real = tuple(path.read_bytes() for path in photographs()[:12])
    return real or tuple(encoded(draw("cross", random.Random(seed))) for seed in range(12))


def encoded(image: Image.Image, kind: str = "JPEG", **settings) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def smooth(width: int, height: int) -> Image.Image:
    """An image without symmetries that survives JPEG: gradients in red and green, a blue corner."""
    x, y = torch.linspace(0, 255, width), torch.linspace(0, 255, height)
    pixels = torch.stack([x.expand(height, -1), y[:, None].expand(-1, width), torch.zeros(height, width)], 2)
    pixels[: height // 3, : width // 3, 2] = 255
    return Image.fromarray(pixels.to(torch.uint8).numpy())


def write_tree(root: Path, classes: int = 3, per_class: int = 8, *, split: str = "train") -> Path:
    """Write small JPEGs whose brightness is their number, so that a test knows an image by its pixels."""
    for label in range(classes):
        folder = root / split / f"class_{label}"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            value = 10 * (label * per_class + number)
            Image.new("L", (40, 36), value).save(folder / f"{number:03d}.jpg")
    return root


def write_pictures(root: Path, count: int = 12, *, split: str = "train") -> Path:
    """Write images whose crops all differ."""
    folder = root / split / "class_0"
    folder.mkdir(parents=True)
    for at in range(count):
        smooth(40 + at, 36).save(folder / f"{at:03d}.jpg")
    return root


def number(image: torch.Tensor) -> int:
    """Return the number that an image of `write_tree` shows."""
    return round(float(image.float().mean()) / 10)
