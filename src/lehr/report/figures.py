"""The figures: the idea, what the paper draws, the same for every noise, schedules, Theorems 1 and 3.

Each function returns a matplotlib `Figure` made without pyplot, so that nothing global changes and nothing needs
closing; `lehr.report.style.save` writes it. `draw_all` is `lehr figures`.

>>> from lehr.noise import Uniform
>>> regularised(Uniform).axes[0].get_title()
'Uniform noise'
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lehr.annealing import (
    AllAtOnce,
    Constant,
    CosineDecay,
    Hierarchical,
    Law,
    LinearDecay,
    PowerDecay,
    SameEnd,
    SameStart,
    Schedule,
)
from lehr.approximation import Approximation, Function, approximate
from lehr.expectation import quantize
from lehr.multistep import MultiStep
from lehr.noise import Logistic, Noise, Normal, Triangular, Uniform
from lehr.report.style import BLACK, BLUE, COLUMN, CYCLE, DASHES, FORMATS, PAGE, VERMILION, ordered, save, styled
from lehr.report.validation import curve_of_run, validation_error
from lehr.theory import Collapse, collapse, derivative

NOISES: tuple[type[Noise], ...] = (Uniform, Triangular, Normal, Logistic)
_FINE = 50  # cubes on an axis; more of them are too fine for a picture
_IMAGES = 500  # on which Theorem 3 is measured
_STDS = [10 ** (-k / 4) for k in range(25)]
# An arrow for a derivative that is a point mass.
_MASS = {"arrowstyle": "-|>,head_width=0.15,head_length=0.35", "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}


@styled
def idea(
    kind: type[Noise] = Normal,
    stds: Sequence[float] = (0.4, 0.2, 0.08, 0),
    step: MultiStep = MultiStep.ternary(),  # noqa: B008 - a frozen value
) -> Figure:
    """The method in one picture: above, the expectation closes in on the step function; below, its gradient."""
    reach = max(map(abs, step.thresholds)) + 1
    x = _grid(reach)[::20]  # fine enough for its size, and a small file
    figure = Figure(figsize=(PAGE, 2.3))
    values, slopes = figure.subplots(2, len(stds), sharex=True, sharey="row", height_ratios=(1.25, 1))
    top = 1.15 * max(float(derivative(step, kind(std), x).max()) for std in stds)
    for value, slope, std in zip(values, slopes, stds, strict=True):
        noise = kind(std)
        staircase = _staircase(step, reach)
        value.plot(*staircase, color="#B0B0B0", linewidth=0.9)
        value.plot(*(staircase if std == 0 else (x, quantize(x, step, noise))), color=BLUE)
        slope.plot(x, derivative(step, noise, x), color=VERMILION)
        slope.fill_between(x, derivative(step, noise, x), color=VERMILION, alpha=0.15, linewidth=0)
        value.set(title="no noise: quantized" if std == 0 else rf"noise of std ${_written(std)}$", yticks=step.levels)
        slope.set(xlabel=r"$x$", xlim=(-reach, reach), ylim=(0, top), xticks=(-1, 0, 1), yticks=())
    for threshold in step.thresholds if stds[-1] == 0 else ():
        slopes[-1].annotate("", (threshold, top), (threshold, 0), arrowprops={**_MASS, "color": VERMILION})
    values[0].set_ylabel(r"$\mathbb{E}[\sigma(x+\nu)]$")
    slopes[0].set_ylabel("gradient")
    figure.align_ylabels()
    return figure


@styled
def regularised(
    kind: type[Noise],
    stds: Sequence[float] = (0.5, math.sqrt(3) / 6, 0.15, 0.05),
    step: MultiStep = MultiStep.ternary(),  # noqa: B008 - a frozen value
) -> Figure:
    """Figures 2 and 3: a multi-step function under noise of several std, and the derivative.

    Black is no noise at all; arrows stand for its derivative, a point mass at each threshold.
    """
    reach = max(map(abs, step.thresholds)) + 1
    x = _grid(reach)
    figure = Figure(figsize=(COLUMN, 3.4))
    value, slope = figure.subplots(2, 1, sharex=True)
    for std, colour in zip(stds, ordered(len(stds)), strict=True):
        noise = kind(std)
        value.plot(x, quantize(x, step, noise), color=colour, label=rf"$\varsigma = {_written(std)}$")
        slope.plot(x, derivative(step, noise, x), color=colour)
    value.plot(*_staircase(step, reach), color=BLACK, linewidth=0.9, label=r"$\varsigma = 0$", zorder=3)
    top = 1.1 * slope.get_ylim()[1]
    for threshold in step.thresholds:
        slope.annotate("", (threshold, top), (threshold, 0), arrowprops={**_MASS, "color": BLACK})
    slope.set_ylim(0, top)
    value.set(ylabel=r"$\mathbb{E}[\sigma(x+\nu)]$", title=f"{kind.__name__} noise", yticks=step.levels)
    slope.set(xlabel=r"$x$", ylabel="derivative", xlim=(-reach, reach))
    value.legend(loc="lower right", labelspacing=0.25)
    figure.align_ylabels()
    return figure


@styled
def noises(std: float = math.sqrt(3) / 6, step: MultiStep = MultiStep.ternary()) -> Figure:  # noqa: B008
    """Every noise with the same std: its density, the ternary function under it, and the derivative."""
    x = _grid(1.6)
    figure = Figure(figsize=(PAGE, 2.1))
    density, value, slope = figure.subplots(1, 3)
    for kind, colour, dash in zip(NOISES, CYCLE, DASHES, strict=False):
        noise = kind(std)
        curves = (density, noise.pdf(x)), (value, quantize(x, step, noise)), (slope, derivative(step, noise, x))
        for axes, y in curves:
            axes.plot(x, y, color=colour, linestyle=dash, label=kind.__name__)
    density.set(xlabel=r"$\nu$", title="density", ylim=(0, None), yticks=(0, 0.5, 1, 1.5))
    value.set(xlabel=r"$x$", title=r"$\mathbb{E}[\sigma(x+\nu)]$", yticks=step.levels)
    slope.set(xlabel=r"$x$", title="derivative", ylim=(0, None), yticks=(0, 0.5, 1, 1.5))
    value.legend(loc="upper left", labelspacing=0.25, borderaxespad=0.1)
    return figure


@styled
def decay_laws(laws: Sequence[tuple[str, Law]] | None = None) -> Figure:
    """What the noise is multiplied with while its window passes."""
    laws = laws or (
        ("constant", Constant()),
        ("cosine", CosineDecay()),
        ("linear", LinearDecay()),
        ("quadratic", PowerDecay()),
    )
    figure = Figure(figsize=(COLUMN, 2.2))
    axes = figure.subplots()
    progress = torch.linspace(-0.15, 1.15, 400).tolist()
    for (name, law), colour, dash in zip(laws, CYCLE, (DASHES[2], DASHES[3], DASHES[0], DASHES[1]), strict=False):
        axes.plot(progress, [law(p) for p in progress], color=colour, linestyle=dash, label=name)
    axes.axvspan(0, 1, color="#F3F3F3", zorder=0, linewidth=0)
    axes.set(xlabel="progress through the window", ylabel="share of the initial std", xlim=(-0.15, 1.15))
    axes.set(ylim=(-0.03, 1.08), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axes.legend(loc="lower left", bbox_to_anchor=(0.12, 0.0), labelspacing=0.25)
    return figure


@styled
def windows(layers: int = 8, duration: float = 50, law: Law = LinearDecay()) -> Figure:  # noqa: B008
    """Which layer has how much noise when, under each of the schedules."""
    end = duration * layers
    schedules: dict[str, Schedule] = {
        "hierarchical": Hierarchical(duration),
        "same start": SameStart(duration),
        "same end": SameEnd(duration),
        "all at once": AllAtOnce(end),
    }
    figure = Figure(figsize=(PAGE, 2.0))
    panels = figure.subplots(1, len(schedules), sharey=True)
    times = [end * (i + 0.5) / 400 for i in range(400)]
    image = None
    for axes, (title, schedule) in zip(panels, schedules.items(), strict=True):
        grid = [[law(window.progress(t)) for t in times] for window in schedule.windows(layers)]
        image = axes.imshow(
            grid,
            aspect="auto",
            extent=(0, end, layers + 0.5, 0.5),
            cmap="Blues",
            vmin=0,
            vmax=1,
            interpolation="nearest",
        )
        for line in range(1, layers):
            axes.axhline(line + 0.5, color="white", linewidth=1.2)
        axes.set(title=title, xlabel="epoch", xticks=(0, end / 2, end))
        axes.grid(False)
        axes.tick_params(left=False)
        axes.spines[:].set_visible(False)
        for place, tick in zip(("left", "center", "right"), axes.get_xticklabels(), strict=True):
            tick.set_horizontalalignment(place)  # so that panels do not run into each other
    panels[0].set(ylabel="layer", yticks=range(1, layers + 1))
    assert image is not None
    bar = figure.colorbar(image, ax=panels, label="share of the std", aspect=14, pad=0.015, ticks=(0, 0.5, 1))
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


@styled
def approximation(f: Function, net: Approximation, label: str = "f") -> Figure:
    """Theorem 1: the function, named `label`, the network, and the error with its certified bound.

    In one dimension curves; in two, maps; in more, the maps of x0 and x1 with all other coordinates half-way.
    """
    return _approximation_curves(f, net, label) if net.dimension == 1 else _approximation_maps(f, net, label)


@styled
def noise_collapse(measured: Sequence[tuple[str, Collapse]]) -> Figure:
    """Theorem 3: left, composed expectations against the quantized network; right, one step near its threshold."""
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


def figures_by_name() -> dict[str, Callable[[], Figure]]:
    """Every figure that needs no run folder, by name; each is drawn when called."""
    named: dict[str, Callable[[], Figure]] = {
        "idea": idea,
        **{f"regularised_{kind.__name__.lower()}": functools.partial(regularised, kind) for kind in NOISES},
        "noises": noises,
        "decay_laws": decay_laws,
        "windows": windows,
        "approximation_1d": _sine,
        "approximation_2d": _wave,
    }
    return named


def draw_all(
    out: Path | str,
    runs: Sequence[Path | str] = (),
    only: Sequence[str] = (),
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw figures into a folder and return the paths of the files: this is `lehr figures`.

    Args:
        out: the folder.
        runs: run folders, for validation_error (figure 1), and for noise_collapse (Theorem 3), which takes the first.
        only: the names of the figures to draw; all but noise_collapse unless given.
        formats: which of svg, pdf and png to write.
    """
    named = figures_by_name()
    of_runs = ("validation_error", "noise_collapse")
    if runs:
        named["validation_error"] = lambda: validation_error([curve_of_run(Path(run)) for run in runs])
    if runs and "noise_collapse" in only:  # not unasked: it needs the run's data set
        named["noise_collapse"] = lambda: _collapse_of_run(Path(runs[0]))
    for name in only:
        if name in of_runs and not runs:
            raise ValueError(f"{name} is drawn from run folders: name some with --runs")
        if name not in named:
            raise ValueError(f"no figure is called {name!r}; there are {', '.join(dict.fromkeys((*named, *of_runs)))}")
    wanted = {name: named[name] for name in only or named}
    return [path for name, draw in wanted.items() for path in save(draw(), Path(out) / name, formats)]


def _sine() -> Figure:
    def sine(x: Tensor) -> Tensor:
        return torch.sin(x[:, 0])

    net = approximate(sine, lipschitz=1, side=2 * math.pi, dimension=1, epsilon=0.4)
    return approximation(sine, net, r"$\sin\,x_0$")


def _wave() -> Figure:
    def wave(x: Tensor) -> Tensor:
        return torch.sin(3 * x[:, 0]) * x[:, 1]

    net = approximate(wave, lipschitz=math.sqrt(10), dimension=2, epsilon=0.4)
    return approximation(wave, net, r"$x_1\,\sin\,3x_0$")


def _collapse_of_run(run: Path) -> Figure:
    """Draw Theorem 3 as measured on some test images with the network of a run."""
    from lehr.data import examples_of  # these two need data sets and networks, which no other figure does
    from lehr.training.run import load_run

    model, _, splits = load_run(run)
    images = examples_of(splits.test, _IMAGES)
    return noise_collapse([(kind.__name__, collapse(model, images, kind, _STDS)) for kind in NOISES])


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
    if net.n > _FINE:  # too fine for a picture: of each of _FINE x _FINE squares, which hold whole cubes, the largest
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
        bar = figure.colorbar(shown, cax=axes.inset_axes((1.05, 0, 0.05, 1)))  # as high as its map
        bar.locator = MaxNLocator(5)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    panels[0].set_ylabel(r"$x_1$")
    return figure


@torch.no_grad()
def _values(f: Function, x: Tensor) -> np.ndarray:
    return f(x).cpu().numpy()


def _grid(reach: float) -> Tensor:
    """[-reach, reach] in steps that hold 0 exactly: beside it, touching windows of uniform noise overlap by a bit."""
    return torch.arange(-2000, 2001, dtype=torch.float64) / 2000 * reach


def _written(std: float) -> str:
    return r"\sqrt{3}/6" if math.isclose(std, math.sqrt(3) / 6) else f"{std:.3g}"


def _staircase(step: MultiStep, reach: float) -> tuple[list[float], list[float]]:
    places = [-reach, *(t for t in step.thresholds for _ in range(2)), reach]
    return places, [level for level in step.levels for _ in range(2)]
