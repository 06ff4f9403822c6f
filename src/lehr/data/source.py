"""A source is one data set as data: its name, its files, how to read and where to fetch them.

Each family of file formats is one class that answers `read`; each data set is one value of such a class,
listed in catalogue.py. A file that is missing, damaged or not what its name says is a `DataError` that names
the file, what was expected and what was found.
"""

import os
from abc import ABC, abstractmethod
from pathlib import Path

import torch
from torch import Tensor

from .dataset import Dataset
from .download import Download
from .errors import DataError


class Source(ABC):
    """One data set: `read` answers its training and test images from the files below a data folder."""

    name: str
    validation: int  # how many training images are held out where the user does not say

    @abstractmethod
    def read(self, root: Path) -> tuple[Dataset, Dataset]:
        """Read and check (training, test); `root` is the data folder or the data set's own."""

    @abstractmethod
    def missing(self, root: Path) -> tuple[Download, ...]:
        """Return what must be fetched before `read` can work: what is not there, or damaged."""


def folder() -> Path:
    """Return the data folder: LEHR_DATA where that is set, or ~/.cache/lehr/data."""
    return Path(os.environ.get("LEHR_DATA") or "~/.cache/lehr/data").expanduser()


def check_labels(
    labels: Tensor,  # (sample,), any integers
    classes: tuple[str, ...],
    path: Path,
) -> None:
    """Raise DataError for the first label that names no class."""
    wrong = torch.nonzero((labels < 0) | (labels >= len(classes))).flatten()
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{path}: expected labels from 0 to {len(classes) - 1}, found {int(labels[first])}"
            f" at sample {first} ({len(wrong)} of {len(labels)} labels are wrong)"
        )


def check_counts(
    labels: Tensor,  # (sample,), int64, checked
    classes: tuple[str, ...],
    path: Path,
    counts: tuple[int, ...] | None = None,
) -> None:
    """Raise DataError where classes are not as frequent as `counts` says, or not equally: a copied file shows here."""
    expected = counts or (len(labels) // len(classes),) * len(classes)
    for label, found in enumerate(torch.bincount(labels, minlength=len(classes)).tolist()):
        if found != expected[label]:
            each = "" if counts else " of each class"
            raise DataError(
                f"{path}: expected {expected[label]} images{each}, found {found} of class {label}"
                f" ({classes[label]}): is one of the files a copy of another, or another data set's?"
            )
