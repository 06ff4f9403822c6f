"""A run as one self-contained HTML page: settings, results, curves.

    path = write_report(Path("runs/digits-ana-seed0"))     # .../report.html

A run folder may come from a stranger: the templates escape all text, and the page's content security policy forbids it
to load anything and to run any script but its own hover script.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePath
from typing import Any, TypeVar

import jinja2
from markupsafe import Markup
from torch import Tensor, nn

from lehr.algorithms import Description
from lehr.data import AnyDataset, DataError
from lehr.printable import printable
from lehr.report.confusion import Confusion, confuse
from lehr.report.curves import curves, share_curves, windows_in_words
from lehr.report.experiment import describe, network
from lehr.report.history import History, read_run, share_table
from lehr.report.numbers import duration, level_name, percent, size
from lehr.summary import Summary, summarize
from lehr.training.folder import RunError, RunFolder
from lehr.training.recipe import Recipe
from lehr.training.trust import trusting

T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """A number shown large, and a note below it."""

    name: str
    value: str
    note: str = ""


def write_report(path: Path) -> Path:
    """Write RUN/report.html and return its path. An unfinished run is shown as far as it has come.

    Classes of the recipe that are not lehr's are not imported, whatever the user trusts; the page says what is missing.

    Args:
        path: the run folder.
    """
    missing: dict[str, str] = {}
    with trusting(False):
        history = read_run(path)
        summary = _unless_missing("table of layers", lambda: summarize(*_network(path)), missing)
        confusion = _unless_missing("confusion matrix", lambda: confuse(*network_and_test_images(path)), missing)
    for name in missing if history.not_imported else ():
        missing[name] = f"a report imports only classes of lehr, and this needs {history.not_imported[0]}"
    target = path / "report.html"
    page = render(
        "run.html",
        history=history,
        recipe=history.recipe,
        network=network(history.recipe),
        figures=_figures(history, summary, confusion),
        charts=curves(history),
        shares=share_curves(history),
        share_table=Markup(share_table(history).html("numbers")),
        windows=windows_in_words(history.windows),
        summary=summary,
        layers=Markup("" if summary is None else summary.table().html("numbers")),
        confusion=confusion,
        worst=Markup("" if confusion is None or not confusion.worst().rows else confusion.worst().html("numbers")),
        missing=missing,
        setup=_setup(history.recipe, describe(history.recipe)),
        circumstances=_circumstances(history),
        recipe_text=RunFolder(path).recipe.read_text(),
    )
    target.write_text(page, encoding="utf-8")
    return target


def render(template: str, **content: object) -> str:
    """Fill a template, with its style and script inside the page.

    Markup in the content is escaped unless it is `Markup`; control characters are shown as escapes.

    Args:
        template: a file of the folder templates.
        content: the names that the template uses; one that is missing is an error.
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


def _network(path: Path) -> tuple[nn.Module, Tensor]:
    from lehr.training.run import network_of

    return network_of(str(path))


def network_and_test_images(path: Path) -> tuple[nn.Module, AnyDataset]:
    """Return the network of a run and its test data."""
    from lehr.training.run import load_run

    model, _, splits = load_run(path)
    return model, splits.test


def _unless_missing(name: str, make: Callable[[], T], missing: dict[str, str]) -> T | None:
    """Return what `make` returns; None, with the reason in `missing`, if the network or its data cannot be had."""
    try:
        return make()
    # RuntimeError: the weights are of another network; ValueError: the data are not those of the recipe.
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


def _setup(recipe: Recipe, told: Description) -> list[tuple[str, str]]:
    """Return the settings of the recipe in words."""
    model, optimizer, schedule = recipe.model, recipe.optimizer, recipe.schedule
    batch = f"{recipe.data.name}, batches of {recipe.data.batch_size}" + (", augmented" * recipe.data.augment)
    input_bits = model.settings.get("input_bits")
    pixels = f", input of {input_bits} bits" if input_bits else ""
    rows = [("data", batch), ("network", network(recipe) + pixels), ("method", told.name)]
    if told.weights:
        rows.append(("levels", f"weights {told.weights}; activations {told.activations}".replace("-", "−")))
    if told.end_layers in ("first", "last"):
        rows.append(("end layers", f"only the {told.end_layers} layer is quantized"))
    if told.estimator:
        rows.append(("estimator", told.estimator))
    if told.becomes:
        rows.append(("becomes", told.becomes))
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
    """Return when, where and with which versions it ran, as far as the run recorded it."""
    info: dict[str, Any] = dict(history.info)
    command = info.get("command")
    if isinstance(command, list) and command:
        info["command"] = shlex.join([PurePath(str(command[0])).name, *map(str, command[1:])])
    versions = [f"{part} {info[part]}" for part in ("lehr", "torch", "lightning", "python") if info.get(part)]
    info["versions"] = ", ".join(versions)
    names = ("started", "command", "commit", "versions", "platform", "threads")
    return [(name, str(info[name])) for name in names if info.get(name)]
