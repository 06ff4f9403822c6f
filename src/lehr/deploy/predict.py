"""Classify image files, or arrays in .npy and .csv files, with a packed network; measure it on labelled folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lehr.deploy.arrays import SUFFIXES, read_examples
from lehr.deploy.build import CompilerError
from lehr.deploy.cpu import Engine, compile
from lehr.deploy.images import ImageError, image_batch, image_files
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.pack import load
from lehr.table import Table, Tabular


def predict(
    file: Path, paths: Sequence[Path], *, resize: bool = False, hop: int | None = None, mirror: bool = False
) -> Iterator[tuple[Path, tuple[str, str, str, str] | ImageError]]:
    """For each image: the class and its score, the next best class and its score; or why it could not be read.

    An .npy or .csv file may hold several examples, or a recording, which is cut into windows, one every `hop` samples;
    each is named FILE[number]. A network with one number as its output gives that instead of a class; of several
    outputs the first counts. With `mirror` the scores are the mean of those of the image and its mirror image.

    Runs in the compiled engine, or, where it cannot be built, in the reference run, with the same result.
    """
    net = load(file)
    if mirror and len(net.input_shape) != 3:
        shape = "x".join(map(str, net.input_shape))
        raise ImageError(f"only images have a mirror image: this network takes inputs of shape {shape}")
    run = _runner(net)
    for path in image_files(paths):
        try:
            batch = _read(path, net, resize=resize, hop=hop)
        except ImageError as error:
            yield path, error
            continue
        outputs = _first_output(net, run.run(batch))
        if mirror:
            outputs = (outputs + _first_output(net, run.run(np.ascontiguousarray(batch[..., ::-1])))) / 2
        for number, output in enumerate(outputs.reshape(len(batch), -1)):
            label = path if len(batch) == 1 else Path(f"{path}[{number}]")
            best, second = _two_best(output)
            yield label, (_name(net, best), f"{output[best]:.4g}", _name(net, second), f"{output[second]:.4g}")


@dataclass(frozen=True)
class Measured(Tabular):
    """How many images of each class a network classifies correctly; prints as a table."""

    rows: tuple[tuple[str, int, int], ...]  # class, images, of them right

    @property
    def accuracy(self) -> float:
        """The share of all images that is right."""
        return sum(right for _, _, right in self.rows) / sum(images for _, images, _ in self.rows)

    def table(self) -> Table:
        """Return a row for each class, and the total."""
        rows = [(name, images, right, f"{right / images:.2%}") for name, images, right in self.rows]
        images, right = sum(images for _, images, _ in self.rows), sum(right for _, _, right in self.rows)
        return Table(("class", "images", "right", "accuracy"), rows, ("total", images, right, f"{self.accuracy:.2%}"))


def is_labelled(path: Path) -> bool:
    """Whether this is a folder of folders, and holds no image itself."""
    return path.is_dir() and any(x.is_dir() for x in path.iterdir()) and list(image_files([path])) == [path]


def measure(file: Path, folder: Path, *, resize: bool = False, mirror: bool = False) -> Measured:
    """Classify the images in folders that are named for the classes, or for their numbers if they have no names.

    Raises ValueError if a folder is named for no class, ImageError for an image that cannot be read.

    Args:
        file: the packed network
        folder: the folder of the folders
        resize: crop images of another size to their middle and scale it
        mirror: average the scores of each image and its mirror image
    """
    net, rows = load(file), []
    names = net.classes or tuple(map(str, range(net.output.size)))
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        if inner.name not in names:
            raise ValueError(f"{inner} is named for no class of this network, which has {', '.join(names)}")
        right = []
        for _, answer in predict(file, [inner], resize=resize, mirror=mirror):
            if isinstance(answer, ImageError):
                raise answer
            right.append(answer[0] == inner.name)
        rows.append((inner.name, len(right), sum(right)))
    return Measured(tuple(rows))


def _read(path: Path, net: IntegerNet, *, resize: bool, hop: int | None) -> np.ndarray:
    if path.suffix.lower() in SUFFIXES:
        return read_examples(path, net, hop=hop)
    if net.input_dtype != "uint8" or len(net.input_shape) != 3:
        shape = "x".join(map(str, net.input_shape))
        raise ImageError(f"{path}: this network takes {net.input_dtype} of shape {shape}: give a .npy or .csv file")
    return image_batch(path, net, resize=resize)


def _first_output(net: IntegerNet, found: object) -> np.ndarray:
    return np.asarray(found[net.outputs[0].name] if isinstance(found, dict) else found)


def _two_best(
    scores: np.ndarray,  # (class,)
) -> tuple[int, int]:
    """The first of the largest scores and the first of the largest others; what is no number comes last."""
    ranked = np.where(np.isnan(scores), -np.inf, scores)
    best = int(ranked.argmax())
    others = np.delete(ranked, best)
    if not len(others):
        return best, best
    second = int(others.argmax())
    return best, second + (second >= best)


def _name(net: IntegerNet, number: int) -> str:
    return net.classes[number] if net.classes else str(number)


def _runner(net: IntegerNet) -> Engine | IntegerNet:
    try:
        return compile(net)
    except CompilerError:  # there is no compiler, or no folder to keep what it makes
        return net
