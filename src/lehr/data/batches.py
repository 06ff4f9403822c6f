"""Batches of an in-memory data set, each a function of (seed, epoch, step) alone; see steps.py.

>>> import lehr.data
>>> train, validation, test = lehr.data.load("digits")
>>> batches = Batches(train, 64, shuffle=True, augment=lehr.data.CropFlip(padding=1, flip=False), seed=7)
>>> for images, labels in batches:
...     pass  # images: uint8 (64, 1, 8, 8)
>>> batches.epoch, len(batches)
(1, 20)
"""

from collections.abc import Iterator

import torch

from .augment import Augment
from .dataset import Dataset
from .seed import mixed
from .steps import Batch, Steps


class Batches(Steps):
    """Iterates over (images, labels) of `dataset`, which is held on `device`.

    `shuffle` draws a new order each epoch; `augment` changes the images of a batch; `drop_last` leaves out a
    last step that is not full; `rank` of `world_size` is this process among those that train together,
    `batch_size` its own share.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        augment: Augment | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(
            len(dataset),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        self.dataset, self.augment = dataset, augment
        self.images, self.labels = dataset.images.to(device), dataset.labels.to(device)
        self._generator = torch.Generator(self.images.device)

    def produce(self, epoch: int, start: int) -> Iterator[Batch]:
        """Give the batches of this rank in `epoch`, from step `start` on."""
        order = self.order(epoch).to(self.images.device)
        for step in range(start, len(self)):
            span = self.span(step)
            mine = order[span.start : span.stop : span.step]
            images, labels = self.images.index_select(0, mine), self.labels.index_select(0, mine)
            if self.augment:
                self._generator.manual_seed(mixed(self.seed, epoch, step, self.rank))
                images = self.augment(images, self._generator)
            yield images, labels
