"""How lehr's figures look, and how they are written to files.

Figures are made without pyplot, and matplotlib's settings are restored after each one: nothing global changes. The
colours are those of Okabe and Ito, which colour-blind readers can tell apart. Curves that have an order get a scale of
rising darkness.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
FORMATS = ("svg", "pdf", "png")
COLUMN, PAGE = 3.3, 6.6  # inches: one and two columns of an article

_STYLE: dict[Any, Any] = {
    "font.family": "STIXGeneral",
    "font.size": 8.5,
    "mathtext.fontset": "stix",
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.3,
    "lines.solid_capstyle": "butt",
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.handlelength": 1.8,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "svg.fonttype": "path",  # looks the same without the font
    "svg.hashsalt": "lehr",
    "pdf.fonttype": 42,
    "image.cmap": "viridis",
}
_STAMPS = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}

_P = ParamSpec("_P")


def styled(draw: Callable[_P, Figure]) -> Callable[_P, Figure]:
    """Decorate a function that draws: it draws in lehr's style, and matplotlib's settings are restored afterwards."""

    @functools.wraps(draw)
    def restored(*args: _P.args, **kwargs: _P.kwargs) -> Figure:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return restored


def save(figure: Figure, path: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure to files and return their paths.

    Args:
        figure: the figure.
        path: the path without a suffix; its folder is created.
        formats: the formats to write, of svg, pdf and png.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ValueError(f"formats are {', '.join(FORMATS)}, got {unknown[0]!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(_STYLE):
        figure.draw_without_rendering()  # compute the layout once for all formats
        figure.set_layout_engine("none")
        for name in formats:
            target = path.with_name(f"{path.name}.{name}")
            figure.savefig(target, format=name, metadata=_STAMPS[name])
            written.append(target)
    return written


def ordered(count: int) -> list[tuple[float, float, float, float]]:
    """Return colours of rising darkness for curves that have an order; the lightest is visible on white."""
    scale = matplotlib.colormaps["viridis"]
    return [scale(0.82 - 0.72 * i / max(1, count - 1)) for i in range(count)]
