"""Images or signals in memory, and their labels.

Pixels are uint8, (sample, channel, height, width); signals, such as a window of a sensor's samples, are float32,
(sample, channel, time). Both stay as they are until the network's first module, which normalises them with the data
set's `mean` and `std` per channel: of pixel / 255, or of the signals. A `Dataset` is map-style, so torch's DataLoader
takes it too.

>>> import torch
>>> pixels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
>>> digits = Dataset(pixels, torch.tensor([0, 1, 1, 0]), classes=("zero", "one"), mean=(0.3,), std=(0.4,))
>>> len(digits), digits.shape
(4, (1, 8, 8))
>>> image, label = digits[1]
>>> len(digits.take(torch.tensor([0, 3])))
2
>>> windows = torch.randn(4, 6, 128)  # of acceleration and rotation
>>> steps = Dataset(windows, torch.tensor([0, 1, 1, 0]), ("walking", "sitting"), mean=(0.0,) * 6, std=(1.0,) * 6)
>>> steps.shape
(6, 128)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import torch
import torch.utils.data
from torch import Tensor


class DataError(Exception):
    """A file of a data set is missing, damaged or another file than its name says."""


class DownloadError(DataError):
    """A file could not be fetched."""


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Dataset(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Labelled images or signals: `images[i]` shows a `classes[labels[i]]`.

    Args:
        images: the pixels, or the signals; int16, as converters measure them, becomes float32.
        labels: the class number of each image.
        classes: the names of the classes.
        mean: per channel, of pixel / 255 or of the signals.
        std: standard deviation, per channel, of the same.
        skipped: files that could not be read and are not among the images, and why.
        groups: who or what each sample was measured on; `hold_out` keeps the samples of a group together.
    """

    images: Tensor  # (sample, channel, height, width), uint8; or (sample, channel, ...), float32
    labels: Tensor  # (sample,), int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    groups: Tensor | None = None  # (sample,), int64

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype == torch.int16:
            object.__setattr__(self, "images", images.float())
        elif images.dtype not in (torch.uint8, torch.float32):
            raise TypeError(
                "images must be uint8 (sample, channel, height, width), and signals float32 or int16 "
                f"(sample, channel, ...), got {images.dtype} {tuple(images.shape)}"
            )
        if images.ndim != 4 if images.dtype == torch.uint8 else not 2 <= images.ndim <= 4:
            raise TypeError(
                "images have the shape (sample, channel, height, width), signals at least (sample, channel) and at "
                f"most four dimensions, got {images.dtype} {tuple(images.shape)}"
            )
        if images.dtype == torch.float32 and not bool(torch.isfinite(images).all()):
            raise ValueError("signals must be finite, got infinite numbers or NaN")
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise TypeError(f"labels must be int64 (sample,), got {labels.dtype} {tuple(labels.shape)}")
        if len(images) != len(labels):
            raise ValueError(f"every image needs one label, got {len(images)} images and {len(labels)} labels")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.classes):
            raise ValueError(
                f"labels of {len(self.classes)} classes must be in 0..{len(self.classes) - 1}, "
                f"got {int(labels.min())}..{int(labels.max())}"
            )
        if not len(self.mean) == len(self.std) == images.shape[1]:
            raise ValueError(
                f"images of {images.shape[1]} channels need as many means and stds, got {self.mean} and {self.std}"
            )
        if min(self.std) <= 0:
            raise ValueError(f"every std must be positive, got {self.std}")
        if self.groups is not None and (self.groups.dtype != torch.int64 or self.groups.shape != labels.shape):
            raise TypeError(
                f"groups must be int64, one for each label, got {self.groups.dtype} {tuple(self.groups.shape)}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """(channel, height, width) of one image, (channel, time) of one signal."""
        return tuple(self.images.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | slice | Tensor) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def take(
        self,
        indices: Tensor,  # (some,), int64
    ) -> Dataset:
        """Return the samples at `indices`, in that order, as a data set."""
        groups = None if self.groups is None else self.groups[indices]
        return replace(self, images=self.images[indices], labels=self.labels[indices], groups=groups)


class Splits(NamedTuple):
    """Images to train on, images to make choices by, and images to report."""

    train: Dataset
    validation: Dataset
    test: Dataset


class _Labelled(Protocol):
    @property
    def labels(self) -> Tensor: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def groups(self) -> Tensor | None: ...
    def __len__(self) -> int: ...
    def take(self: _L, indices: Tensor) -> _L: ...


_L = TypeVar("_L", bound=_Labelled)


def hold_out(dataset: _L, count: int, *, seed: int) -> tuple[_L, _L]:
    """Split a data set into (kept, held out), both in its order and with the same shares of the classes.

    A class contributes count * (its size) / (all), rounded by largest remainder: exactly 500 of each for the paper's 5k
    of CIFAR-10. The paper does not say how it chose them. Of a data set with groups, whole groups are held out, in an
    order that the seed draws, until they have `count` samples: a network must know people that it has never seen.

    Args:
        dataset: a `Dataset` or `ImageFiles`.
        count: how many samples to hold out.
        seed: selects them.

    >>> from lehr.data import load
    >>> train, validation, test = load("digits")
    >>> kept, held_out = hold_out(train, 100, seed=1)
    >>> len(kept) + len(held_out) == len(train), len(held_out)
    (True, 100)
    """
    total = len(dataset)
    if not 0 <= count < max(total, 1):
        raise ValueError(f"validation must be in 0..{max(total - 1, 0)} for {total} samples, got {count}")
    generator = torch.Generator().manual_seed(seed)
    if dataset.groups is not None:
        held = _whole_groups(dataset.groups, count, generator)
        return dataset.take(torch.nonzero(~held).flatten()), dataset.take(torch.nonzero(held).flatten())
    sizes = torch.bincount(dataset.labels, minlength=len(dataset.classes)).tolist()
    shares = [size * count // max(total, 1) for size in sizes]
    remainders = [size * count % max(total, 1) for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda label: -remainders[label])
    for label in by_remainder[: count - sum(shares)]:
        shares[label] += 1
    held = torch.zeros(total, dtype=torch.bool)
    for label, (size, share) in enumerate(zip(sizes, shares, strict=True)):
        members = torch.nonzero(dataset.labels == label).flatten()
        held[members[torch.randperm(size, generator=generator)[:share]]] = True
    return dataset.take(torch.nonzero(~held).flatten()), dataset.take(torch.nonzero(held).flatten())


def _whole_groups(
    groups: Tensor,  # (sample,)
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Return which samples are held out: those of groups in a random order, until they are `count` or more."""
    names, sizes = groups.unique(return_counts=True)
    order = torch.randperm(len(names), generator=generator)
    before = sizes[order].cumsum(0) - sizes[order]  # samples of the groups that come earlier
    held = names[order[before < count]]
    if len(held) == len(names):
        raise ValueError(f"holding out {count} samples would take all {len(names)} groups: none would be left to train")
    return torch.isin(groups, held)


def check_labels(
    labels: Tensor,  # (sample,), any integers
    classes: tuple[str, ...],
    path: Path,
) -> None:
    """Raise DataError if a label of a file is not the number of a class."""
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
    """Raise DataError if the classes are not as frequent as `counts` (None: equally), as when one file is a copy."""
    expected = counts or (len(labels) // len(classes),) * len(classes)
    for label, found in enumerate(torch.bincount(labels, minlength=len(classes)).tolist()):
        if found != expected[label]:
            each = "" if counts else " of each class"
            raise DataError(
                f"{path}: expected {expected[label]} images{each}, found {found} of class {label}"
                f" ({classes[label]}): is one of the files a copy of another, or another data set's?"
            )
