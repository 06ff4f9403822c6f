"""What is lost when only one layer is quantized: `sensitivity`, so that a person can choose precisions.

>>> import torch
>>> from torch import nn
>>> torch.manual_seed(0) and None
>>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
>>> x = torch.randn(64, 4)
>>> before = model(x)
>>> found = sensitivity(model, [x], lambda m: -(m(x) - before).square().mean().item(), precisions=("8bit", "ternary"))
>>> [row.part for row in found.rows], found.precisions
(['0', '1', '2'], ('8bit', 'ternary'))
>>> found.rows[0].losses[0] < found.rows[0].losses[1]
True
"""

from __future__ import annotations

import copy
import html
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lehr.calibration import inputs_of
from lehr.convert import quantize_
from lehr.decisions import Scale
from lehr.table import Table, Tabular

_BAR = 20  # characters of the longest bar
_LENGTH, _THICK = 320, 11  # pixels of the longest bar, and of every bar
_COLOURS = ("#56B4E9", "#0072B2", "#D55E00", "#E69F00", "#009E73")  # Okabe and Ito's, seen on white and on black


@dataclass(frozen=True)
class Row:
    """One layer, activation or call, and what is lost when it alone has each of the precisions."""

    part: str
    kind: str
    losses: tuple[float, ...]


@dataclass(frozen=True, repr=False)
class Sensitivity(Tabular):
    """What `sensitivity` measured; prints as a table and bars for the last precision, in notebooks as a drawing.

    Args:
        baseline: the measure of the network in full precision
        precisions: the precisions that were tried
        rows: the parts of the network, in its order
    """

    baseline: float
    precisions: tuple[str, ...]
    rows: tuple[Row, ...]

    def table(self) -> Table:
        """Return a row for each part, with its losses."""
        rows = [(row.part, row.kind, *(f"{loss:.4g}" for loss in row.losses)) for row in self.rows]
        return Table(("part", "kind", *self.precisions), rows)

    def chart(self, precision: str | None = None) -> str:
        """Return a bar for each part: what is lost at this precision, the last one unless given."""
        at = self.precisions.index(precision) if precision is not None else len(self.precisions) - 1
        losses = [max(row.losses[at], 0.0) for row in self.rows]
        longest = max(losses, default=0.0) or 1.0
        bars = ["█" * round(_BAR * loss / longest) for loss in losses]
        return str(
            Table(
                ("part", f"lost at {self.precisions[at]}"),
                [(r.part, bar) for r, bar in zip(self.rows, bars, strict=True)],
            )
        )

    def svg(self) -> str:
        """Return a drawing: of each part, a bar for each precision, as long as what is lost."""
        longest = max((loss for row in self.rows for loss in row.losses), default=0.0)
        names = 8 + 7 * max((len(row.part) for row in self.rows), default=0)  # pixels
        height = _THICK * len(self.precisions) + _THICK  # of a part, with the gap below it
        drawn = []
        for at, word in enumerate(self.precisions):
            drawn += [_bar_of(names + 90 * at, 2, 10, at), _text_of(names + 90 * at + 14, 11, word)]
        for line, row in enumerate(self.rows):
            top = 24 + line * height
            drawn.append(_text_of(names - 8, top + (height - _THICK) / 2 + 4, row.part, anchor="end"))
            for at, loss in enumerate(row.losses):
                length = _LENGTH * max(loss, 0.0) / longest if longest > 0 else 0.0
                drawn.append(_bar_of(names, top + at * _THICK, max(length, 1.0), at))
                drawn.append(_text_of(names + length + 4, top + at * _THICK + 9, f"{loss:.3g}", size=9))
        size = f'width="{names + _LENGTH + 60}" height="{24 + height * len(self.rows)}"'
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" fill="currentColor">'
        return "".join([opening, *drawn, "</svg>"])

    def _repr_html_(self) -> str:
        caption = f"<p>What is lost of {self.baseline:.4g} when this part alone is quantized:</p>"
        return f"{caption}{self.svg()}{self.table().html()}"

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.chart()}\nin full precision: {self.baseline:.4g}"

    def __repr__(self) -> str:
        return f"Sensitivity({len(self.rows)} parts at {', '.join(self.precisions)})"


def sensitivity(
    model: nn.Module,
    batches: Iterable[Any],
    measure: Callable[[nn.Module], float],
    *,
    precisions: Sequence[str] = ("8bit", "4bit", "ternary"),
    scale: Scale = "channel",
) -> Sensitivity:
    """Measure what is lost when only one layer, or one activation, is quantized, at several precisions.

    Args:
        model: a network in full precision, trained; it is left as it is.
        batches: data that the scales of activations are fitted to, see `lehr.calibrate_`.
        measure: a number that tells how good a network is, the larger the better, such as its accuracy on validation
            images. It is called once for each part and precision.
        precisions: words such as "4bit", see `lehr.quantize_`.
        scale: of the weights, see `lehr.quantize_`.
    """
    batches = list(batches)
    if not batches:
        raise ValueError("batches has no batch to calibrate with")
    args, kwargs = inputs_of(batches[0])
    model = copy.deepcopy(model).eval()
    parts = quantize_(copy.deepcopy(model), example=kwargs or args).converted
    with torch.no_grad():
        baseline = float(measure(model))
        rows = []
        for part in (part for part in parts if part.was != "input"):  # what a layer reads is told with the layer
            losses = []
            for precision in precisions:
                tried = copy.deepcopy(model)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what is not quantized
                    rules = {"*": "float", part.module: precision}
                    quantize_(tried, weights=precision, activations=precision, rules=rules, scale=scale, data=batches)
                losses.append(baseline - float(measure(tried.eval())))
            rows.append(Row(part.module, part.was, tuple(losses)))
    return Sensitivity(baseline, tuple(precisions), tuple(rows))


def _bar_of(x: float, y: float, length: float, precision: int) -> str:
    colour = _COLOURS[precision % len(_COLOURS)]
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{length:.1f}" height="{_THICK - 1}" fill="{colour}"/>'


def _text_of(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{html.escape(text)}</text>'
