"""The networks and the data of docs/small-devices.md.

    python benchmarks/small_devices.py RUN  # a trained network, and its float twin in 8 and in 4 bits, calibrated
    python benchmarks/small_devices.py      # instead: draws docs/pictures/{har,ecg,ford-a,tiny-image}.svg

Of each network: accuracy on test data, bytes of the packed file, and what its C takes on a Cortex-M4 (devices.py). The
pictures show one test sample of each class: the first one of the file, so that nothing is chosen by hand. Both need the
data sets: `lehr data har`, `ecg5000`, `ford-a`, `cifar10`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure

import lehr
from devices import measure, missing
from lehr.data import Dataset, Splits, load
from lehr.deploy import IntegerNet
from lehr.report.style import BLUE, ORANGE, PAGE, SKY, VERMILION, save, styled
from lehr.training.run import load_network, load_run

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


def precisions(run: Path) -> Iterator[tuple[str, IntegerNet]]:
    """The network of a run, and its float twin quantized with scales that 512 training samples fit, not trained."""
    model, _, splits = load_run(run)
    assert isinstance(splits, Splits)
    order = torch.randperm(len(splits.train), generator=torch.Generator().manual_seed(0))
    batches = splits.train.images[order[:512]].split(64)
    yield "as trained", lehr.freeze(model.eval(), batches[0][:1], classes=splits.test.classes)
    for precision in ("8bit", "4bit"):
        twin, _ = load_network(run / "twin")
        lehr.quantize_(twin, weights=precision, activations=precision, data=batches)
        lehr.Annealer(twin, lehr.annealing.Window(0, 1)).seek(1)  # no noise
        yield f"{precision}, calibrated", lehr.freeze(twin.eval(), batches[0][:1], classes=splits.test.classes)


def figures(net: IntegerNet, test: Dataset) -> dict[str, str]:
    """What docs/results.yaml holds of a network: accuracy, bytes, and RAM, flash and instructions on a Cortex-M4."""
    right = (lehr.deploy.compile(net).predict(test.images.numpy()) == test.labels.numpy()).mean()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.lehr"
        net.save(file)
        found = {"accuracy": f"{right:.2%}", "bytes": f"{file.stat().st_size:,}"}
        if not missing("cortex-m4"):
            counted = measure(net, "cortex-m4", Path(folder) / "c")
            numbers = {"RAM": counted.memory, "flash": counted.flash, "instructions": counted.instructions}
            found |= {name: f"{number:,}" for name, number in numbers.items()}
    return found


def main() -> None:
    """Measure the networks of runs, or draw all four pictures."""
    if len(sys.argv) > 1:
        for run in map(Path, sys.argv[1:]):
            test = load_run(run)[2].test
            assert isinstance(test, Dataset)
            for precision, net in precisions(run):
                print(f"{run}, {precision}:", *(f"{what} {value}" for what, value in figures(net, test).items()))
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
