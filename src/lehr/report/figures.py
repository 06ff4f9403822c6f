"""Figures of estimators, noises and schedules; `draw_all`, which is `lehr figures`, draws all figures into a folder.

Each function returns a matplotlib `Figure` made without pyplot: nothing global changes and nothing needs closing.
`lehr.report.style.save` writes it to files. Figures of theorems are in theorem_figures.py.

>>> from lehr.noise import Uniform
>>> regularised(Uniform).axes[0].get_title()
'Uniform noise'
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
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
from lehr.expectation import quantize
from lehr.multistep import MultiStep
from lehr.noise import Logistic, Noise, Normal, Triangular, Uniform
from lehr.report.style import BLACK, BLUE, COLUMN, CYCLE, DASHES, FORMATS, PAGE, VERMILION, ordered, save, styled
from lehr.report.theorem_figures import collapse_of_run, sine_approximation, wave_approximation
from lehr.report.validation import curve_of_run, validation_error
from lehr.theory import derivative

NOISES: tuple[type[Noise], ...] = (Uniform, Triangular, Normal, Logistic)
# The arrow that stands for a point mass of a derivative.
_MASS = {"arrowstyle": "-|>,head_width=0.15,head_length=0.35", "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}


@styled
def idea(
    kind: type[Noise] = Normal,
    stds: Sequence[float] = (0.4, 0.2, 0.08, 0),
    step: MultiStep = MultiStep.ternary(),  # noqa: B008 - a frozen value
) -> Figure:
    """Draw the method in one picture: above, the expectation approaches the step function; below, its gradient.

    Args:
        kind: the noise.
        stds: its standard deviations, one for each panel.
        step: the multi-step function.
    """
    reach = max(map(abs, step.thresholds)) + 1
    x = _grid(reach)[::20]  # fine enough for this size; keeps the file small
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
    """Draw figures 2 and 3 of the paper: a multi-step function under noise of several std, and its derivative.

    Black is the function without noise; its derivative is a point mass at each threshold, drawn as an arrow.

    Args:
        kind: the noise.
        stds: its standard deviations.
        step: the multi-step function.
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
    """Draw every noise with the same std: its density, the step function under it, and the derivative.

    Args:
        std: the standard deviation.
        step: the multi-step function.
    """
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
    """Draw the factor of the noise's std over the annealing window.

    Args:
        laws: decay laws with their names; those of the library unless given.
    """
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
    """Draw how much noise each layer has in each epoch, under each schedule.

    Args:
        layers: the number of layers.
        duration: the length of a window, in epochs.
        law: the decay law within a window.
    """
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
            tick.set_horizontalalignment(place)  # keeps the labels of two panels apart
    panels[0].set(ylabel="layer", yticks=range(1, layers + 1))
    assert image is not None
    bar = figure.colorbar(image, ax=panels, label="share of the std", aspect=14, pad=0.015, ticks=(0, 0.5, 1))
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def figures_by_name() -> dict[str, Callable[[], Figure]]:
    """Return every figure that needs no run folder, by name, as a function that draws it."""
    named: dict[str, Callable[[], Figure]] = {
        "idea": idea,
        **{f"regularised_{kind.__name__.lower()}": functools.partial(regularised, kind) for kind in NOISES},
        "noises": noises,
        "decay_laws": decay_laws,
        "windows": windows,
        "approximation_1d": sine_approximation,
        "approximation_2d": wave_approximation,
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
        runs: run folders, for validation_error (figure 1) and noise_collapse (Theorem 3), which reads the first.
        only: the names of the figures to draw; all except noise_collapse unless given.
        formats: the formats to write, of svg, pdf and png.
    """
    named = figures_by_name()
    of_runs = ("validation_error", "noise_collapse")
    if runs:
        named["validation_error"] = lambda: validation_error([curve_of_run(Path(run)) for run in runs])
    if runs and "noise_collapse" in only:  # only if asked for: it needs the run's data set
        named["noise_collapse"] = lambda: collapse_of_run(Path(runs[0]))
    for name in only:
        if name in of_runs and not runs:
            raise ValueError(f"{name} is drawn from run folders: name some with --runs")
        if name not in named:
            raise ValueError(f"no figure is called {name!r}; there are {', '.join(dict.fromkeys((*named, *of_runs)))}")
    wanted = {name: named[name] for name in only or named}
    return [path for name, draw in wanted.items() for path in save(draw(), Path(out) / name, formats)]


def _grid(reach: float) -> Tensor:
    """Return points in [-reach, reach] with an exact 0: beside 0, rounding makes windows of uniform noise overlap."""
    return torch.arange(-2000, 2001, dtype=torch.float64) / 2000 * reach


def _written(std: float) -> str:
    return r"\sqrt{3}/6" if math.isclose(std, math.sqrt(3) / 6) else f"{std:.3g}"


def _staircase(step: MultiStep, reach: float) -> tuple[list[float], list[float]]:
    places = [-reach, *(t for t in step.thresholds for _ in range(2)), reach]
    return places, [level for level in step.levels for _ in range(2)]
