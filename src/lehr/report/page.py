"""A run as one self-contained page: what was run, what came out, how it went. No network, no fonts, no libraries.

path = write_report(Path("runs/digits-ana-seed0"))     # .../report.html

The templates escape whatever comes from files, and the page's own policy lets nothing load and only its hover script
run, so that a stranger's run folder can be looked at.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePath
from typing import Any, TypeVar

import jinja2
import torch
from torch import Tensor, nn

from lehr.annealing import Window
from lehr.data import AnyDataset, DataError, batches_of
from lehr.printable import printable
from lehr.report.charts import Band, Chart, Series, areas, lines
from lehr.report.history import History, read_run, share_table
from lehr.report.method import Method, method, network
from lehr.report.numbers import duration, level_name, percent, size
from lehr.summary import Summary, summarize
from lehr.training.folder import RunError, RunFolder
from lehr.training.recipe import Recipe
from lehr.training.trust import trusting

T = TypeVar("T")

_LOG_FROM = 30.0  # a loss that falls further than this many times is drawn on a logarithmic axis
_LARGEST_MATRIX = 20  # classes; of more, only the most frequent confusions are told
_CONFUSIONS_TOLD = 6


@dataclass(frozen=True)
class Figure:
    """A large number and what it means."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Confusion:
    """How often images of one class were taken for another: `counts[truth][answer]`."""

    classes: tuple[str, ...]
    counts: list[list[int]]

    @property
    def right(self) -> int:
        """Images recognised."""
        return sum(self.counts[label][label] for label in range(len(self.classes)))

    @property
    def total(self) -> int:
        """Images in all."""
        return sum(map(sum, self.counts))

    @property
    def drawn(self) -> bool:
        """Whether the matrix is small enough to be looked at."""
        return len(self.classes) <= _LARGEST_MATRIX

    def share(self, truth: int, answer: int) -> float:
        """Of the images of class `truth`, the share answered with `answer`."""
        return self.counts[truth][answer] / max(sum(self.counts[truth]), 1)

    def look(self, truth: int, answer: int) -> str:
        """The style sheet's classes of a cell; deep ones are dark enough for light text."""
        kind, deep_from = ("right", 0.7) if truth == answer else ("wrong", 0.2)
        return f"{kind} deep" if self.share(truth, answer) > deep_from else kind

    def worst(self) -> list[tuple[str, str, int, int]]:
        """The most frequent confusions: class, taken for, how often, of how many."""
        mistakes = [
            (self.classes[truth], self.classes[answer], count, sum(row))
            for truth, row in enumerate(self.counts)
            for answer, count in enumerate(row)
            if truth != answer and count
        ]
        return sorted(mistakes, key=lambda mistake: -mistake[2])[:_CONFUSIONS_TOLD]


def write_report(path: Path) -> Path:
    """Write RUN/report.html and return its path; of an unfinished run, as far as it is.

    Classes of the recipe that are not lehr's are not imported, whatever the user trusts: the page tells what it lacks.
    """
    missing: dict[str, str] = {}
    with trusting(False):
        history = read_run(path)
        summary = _unless_missing("table of layers", lambda: summarize(*_network(path)), missing)
        confusion = _unless_missing("confusion matrix", lambda: confuse(*_network_and_test_images(path)), missing)
    for name in missing if history.not_imported else ():
        missing[name] = f"a report imports no class that is not lehr's, and this needs {history.not_imported[0]}"
    target = path / "report.html"
    page = render(
        "run.html",
        history=history,
        recipe=history.recipe,
        network=network(history.recipe),
        method=method(history.recipe),
        figures=_figures(history, summary, confusion),
        charts=_charts(history),
        shares=_share_charts(history),
        share_table=share_table(history),
        windows=_told_windows(history.windows),
        summary=summary,
        confusion=confusion,
        missing=missing,
        setup=_setup(history.recipe, method(history.recipe)),
        circumstances=_circumstances(history),
        recipe_text=RunFolder(path).recipe.read_text(),
    )
    target.write_text(page, encoding="utf-8")
    return target


def render(template: str, **content: object) -> str:
    """A template of this room with its style and script inside; a name it lacks is an error.

    Markup in what it shows is escaped, and control characters and marks that reorder a line are written out.
    """
    room = resources.files("lehr.report") / "templates"
    script = (room / "hover.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (room / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {"percent": percent, "duration": duration, "size": size}
    environment.filters |= filters
    style = (room / "style.css").read_text(encoding="utf-8")
    page = environment.get_template(template).render(style=style, script=script, digest=digest, **content)
    return printable(page, keep="\n\t")


def depths(count: int) -> list[float]:
    """So many places from first to last, evenly between 0 and 1.

    >>> depths(3), depths(1)
    ([0.0, 0.5, 1.0], [0.0])
    """
    return [index / max(count - 1, 1) for index in range(count)]


@torch.inference_mode()
def confuse(model: nn.Module, dataset: AnyDataset) -> Confusion:
    """What a network answers to each class of images."""
    classes = len(dataset.classes)
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    for images, labels in batches_of(dataset, 200):
        answers = model(images).argmax(1)
        counts += torch.bincount(labels * classes + answers, minlength=classes**2).view(classes, classes)
    return Confusion(dataset.classes, counts.tolist())


def _network(path: Path) -> tuple[nn.Module, Tensor]:
    from lehr.training.run import network_of

    return network_of(str(path))


def _network_and_test_images(path: Path) -> tuple[nn.Module, AnyDataset]:
    from lehr.training.run import load_run

    model, _, splits = load_run(path)
    return model, splits.test


def _unless_missing(name: str, make: Callable[[], T], missing: dict[str, str]) -> T | None:
    """What `make` gives; None, and the reason in `missing`, if the network or its data are not to be had."""
    try:
        return make()
    # RuntimeError: weights of another network; ValueError: other data in its place.
    except (RunError, DataError, OSError, RuntimeError, ValueError, ImportError) as error:
        missing[name] = str(error).splitlines()[0]
        return None


def _figures(history: History, summary: Summary | None, confusion: Confusion | None) -> list[Figure]:
    tested = f"{confusion.right:,} of {confusion.total:,} images" if confusion and history.finished else ""
    figures = [Figure("test accuracy", percent(history.accuracy("test")), tested)]
    running = history.results.get("val/running_accuracy")
    note = f"{percent(running)} with BatchNorm as in training" if running is not None else "without noise"
    if history.twin is not None:
        note += f"; full-precision twin {percent(history.twin.accuracy('val'))}"
    figures.append(Figure("validation accuracy", percent(history.accuracy("val")), note))
    if history.levels_used:
        layers = len(history.shares)
        levels = history.levels_used
        shown = ", ".join(map(level_name, levels)) if len(levels) <= 5 else f"{len(levels)}"
        figures.append(Figure("levels of weights", shown, f"in {layers} quantized layer{'s' * (layers != 1)}"))
    if history.last_noise:
        left = max(history.last_noise.values())
        note = "every layer is its multi-step function" if left == 0 else "largest forward std of a layer"
        figures.append(Figure("noise left", "none" if left == 0 else f"{left:.3g}", note))
    if summary is not None:
        smaller = summary.float_bytes / summary.bytes
        note = f"{smaller:.1f}x smaller than 32-bit floats" if smaller > 1.01 else "in 32-bit floats"
        figures.append(Figure("size of weights", size(summary.bytes), note))
    done, planned = len(history.epochs), history.recipe.epochs
    epochs = f"{done} epoch{'s' * (done != 1)}" if done == planned else f"{done} of {planned} epochs"
    if history.twin is not None:
        epochs += f" after {len(history.twin.epochs)} of the twin"
    figures.append(Figure("time", duration(history.seconds), epochs))
    return figures


def _charts(history: History) -> dict[str, Chart]:
    """The curves there are values for."""
    times, end = history.times, max(history.recipe.epochs, len(history.epochs))
    # Noise that falls with the epochs is the same throughout each; all else is measured at its end.
    noisy_times = history.epochs if history.recipe.annealing.per == "epoch" else times
    twin = history.twin
    both = max(end, history.recipe.twin_epochs)
    longest = max(times, twin.times if twin else [], key=len)
    bands = _bands(history.windows)
    quiet = [not any(std[row] > 0 for std in history.below("std/forward").values()) for row in range(len(times))]

    def stages(metric: str) -> list[Series]:
        noisy = history.metrics.get(f"val/noisy_{metric}", [])
        noisy = [math.nan if still else value for still, value in zip(quiet, noisy, strict=False)]
        named = (
            ("training", history.metrics.get(f"train/{metric}", []), "aside"),
            ("validation, with noise", noisy, "second"),
            ("validation, without noise", history.metrics.get(f"val/{metric}", []), "main"),
            ("the twin's validation, before", twin.metrics.get(f"val/{metric}", []) if twin else [], "aside dashed"),
        )
        return [
            Series(name, [*values, *[math.nan] * (len(longest) - len(values))], look)
            for name, values, look in named
            if values
        ]

    def layers(prefix: str, kind: str = "") -> list[Series]:
        columns = history.below(prefix)
        if len(columns) > 1 and len({tuple(values) for values in columns.values()}) == 1:
            return [Series("all layers", next(iter(columns.values())), "main")]
        return [
            Series(f"{kind}{name}", values, depth=depth)
            for (name, values), depth in zip(columns.items(), depths(len(columns)), strict=True)
        ]

    losses = [value for series in stages("loss") for value in series.values if math.isfinite(value)]
    steep = bool(losses) and min(losses) > 0 and max(losses) / min(losses) > _LOG_FROM
    charts = {
        "accuracy": lines("Accuracy", longest, stages("accuracy"), end=both, unit="percent", bands=bands, ceiling=1.0),
        "loss": lines("Loss", longest, stages("loss"), end=both, bands=bands, floor=0.0, log=steep),
        "forward": lines("Forward std", noisy_times, layers("std/forward", "layer "), end=end, bands=bands, floor=0.0),
        "backward": lines(
            "Backward std", noisy_times, layers("std/backward", "layer "), end=end, bands=bands, floor=0.0
        ),
        "changed": lines(
            "Weights that changed level", times, layers("changed"), end=end, unit="percent", bands=bands, log=True
        ),
        "gradients": lines("Gradient norm", times, layers("grad_norm"), end=end, bands=bands, log=True),
        "rate": lines(
            "Learning rate",
            times,
            [Series("learning rate", history.metrics.get("lr", []), "main")],
            end=end,
            bands=bands,
            floor=0.0,
        ),
    }
    return {name: chart for name, chart in charts.items() if chart.legend}


def _share_charts(history: History) -> list[Chart]:
    end = max(history.recipe.epochs, len(history.epochs))
    charts = []
    for path, levels in history.shares.items():
        reach = max(map(abs, levels)) or 1.0
        series = [Series(level_name(level), values, "level", level / reach) for level, values in levels.items()]
        charts.append(areas(path, history.times, series, end=end))
    return charts


def _bands(windows: Sequence[Window]) -> list[Band]:
    """One band a window; layers with the same window share it."""
    shared: dict[Window, list[int]] = {}
    for number, window in enumerate(windows, 1):
        shared.setdefault(window, []).append(number)
    return [
        Band(window.start, window.end, _range(numbers), (numbers[0] - 1) / max(len(windows) - 1, 1))
        for window, numbers in shared.items()
    ]


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def _told_windows(windows: Sequence[Window]) -> str:
    """The windows in words, for the caption."""
    bands = _bands(windows)
    if len(bands) > 6:
        return f"{len(bands)} windows from epoch {bands[0].start:g} to {max(band.end for band in bands):g}"
    return ", ".join(f"layer {band.label}: {band.start:g} to {band.end:g}" for band in bands)


def _setup(recipe: Recipe, how: Method) -> list[tuple[str, str]]:
    """The recipe in words."""
    model, optimizer, schedule = recipe.model, recipe.optimizer, recipe.schedule
    batch = f"{recipe.data.name}, batches of {recipe.data.batch_size}" + (", augmented" * recipe.data.augment)
    input_bits = model.settings.get("input_bits")
    pixels = f", input of {input_bits} bits" if input_bits else ""
    rows = [("data", batch), ("network", network(recipe) + pixels), ("method", how.name)]
    if how.weights:
        rows.append(("levels", f"weights {how.weights}; activations {how.activations}".replace("-", "−")))
    if how.ends not in ("both", "neither"):
        rows.append(("end layers", f"of the first and last layer, only the {how.ends} is quantized"))
    loss = recipe.loss.name
    before = f", after {recipe.twin_epochs} of the full-precision twin" if recipe.twin_epochs else ""
    rows += [
        ("loss", f"{loss}, smoothing {recipe.loss.label_smoothing:g}" if recipe.loss.label_smoothing else loss),
        ("optimizer", f"{optimizer.name}, learning rate {optimizer.lr:g}, {schedule.name} schedule"),
        ("epochs", f"{recipe.epochs}" + before),
        ("seed", f"{recipe.seed}"),
    ]
    return rows


def _circumstances(history: History) -> list[tuple[str, str]]:
    """When, where and with what; only what the run wrote down."""
    info: dict[str, Any] = dict(history.info)
    command = info.get("command")
    if isinstance(command, list) and command:
        info["command"] = shlex.join([PurePath(str(command[0])).name, *map(str, command[1:])])
    versions = [f"{part} {info[part]}" for part in ("lehr", "torch", "lightning", "python") if info.get(part)]
    info["versions"] = ", ".join(versions)
    names = ("started", "command", "commit", "versions", "platform", "threads")
    return [(name, str(info[name])) for name in names if info.get(name)]
