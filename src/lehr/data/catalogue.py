"""The data sets by name: `load` reads one into memory, `load_streamed` finds its files, `fetch` downloads them.

>>> train, validation, test = load("digits", seed=0)
>>> len(train), len(validation), len(test), train.shape
(1253, 180, 364, (1, 8, 8))
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Protocol

from lehr.data.cifar10 import Cifar10
from lehr.data.dataset import Dataset, DownloadError, Splits, hold_out
from lehr.data.download import Download, Progress, obtain, progress_bars
from lehr.data.har import Har
from lehr.data.imagenet import StreamedSplits, load_images
from lehr.data.mnist import FASHION_MNIST, MNIST
from lehr.data.scikit_digits import Digits
from lehr.data.shapes import write_shapes
from lehr.data.ucr import ECG5000, FORD_A

STREAMED = ("imagenet", "shapes")


class Source(Protocol):
    """A data set: its name, how to read its files and where to fetch them.

    `read` raises DataError if a file is missing or damaged; the message names the file, what was expected and what was
    found.
    """

    @property
    def name(self) -> str:
        """The name that users type."""
        ...

    @property
    def validation(self) -> int:
        """How many training images are held out by default."""
        ...

    def read(self, root: Path) -> tuple[Dataset, Dataset]:
        """Read and check (training, test); `root` is the data folder or the folder of this data set."""
        ...

    def missing(self, root: Path) -> tuple[Download, ...]:
        """Return the files that are missing or damaged and must be fetched before `read`."""
        ...


SOURCES: dict[str, Source] = {
    source.name: source for source in (Digits(), MNIST, FASHION_MNIST, Cifar10(), Har(), ECG5000, FORD_A)
}


def folder() -> Path:
    """Return the data folder: LEHR_DATA if set, else ~/.cache/lehr/data."""
    return Path(os.environ.get("LEHR_DATA") or "~/.cache/lehr/data").expanduser()


def names() -> tuple[str, ...]:
    """Return the names of the data sets that `load` and `fetch` take."""
    return tuple(SOURCES)


def states(root: str | Path | None = None) -> dict[str, str]:
    """Return for each data set "complete", or how many of its files are missing from the folder."""
    missing = {name: len(source.missing(_root(root))) for name, source in SOURCES.items()}
    words = {0: "complete", 1: "a file is missing"}
    return {name: words.get(count, f"{count} files are missing") for name, count in missing.items()}


def load(name: str, root: str | Path | None = None, *, seed: int = 0, validation: int | None = None) -> Splits:
    """Read a data set into memory and hold out some of its training images for validation.

    Args:
        name: one of `names()`.
        root: the folder of its files (None: `folder()`).
        seed: selects the held-out images; the test images do not depend on it.
        validation: how many to hold out (None: 5000 of CIFAR-10 and of the MNISTs, 180 of digits, ...); of a data set
            of people, the people that have at least so many together.
    """
    source = _find(name)
    training, test = source.read(_root(root))
    count = source.validation if validation is None else validation
    return Splits(*hold_out(training, count, seed=seed), test)


def load_streamed(
    name: str, root: str | Path | None = None, *, size: int | None = None, seed: int = 0, validation: int | None = None
) -> StreamedSplits:
    """Find the files of a data set that is read during training; draw the missing images of `shapes`.

    Args:
        name: one of `STREAMED`.
        root: the folder of its files (None: `folder()`).
        size: pixels a side of the cropped images (None: 224).
        seed: selects the held-out training images.
        validation: how many to hold out (None: ten times the classes).
    """
    if name not in STREAMED:
        raise ValueError(f"no streamed data set is called {name!r}; choose {', '.join(STREAMED)}")
    home = write_shapes(_root(root) / name) if name == "shapes" else _root(root)
    return load_images(home, size=size or 224, seed=seed, validation=validation)


def fetch(name: str, root: str | Path | None = None, *, progress: Progress | None = None) -> None:
    """Download the missing or damaged files of a data set, and check that `load` can read them.

    Args:
        name: one of `names()`.
        root: the folder for the files (None: `folder()`).
        progress: called as bytes arrive (None: draw bars if standard error is a terminal).
    """
    source, home = _find(name), _root(root)
    try:
        with progress_bars() as bars:
            for wanted in source.missing(home):
                needed = functools.partial(_needs, source, home, wanted)
                obtain(wanted, home, progress=progress or bars, needed=needed)
    except DownloadError as error:
        by_hand = "".join(f"\n  {file.source}\n    as {home / file.path}" for file in source.missing(home))
        raise DownloadError(
            f"{error}\nWithout network, copy these files here and run `lehr data {name}` again:{by_hand}"
        ) from error
    except OSError as error:
        raise DownloadError(f"cannot write below {home}: {error}") from error
    source.read(home)


def fetch_missing(name: str, root: str | Path | None = None) -> None:
    """Fetch what is missing or damaged of a data set that has a place: the data folder, or a folder that exists.

    Args:
        name: of a data set, one of `names()` or not.
        root: the folder for the files (None: `folder()`).
    """
    if name in SOURCES and (root is None or _root(root).is_dir()) and SOURCES[name].missing(_root(root)):
        fetch(name, root)


def _needs(source: Source, home: Path, wanted: Download) -> bool:
    return wanted in source.missing(home)


def _find(name: str) -> Source:
    if name not in SOURCES:
        raise ValueError(
            f"no data set is called {name!r}; choose {', '.join(SOURCES)}; imagenet and folder (your own images) "
            "cannot be fetched: recipes read them from data.root"
        )
    return SOURCES[name]


def _root(root: str | Path | None) -> Path:
    return folder() if root is None else Path(root).expanduser()
