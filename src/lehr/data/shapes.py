"""The data set `shapes`: drawn bars, crosses, squares and triangles, as a small folder of JPEGs in ImageNet's layout.

Each image has a random size and shows a figure of random colour, size and place on a random ground. An ImageNet recipe
can be tried on it in a minute, since files become batches in the same way.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

from lehr.data.steps import mixed

Points = list[tuple[float, float]]
FIGURES: dict[str, Callable[[float, float, float], list[Points]]] = {
    "bars": lambda x, y, r: [_box(x, y + at * r, r, r / 6) for at in (-0.8, 0, 0.8)],
    "cross": lambda x, y, r: [_box(x, y, r, r / 4), _box(x, y, r / 4, r)],
    "square": lambda x, y, r: [_box(x, y, r, r)],
    "triangle": lambda x, y, r: [[(x, y - r), (x + r, y + r), (x - r, y + r)]],
}


def write_shapes(root: Path, *, train: int = 40, val: int = 10, seed: int = 0) -> Path:
    """Draw the missing images below `root`; return `root`.

    Args:
        root: gets the folders `train` and `val`, with a folder for each class.
        train: the number of training images of each class.
        val: the number of validation images of each class.
        seed: seed of the drawings.
    """
    for split, count in (("train", train), ("val", val)):
        for label, name in enumerate(sorted(FIGURES)):
            folder = root / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                path = folder / f"{name}_{number:04d}.JPEG"
                if not path.exists():
                    draws = random.Random(mixed(seed, split == "val", label, number))
                    part = path.with_suffix(f".{os.getpid()}.part")
                    draw(name, draws).save(part, "JPEG", quality=85)
                    part.replace(path)  # atomic, also if two processes write it
    return root


def draw(figure: str, draws: random.Random) -> Image.Image:
    """Return an image of a figure; `draws` chooses its colours, size and place.

    >>> draw("cross", random.Random(0)).mode
    'RGB'
    """
    width, height = draws.randint(96, 200), draws.randint(96, 200)
    ground = tuple(draws.randint(0, 120) for _ in range(3))
    colour = tuple(draws.randint(136, 255) for _ in range(3))
    image = Image.new("RGB", (width, height), ground)
    radius = min(width, height) * draws.uniform(0.25, 0.4)
    x, y = draws.uniform(radius, width - radius), draws.uniform(radius, height - radius)
    canvas = ImageDraw.Draw(image)
    for points in FIGURES[figure](x, y, radius):
        canvas.polygon(points, fill=colour)
    return image


def _box(x: float, y: float, width: float, height: float) -> Points:
    return [(x - width, y - height), (x + width, y - height), (x + width, y + height), (x - width, y + height)]
