"""The curves of the page "Move the noise", computed by lehr while the site is built.

Each is a list of points in the picture's own coordinates, so that the page's script only has to show it: every formula
stays where it is, in lehr. `explorer.html` is the picture and its controls, docs/assets/explorer.js the script.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import numpy as np
import torch
from matplotlib.path import Path as Line

from lehr.expectation import quantize
from lehr.multistep import MultiStep
from lehr.noise import Noise
from lehr.report.figures import NOISES
from lehr.theory import derivative, regularity

PAPER = math.sqrt(3) / 6
STDS = tuple(PAPER * i / 15 for i in range(31))  # from no noise to twice the paper's, which is the 15th
LEVELS = {
    "ternary": ("ternary, −1 0 1", MultiStep.ternary()),
    "sign": ("sign, −1 1", MultiStep.sign()),
    "heaviside": ("Heaviside, 0 1", MultiStep.heaviside()),
    "bits": ("2 bits, −2 −1 0 1", MultiStep.uniform(2)),
    "uneven": ("uneven, −2 −1 0 ½ 2", MultiStep((-1.5, -0.6, 0.3, 1.2), (-2.0, -1.0, 0.0, 0.5, 2.0))),
}
STEEPEST = 4.0  # the slope at the top of the lower panel; steeper ones leave it
_MARK = '<div id="explorer"></div>'


@dataclass(frozen=True)
class Panel:
    """A rectangle of the picture and the numbers at its edges."""

    low: tuple[float, float]  # x and y at its lower left corner
    high: tuple[float, float]
    left: float = 44.0
    right: float = 630.0
    top: float = 12.0
    bottom: float = 232.0

    def x(self, x: Any) -> Any:
        """Where a number stands from left to right."""
        return self.left + (x - self.low[0]) / (self.high[0] - self.low[0]) * (self.right - self.left)

    def y(self, y: Any) -> Any:
        """Where a number stands from top to bottom."""
        return self.bottom - (y - self.low[1]) / (self.high[1] - self.low[1]) * (self.bottom - self.top)

    def points(self, x: Any, y: Any) -> str:
        """A curve as the points of an SVG polyline, without those that a straight line passes anyway."""
        vertices = np.column_stack([self.x(np.asarray(x, dtype=float)), self.y(np.asarray(y, dtype=float))])
        with matplotlib.rc_context({"path.simplify_threshold": 0.2}):
            kept = np.asarray(Line(vertices).cleaned(simplify=True).vertices)[:-1]  # the last one is a stop
        return " ".join(f"{_place(across)},{_place(down)}" for across, down in kept)


def on_page_content(content: str, **_: object) -> str:
    """Put the picture, its controls and its curves into the page that has a place for them."""
    return content.replace(_MARK, explorer()) if _MARK in content else content


def explorer() -> str:
    """The page's HTML, showing the paper's setting until the script takes over."""
    template = (Path(__file__).parent / "explorer.html").read_text(encoding="utf-8")
    data = curves()
    noise, levels, std = "Uniform", "ternary", 15
    _, below = panels_of(LEVELS[levels][1])
    return jinja2.Template(template, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined).render(
        noises=[kind.__name__ for kind in NOISES],
        levels={name: told for name, (told, _) in LEVELS.items()},
        chosen={"noise": noise, "levels": levels, "std": std},
        stds=data["stds"],
        frame=data["frames"][levels],
        slopes=[(_short(slope), below.y(slope)) for slope in range(1, int(STEEPEST) + 1)],
        curve=data["curves"][noise][levels][std],
        json=json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
    )


def curves() -> dict[str, Any]:
    """Everything the script shows: for each function its axes, for each noise and function a curve for each std."""
    panels = {name: panels_of(step) for name, (_, step) in LEVELS.items()}
    return {
        "stds": [f"{std:.3f}" + (" (√3/6, the paper’s)" if std == PAPER else "") for std in STDS],
        "frames": {name: _frame(step, *panels[name]) for name, (_, step) in LEVELS.items()},
        "curves": {
            kind.__name__: {
                name: [curve_of(step, kind(std), *panels[name]) for std in STDS] for name, (_, step) in LEVELS.items()
            }
            for kind in NOISES
        },
    }


def panels_of(step: MultiStep) -> tuple[Panel, Panel]:
    """Return the panels of the value and of the derivative, with room for their curves."""
    reach = max(map(abs, step.thresholds)) + 1.0
    margin = 0.08 * (step.levels[-1] - step.levels[0])
    value = Panel((-reach, step.levels[0] - margin), (reach, step.levels[-1] + margin))
    return value, Panel((-reach, 0.0), (reach, STEEPEST), top=262.0, bottom=412.0)


def _frame(step: MultiStep, value: Panel, slope: Panel) -> dict[str, Any]:
    reach = value.high[0]
    xs = [-reach, *(t for t in step.thresholds for _ in range(2)), reach]
    places = range(-math.floor(reach), math.floor(reach) + 1)
    return {
        "staircase": value.points(xs, [level for level in step.levels for _ in range(2)]),
        "levels": [[_short(level), round(value.y(level), 1)] for level in step.levels],
        "places": [[_short(x), round(value.x(x), 1)] for x in places],
        "masses": [round(slope.x(threshold), 1) for threshold in step.thresholds],
    }


def curve_of(step: MultiStep, noise: Noise, value: Panel, slope: Panel) -> list[str]:
    """Points of the value, points of the gradient, and its largest slope in words."""
    if float(noise.std) == 0:
        return [_frame(step, value, slope)["staircase"], slope.points([-9, 9], [0, 0]), "∞"]
    x = torch.arange(-2000, 2001, dtype=torch.float64) / 2000 * value.high[0]
    steepest = regularity(step, noise).lipschitz
    told = f"{steepest:.3g}" + (", beyond the picture" if steepest > STEEPEST else "")
    return [value.points(x, quantize(x, step, noise)), slope.points(x, derivative(step, noise, x)), told]


def _place(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _short(number: float) -> str:
    return f"{number:g}".replace("-", "−")
