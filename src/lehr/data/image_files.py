"""Labelled image files on disk, decoded when they are needed: what `Dataset` is in memory.

>>> names, labels = Names(["a/1.jpg", "b/2.jpg"]), torch.tensor([0, 1])
>>> files = ImageFiles(Path("root"), names, torch.arange(2), labels, classes=("a", "b"), size=224)
>>> len(files), files.shape, files.path(1).name
(2, (3, 224, 224), '2.jpg')
>>> len(files.take(torch.tensor([1])))
1
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .decode import CentreCrop, Crop, Decoded, decode_batch
from .errors import DataError
from .names import Names
from .seed import mixed

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's training images, per channel of pixel / 255; so is the std
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Files below `root`: `names[samples[i]]` shows a `classes[labels[i]]`; `size` pixels a side when decoded."""

    root: Path
    names: Names
    samples: Tensor  # (sample,), int64: which of the names
    labels: Tensor  # (sample,), int64
    classes: tuple[str, ...]
    size: int
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.samples):
            raise ValueError(f"every file needs one label, got {len(self.samples)} files and {len(self.labels)} labels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channel, height, width) of one decoded image."""
        return (3, self.size, self.size)

    def __len__(self) -> int:
        return len(self.samples)

    def path(self, index: int) -> Path:
        """Return the file of a sample."""
        return self.root / self.names[int(self.samples[index])]

    def take(
        self,
        indices: Tensor,  # (some,), int64
    ) -> "ImageFiles":
        """Return the samples at `indices`, in that order, as a data set of their own."""
        return replace(self, samples=self.samples[indices], labels=self.labels[indices])

    def decode(self, indices: Sequence[int], crop: Crop, *, seed: int = 0, epoch: int = 0) -> Decoded:
        """Decode some samples; what is drawn for one depends on (seed, epoch, its number in the folder) alone."""
        files = [_content(self.path(index)) for index in indices]
        seeds = [mixed(seed, epoch, int(self.samples[index])) for index in indices]
        return decode_batch(files, crop, seeds)

    def examples(self, count: int) -> Tensor:
        """Return up to `count` images as evaluation sees them, spread over the data set; files that fail are left out.

        Raises DataError where none of those can be read.
        """
        chosen = spread(count, len(self)).tolist()
        decoded = self.decode(chosen, CentreCrop.of(self.size))
        if not decoded.positions:
            first, reason = self.path(chosen[0]), decoded.failures[0][1]
            raise DataError(f"{self.root}: none of {len(chosen)} images tried can be read; {first}: {reason}")
        return decoded.images


def spread(count: int, total: int) -> Tensor:  # int64
    """Return up to `count` of the numbers below `total`, evenly, the first and the last among them.

    >>> spread(3, 24), spread(5, 2)
    (tensor([ 0, 11, 23]), tensor([0, 1]))
    """
    count = min(count, total)
    return torch.arange(count) * (total - 1) // max(count - 1, 1)


def _content(path: Path) -> bytes | str:
    """Return a file's content, or why there is none."""
    try:
        return path.read_bytes()
    except OSError as error:
        return error.strerror or str(error)
