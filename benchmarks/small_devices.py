"""Draws what the data of the small-device recipes look like, docs/pictures/{har,ecg,ford-a,tiny-image}.svg.

    python benchmarks/small_devices.py           # needs the data sets: `lehr data har`, `ecg5000`, `ford-a`, `cifar10`
    python benchmarks/small_devices.py RUN/twin  # instead: a float twin in 8 and in 4 bits, calibrated and not trained

The pictures show one test sample of each class: the first one of the file, so that nothing is chosen by hand.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from matplotlib.figure import Figure

import lehr
from lehr.data import Dataset, Splits, load
from lehr.report.style import BLUE, ORANGE, PAGE, SKY, VERMILION, save, styled
from lehr.training.run import load_run

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def firsts(dataset: Dataset) -> list[tuple[str, torch.Tensor]]:
    """Each class with its first sample."""
    labels = dataset.labels.tolist()
    return [(name, dataset.images[labels.index(label)]) for label, name in enumerate(dataset.classes)]


@styled
def activities(dataset: Dataset) -> Figure:
    """Acceleration above and rotation below, a column for each activity."""
    figure = Figure(figsize=(1.5 * PAGE, 2.2))
    samples = firsts(dataset)
    axes = figure.subplots(2, len(samples), sharex=True, sharey="row")
    seconds = torch.arange(dataset.shape[1]) / 50
    for column, (name, sample) in zip(axes.T, samples, strict=True):
        for row, panel in enumerate(column):
            for axis, colour in enumerate((BLUE, ORANGE, VERMILION)):
                panel.plot(seconds, sample[3 * row + axis], color=colour, linewidth=0.8, label="xyz"[axis])
        column[0].set_title(name, fontsize=7)
        column[1].set_xlabel("seconds")
    axes[0, 0].set_ylabel("acceleration, g")
    axes[1, 0].set_ylabel("rotation, rad/s")
    axes[1, -1].legend(fontsize=6, loc="lower right", ncols=3)
    return figure


@styled
def curves(dataset: Dataset, titles: list[str], unit: str) -> Figure:
    """A panel for each class."""
    figure = Figure(figsize=(1.5 * PAGE, 1.4))
    panels = figure.subplots(1, len(dataset.classes), sharey=True)
    for panel, title, (_, sample) in zip(panels, titles, firsts(dataset), strict=True):
        panel.plot(sample[0], color=BLUE, linewidth=0.8)
        panel.axhline(0, color=SKY, linewidth=0.5)
        panel.set_title(title, fontsize=7)
        panel.set_xlabel(unit)
    panels[0].set_ylabel("z-normalised")
    return figure


@styled
def thumbnails(dataset: Dataset) -> Figure:
    """An image of each class."""
    figure = Figure(figsize=(1.5 * PAGE, 0.9))
    for panel, (name, image) in zip(figure.subplots(1, len(dataset.classes)), firsts(dataset), strict=True):
        panel.imshow(image.permute(1, 2, 0))
        panel.set_title(name, fontsize=7)
        panel.axis("off")
    return figure


@torch.no_grad()
def calibrated(twin: Path, precision: str) -> str:
    """Quantize a float network to `precision` with scales fitted to 512 training windows; its accuracy and size."""
    model, _, splits = load_run(twin)
    assert isinstance(splits, Splits)
    order = torch.randperm(len(splits.train), generator=torch.Generator().manual_seed(0))
    batches = splits.train.images[order[:512]].split(64)
    lehr.quantize_(model, weights=precision, activations=precision, data=batches)
    lehr.Annealer(model, lehr.annealing.Window(0, 1)).seek(1)  # no noise
    right = model.eval()(splits.test.images).argmax(1) == splits.test.labels
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.lehr"
        lehr.freeze(model, batches[0][:1], classes=splits.test.classes).save(file)
        return f"{precision}: {right.double().mean():.2%} of the test data, {file.stat().st_size:,} bytes"


def main() -> None:
    """Draw all four, or calibrate a twin."""
    if len(sys.argv) > 1:
        for precision in ("8bit", "4bit"):
            print(calibrated(Path(sys.argv[1]), precision))
        return
    heart, engines = load("ecg5000").test, load("ford-a").test
    pictures = {
        "har": activities(load("har").test),
        "ecg": curves(heart, list(heart.classes), "sample"),
        "ford-a": curves(engines, [f"class {name}" for name in engines.classes], "sample"),
        "tiny-image": thumbnails(load("cifar10").test),
    }
    for name, figure in pictures.items():
        save(figure, PICTURES / name, ["svg"])


if __name__ == "__main__":
    main()
