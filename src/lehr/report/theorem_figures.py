"""Figures of the theorems: Theorem 1, a function and the network built for it; Theorem 3, what collapsing noise leaves.

>>> def line(x):
...     return x[:, 0]
>>> approximation(line, approximate(line, lipschitz=1, dimension=1, epsilon=0.5)).axes[1].get_ylabel()
'error'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lehr.approximation import Approximation, Function, approximate
from lehr.expectation import quantize
from lehr.multistep import MultiStep
from lehr.noise import Logistic, Normal, Triangular, Uniform
from lehr.report.style import BLACK, BLUE, COLUMN, CYCLE, DASHES, PAGE, VERMILION, ordered, styled
from lehr.theory import Collapse, collapse

_FINE = 50  # cubes on an axis; more of them are too fine for a picture
_IMAGES = 500  # on which Theorem 3 is measured
_STDS = [10 ** (-k / 4) for k in range(25)]
_NOISES = (Uniform, Triangular, Normal, Logistic)


@styled
def approximation(f: Function, net: Approximation, label: str = "f") -> Figure:
    """Draw Theorem 1: the function, the network that approximates it, and the error with its certified bound.

    One dimension is drawn as curves and two as maps; of more, x0 and x1 are drawn and the others are half-way.

    Args:
        f: the function.
        net: the network that `lehr.approximation.approximate` built for it.
        label: the name of the function in the legend.
    """
    return _approximation_curves(f, net, label) if net.dimension == 1 else _approximation_maps(f, net, label)


@styled
def noise_collapse(measured: Sequence[tuple[str, Collapse]]) -> Figure:
    """Draw Theorem 3: left, composed expectations against the quantized network; right, one step near its threshold.

    Args:
        measured: for each noise its name and what `lehr.theory.collapse` measured.
    """
    figure = Figure(figsize=(PAGE, 2.5))
    network, single = figure.subplots(1, 2, gridspec_kw={"wspace": 0.12})
    for (label, run), colour, dash in zip(measured, CYCLE, DASHES, strict=False):
        shown = [(std, gap) for std, gap in zip(run.stds, run.mean, strict=True) if gap > 0]
        network.plot(*zip(*shown, strict=True), color=colour, linestyle=dash, label=label)
    network.set(xscale="log", yscale="log", xlabel=r"std $\varsigma$ of the noise")
    network.set(ylabel=r"mean $|\Phi_\varsigma - \Phi|$", title="a trained ternary network")
    network.invert_xaxis()
    network.legend(loc="lower left", labelspacing=0.25)

    step = MultiStep.heaviside()
    stds = torch.logspace(0, -5, 300, dtype=torch.float64)
    for distance, colour in zip((1e-1, 1e-2, 1e-3, 0.0), [*ordered(3), BLACK], strict=True):
        x = torch.tensor([distance], dtype=torch.float64)
        gaps = [(quantize(x, step, Normal(std)) - step(x)).abs().item() for std in stds.tolist()]
        name = "on the threshold" if distance == 0 else rf"$10^{{{round(math.log10(distance))}}}$ above"
        single.plot(stds, gaps, color=colour, label=name)
    single.set(xscale="log", xlabel=r"std $\varsigma$ of the noise", ylabel=r"$|\mathbb{E}[H(x+\nu)] - H(x)|$")
    single.set(title="one step, near its threshold", ylim=(-0.02, 0.55), yticks=(0, 0.25, 0.5))
    single.invert_xaxis()
    single.legend(loc="center right", labelspacing=0.25)
    return figure


def sine_approximation() -> Figure:
    """Draw Theorem 1 for the sine, in one dimension."""

    def sine(x: Tensor) -> Tensor:
        return torch.sin(x[:, 0])

    net = approximate(sine, lipschitz=1, side=2 * math.pi, dimension=1, epsilon=0.4)
    return approximation(sine, net, r"$\sin\,x_0$")


def wave_approximation() -> Figure:
    """Draw Theorem 1 for x1 sin 3 x0, in two dimensions."""

    def wave(x: Tensor) -> Tensor:
        return torch.sin(3 * x[:, 0]) * x[:, 1]

    net = approximate(wave, lipschitz=math.sqrt(10), dimension=2, epsilon=0.4)
    return approximation(wave, net, r"$x_1\,\sin\,3x_0$")


def collapse_of_run(run: Path) -> Figure:
    """Draw Theorem 3, measured with the network of a run on some of its test images."""
    from lehr.data import examples_of  # imported here: no other figure needs data sets and networks
    from lehr.training.run import load_run

    model, _, splits = load_run(run)
    images = examples_of(splits.test, _IMAGES)
    return noise_collapse([(kind.__name__, collapse(model, images, kind, _STDS)) for kind in _NOISES])


def _approximation_curves(f: Function, net: Approximation, label: str) -> Figure:
    x = torch.linspace(0, net.side, 4001, dtype=net.thresholds.dtype)[:, None]
    truth, value = (_values(g, x).flatten() for g in (f, net))
    figure = Figure(figsize=(COLUMN, 3.2))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
    above.plot(x, truth, color=BLUE, label=label)
    above.plot(x, value, color=VERMILION, linewidth=0.9, label=rf"network, $N = {net.N}$")
    above.legend(loc="best", labelspacing=0.25)
    above.set(ylabel="value")
    below.plot(x, value - truth, color=VERMILION, linewidth=0.8)
    for sign in (-1, 1):
        below.axhline(sign * net.bound, color=BLACK, linewidth=0.8, linestyle=DASHES[1])
    below.annotate("certified bound", (net.side, net.bound), ha="right", va="bottom", fontsize=7)
    below.set(xlabel=r"$x_0$", ylabel="error", xlim=(0, net.side), ylim=(-1.2 * net.bound, 1.45 * net.bound))
    figure.align_ylabels()
    return figure


def _approximation_maps(f: Function, net: Approximation, label: str, points: int = 800) -> Figure:
    axis = (torch.arange(points, dtype=net.thresholds.dtype) + 0.5) / points * net.side
    x = torch.full((points * points, net.dimension), net.side / 2, dtype=axis.dtype)
    x[:, 1], x[:, 0] = axis.repeat_interleave(points), axis.repeat(points)
    truth, value = (_values(g, x).reshape(points, points) for g in (f, net))
    error, said = value - truth, f"error, at most {net.bound:.3g}"
    tone: dict[str, Any] = {"vmin": -net.bound, "vmax": net.bound, "cmap": "RdBu_r"}
    if net.n > _FINE:  # draw the largest error in each of _FINE x _FINE squares, which hold whole cubes
        squares = np.abs(error).reshape(_FINE, points // _FINE, _FINE, points // _FINE)
        error, said = squares.max(axis=(1, 3)), f"largest |error|, at most {net.bound:.3g}"
        tone = {"vmin": 0, "vmax": net.bound, "cmap": "magma_r"}
    figure = Figure(figsize=(PAGE, 2.1))
    panels = figure.subplots(1, 3, sharey=True)
    shared = {"vmin": truth.min(), "vmax": truth.max()}
    images = (
        (truth, label, shared),
        (value, rf"network, $N = {net.n}^{net.dimension} = {net.N}$", shared),
        (error, said, tone),
    )
    for axes, (image, title, colours) in zip(panels, images, strict=True):
        shown = axes.imshow(
            image, origin="lower", extent=(0, net.side, 0, net.side), interpolation="nearest", **colours
        )
        axes.set(title=title, xlabel=r"$x_0$")
        axes.grid(False)
        axes.set(xticks=(0, net.side / 2, net.side), yticks=(0, net.side / 2, net.side))
        bar = figure.colorbar(shown, cax=axes.inset_axes((1.05, 0, 0.05, 1)))  # as tall as its map
        bar.locator = MaxNLocator(5)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    panels[0].set_ylabel(r"$x_1$")
    return figure


@torch.no_grad()
def _values(f: Function, x: Tensor) -> np.ndarray:
    return f(x).cpu().numpy()
