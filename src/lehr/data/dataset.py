"""Images and their labels in memory, as every data set here answers: uint8 pixels, int64 labels.

Pixels stay uint8 until the network's first module, which owns normalisation; `mean` and `std` are the data
set's constants for it, per channel, of pixel / 255. A `Dataset` is map-style, so torch's DataLoader takes it
too.

>>> import torch
>>> pixels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
>>> digits = Dataset(pixels, torch.tensor([0, 1, 1, 0]), classes=("zero", "one"), mean=(0.3,), std=(0.4,))
>>> len(digits), digits.shape
(4, (1, 8, 8))
>>> image, label = digits[1]
>>> len(digits.take(torch.tensor([0, 3])))
2
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.utils.data
from torch import Tensor


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Dataset(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Labelled images: `images[i]` shows a `classes[labels[i]]`."""

    images: Tensor  # (sample, channel, height, width), uint8
    labels: Tensor  # (sample,), int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixel / 255
    std: tuple[float, ...]  # per channel, of pixel / 255

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise TypeError(
                f"images are uint8 (sample, channel, height, width), got {images.dtype} {tuple(images.shape)}"
            )
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise TypeError(f"labels are int64 (sample,), got {labels.dtype} {tuple(labels.shape)}")
        if len(images) != len(labels):
            raise ValueError(f"every image needs one label, got {len(images)} images and {len(labels)} labels")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.classes):
            raise ValueError(
                f"labels of {len(self.classes)} classes lie in 0..{len(self.classes) - 1}, "
                f"got {int(labels.min())}..{int(labels.max())}"
            )
        if not len(self.mean) == len(self.std) == images.shape[1]:
            raise ValueError(
                f"images of {images.shape[1]} channels need as many means and stds, got {self.mean} and {self.std}"
            )
        if min(self.std) <= 0:
            raise ValueError(f"a std to divide by is positive, got {self.std}")

    @property
    def shape(self) -> tuple[int, ...]:
        """(channel, height, width) of one image."""
        return tuple(self.images.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | slice | Tensor) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def take(
        self,
        indices: Tensor,  # (some,), int64
    ) -> "Dataset":
        """Return the samples at `indices`, in that order, as a data set of their own."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])


class Splits(NamedTuple):
    """What is trained on, what choices are made by, and what is reported."""

    train: Dataset
    validation: Dataset
    test: Dataset
