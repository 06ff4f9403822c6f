"""Labelled image files on disk, decoded when needed; `Dataset` is the same in memory.

>>> names, labels = Names(["a/1.jpg", "b/2.jpg"]), torch.tensor([0, 1])
>>> files = ImageFiles(Path("root"), names, torch.arange(2), labels, classes=("a", "b"), size=224)
>>> len(files), files.shape, files.path(1).name
(2, (3, 224, 224), '2.jpg')
>>> len(files.take(torch.tensor([1])))
1
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lehr.data.dataset import DataError
from lehr.data.decode import CentreCrop, Sample, decode_batch

EXTENSIONS = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm")
MEAN = (0.485, 0.456, 0.406)  # of ImageNet's training images, per channel of pixel / 255; so is the std
STD = (0.229, 0.224, 0.225)


class Names:
    """An immutable sequence of strings, stored in two arrays.

    Reader processes change the reference counts of a list's million strings and so copy their memory pages; arrays stay
    shared.

    >>> names = Names(["n01440764/a.JPEG", "n01443537/b.JPEG"])
    >>> names[1], len(names)
    ('n01443537/b.JPEG', 2)
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self._bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} names, got index {index}")
        return self._bytes[self._ends[index] : self._ends[index + 1]].tobytes().decode("utf-8", "surrogateescape")


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Files below `root`: `names[samples[i]]` shows a `classes[labels[i]]`.

    Args:
        root: the folder.
        names: all files, relative to the folder.
        samples: the numbers of the files that belong to this data set.
        labels: the class number of each sample.
        classes: the names of the classes.
        size: pixels a side when decoded.
        mean: mean of pixel / 255, per channel.
        std: standard deviation of pixel / 255, per channel.
    """

    root: Path
    names: Names
    samples: Tensor  # (sample,), int64
    labels: Tensor  # (sample,), int64
    classes: tuple[str, ...]
    size: int
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.samples):
            raise ValueError(f"every file needs one label, got {len(self.samples)} files and {len(self.labels)} labels")

    @property
    def groups(self) -> None:
        """None: nothing tells which files belong together."""
        return

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channel, height, width) of one decoded image."""
        return (3, self.size, self.size)

    def __len__(self) -> int:
        return len(self.samples)

    def path(self, index: int) -> Path:
        """Return the file of a sample."""
        return self.root / self.names[int(self.samples[index])]

    def sample(self, index: int) -> Sample:
        """Read a sample; its number is that of its file among all `names`."""
        path = self.path(index)
        try:
            file = path.read_bytes()
        except OSError as error:
            file = error.strerror or str(error)
        return Sample(int(self.samples[index]), str(path), file, int(self.labels[index]))

    def take(
        self,
        indices: Tensor,  # (some,), int64
    ) -> ImageFiles:
        """Return the samples at `indices`, in that order, as a data set."""
        return replace(self, samples=self.samples[indices], labels=self.labels[indices])

    def examples(self, count: int) -> Tensor:
        """Return up to `count` images spread evenly over the data set, as evaluation sees them.

        Skip files that cannot be read; raise DataError if none can.
        """
        chosen = [self.sample(index) for index in spread(count, len(self)).tolist()]
        images, _, failures = decode_batch(chosen, CentreCrop.of(self.size))
        if not len(images):
            name, reason = failures[0]
            raise DataError(f"{self.root}: none of {len(chosen)} images tried can be read; {name}: {reason}")
        return images


def spread(count: int, total: int) -> Tensor:  # int64
    """Return up to `count` evenly spaced numbers below `total`, including the first and the last.

    >>> spread(3, 24), spread(5, 2)
    (tensor([ 0, 11, 23]), tensor([0, 1]))
    """
    count = min(count, total)
    return torch.arange(count) * (total - 1) // max(count - 1, 1)


def read_folder(folder: Path, classes: Sequence[str] | None = None, *, size: int) -> ImageFiles:
    """List the images in a folder of class folders; classes are numbered in the order of their names.

    Args:
        folder: holds one folder per class with its images.
        classes: the classes of the training images (None: these are the training images; no class may be empty).
        size: pixels a side when decoded.
    """
    found = class_folders(folder)
    if not found:
        raise DataError(f"{folder}: expected a folder for each class, found none")
    unknown = sorted(set(found) - set(classes or found))
    if unknown:
        raise DataError(
            f"{folder}: expected the {len(classes or ())} classes of the training images, found {unknown[0]} too"
        )
    training, classes = classes is None, tuple(classes or found)
    number = {name: label for label, name in enumerate(classes)}
    names, labels, empty = [], [], []
    for name in found:
        files = [f"{name}/{file}" for file in image_names(folder / name)]
        empty += [] if files else [name]
        names += files
        labels += [number[name]] * len(files)
    if not names:
        raise DataError(f"{folder}: expected images ({', '.join(EXTENSIONS)}) in its class folders, found none")
    if training and empty:
        raise DataError(f"{folder}: expected images in every class folder, found none in {', '.join(empty[:5])}")
    return ImageFiles(folder, Names(names), torch.arange(len(names)), torch.tensor(labels), classes, size)


def class_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, in order."""
    return sorted(entry.name for entry in _scan(folder) if entry.is_dir())


def image_names(folder: Path) -> list[str]:
    """Return the names of the image files in a folder, in order."""
    return sorted(entry.name for entry in _scan(folder) if entry.name.lower().endswith(EXTENSIONS))


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: expected a readable folder, found: {error.strerror}") from error
