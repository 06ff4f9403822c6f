"""Three small pictures for the page "Try it", drawn here since the images of CIFAR-10 are not ours to give.

Each is 32 x 32 pixels, in the style of the data, and called what it shows: a class that `cifar10-quick` finds
(tests/test_site.py). Shapes are drawn eight times larger and averaged, so that edges are soft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]

_SIZE = 32
_LARGER = 8


class _Picture:
    """Shapes on a ground; places are in pixels of the finished picture."""

    def __init__(self, *ground: tuple[float, Colour]) -> None:
        """`ground` has colours at heights from 0, the top, to 1; between them they blend."""
        heights, colours = zip(*ground, strict=True)
        rows = (np.arange(_SIZE * _LARGER) + 0.5) / (_SIZE * _LARGER)
        lines = np.stack([np.interp(rows, heights, channel) for channel in zip(*colours, strict=True)], axis=1)
        self._image = Image.fromarray(np.repeat(lines[:, None], len(rows), axis=1).astype(np.uint8))
        self._draw = ImageDraw.Draw(self._image)

    def shape(self, colour: Colour, *corners: tuple[float, float]) -> None:
        """A polygon."""
        self._draw.polygon([(x * _LARGER, y * _LARGER) for x, y in corners], fill=colour)

    def disc(self, colour: Colour, x: float, y: float, half_width: float, half_height: float) -> None:
        """An ellipse around (x, y)."""
        box = (x - half_width, y - half_height, x + half_width, y + half_height)
        self._draw.ellipse([edge * _LARGER for edge in box], fill=colour)

    def finished(self) -> Image.Image:
        """The picture in its own size."""
        return self._image.resize((_SIZE, _SIZE), Image.Resampling.BOX)


def drawings() -> dict[str, Image.Image]:
    """The pictures, each by the name of its class."""
    return {"ship": _ship(), "automobile": _automobile(), "airplane": _airplane()}


def _box(left: float, top: float, right: float, bottom: float) -> Sequence[tuple[float, float]]:
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _ship() -> Image.Image:
    sky, sea = ((0, (150, 185, 220)), (0.62, (215, 228, 238))), ((0.63, (60, 95, 130)), (1, (35, 65, 95)))
    picture = _Picture(*sky, *sea)
    picture.shape((240, 240, 240), *_box(10, 16, 22, 19))
    picture.shape((250, 250, 250), *_box(12, 12.5, 20, 16))
    picture.shape((200, 60, 50), *_box(14, 8, 17.5, 12.5))  # the funnel
    picture.shape((40, 45, 60), (2, 19), (30, 19), (26.5, 24.5), (5.5, 24.5))
    picture.shape((150, 40, 40), (5, 23.3), (27.2, 23.3), (26.5, 24.8), (5.5, 24.8))  # below the water line
    return picture.finished()


def _automobile() -> Image.Image:
    sky, street = ((0, (190, 205, 215)), (0.4, (205, 212, 214))), ((0.41, (120, 125, 120)), (0.65, (125, 125, 122)))
    picture = _Picture(*sky, *street, (1, (95, 95, 96)))
    picture.disc((60, 60, 62), 16, 25.5, 14, 1.6)  # the shadow
    roof = (2, 18.5), (6, 16.5), (10, 11.5), (21.5, 11.5), (26, 16.5), (30, 18)
    picture.shape((190, 30, 30), *roof, (30, 24), (2, 24))
    picture.shape((150, 180, 200), (8, 16.5), (11, 12.6), (15.3, 12.6), (15.3, 16.5))
    picture.shape((150, 180, 200), (16.5, 16.5), (16.5, 12.6), (20.8, 12.6), (24.3, 16.5))
    picture.shape((240, 235, 170), *_box(2, 19, 3.8, 20.5))  # a lamp
    for x in (8.3, 24):
        picture.disc((25, 25, 25), x, 24, 3.2, 3.2)
        picture.disc((170, 170, 175), x, 24, 1.5, 1.5)
    return picture.finished()


def _airplane() -> Image.Image:
    light, dark = (225, 228, 232), (150, 156, 165)
    picture = _Picture((0, (95, 150, 215)), (1, (185, 212, 238)))
    picture.shape(dark, (14, 15), (20, 14.5), (13, 6.5), (11, 6.5))  # the far wing
    body = (2, 14.2), (5, 13.2), (24, 13.3), (29, 14.8), (30, 16), (28, 17.2), (6, 17.2)
    picture.shape(light, *body)
    picture.shape((60, 80, 140), (2, 8), (4.8, 8), (8.5, 13.6), (3.2, 14.4))  # the fin
    picture.shape(dark, (13, 16), (20, 16), (11, 24.5), (8.5, 24.5))
    picture.shape(light, (2.5, 14), (7, 14.3), (3.5, 16.8), (1.5, 16.8))
    picture.shape((50, 60, 80), (27, 14.4), (28.6, 15), (26.8, 15.2))
    picture.disc((110, 115, 125), 15, 20, 1.6, 0.9)  # an engine
    return picture.finished()
