"""Batches of a data set, each determined by (seed, epoch, step); see steps.py.

`Batches` iterates over images in memory; `batches_of` takes any data set, in memory or streamed (streamed.py).

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
from torch import Tensor

from lehr.data.augment import Augment, Colour, CropFlip
from lehr.data.dataset import Dataset
from lehr.data.decode import CentreCrop, RandomCrop
from lehr.data.image_files import ImageFiles, spread
from lehr.data.shards import Shards
from lehr.data.steps import Batch, Skipped, Steps, mixed
from lehr.data.streamed import StreamedBatches

AnyDataset = Dataset | ImageFiles | Shards


class Batches(Steps):
    """Iterates over (images, labels) of a data set in memory.

    Args:
        dataset: the images; they are moved to `device` once.
        batch_size: images of this rank in a step.
        shuffle: draw a new order each epoch.
        augment: the augmentation of a batch.
        alternate: mirror each image every other epoch: half of them, drawn by the seed, in even epochs, the others in
            odd ones. Two epochs then show each image both ways, which random mirroring does for half of them.
        seed: seed of the order and of augmentation.
        device: the device of the batches.
        drop_last: drop a last, smaller step.
        rank: the number of this process.
        world_size: the number of processes that train together.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        augment: Augment | None = None,
        alternate: bool = False,
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
            skipped=Skipped(len(dataset) + len(dataset.skipped), dataset.skipped),
        )
        self.dataset, self.augment = dataset, augment
        self.images, self.labels = dataset.images.to(device), dataset.labels.to(device)
        self._generator = torch.Generator(self.images.device)
        draw = torch.Generator().manual_seed(seed)
        evenly = torch.randint(2, (len(dataset),), generator=draw, dtype=torch.bool) if alternate else None
        self._mirrored = evenly if evenly is None else evenly.to(device)  # of the even epochs

    def produce(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of this rank in `epoch`, from step `start` on."""
        order = self.order(epoch).to(self.images.device)
        for step in range(start, len(self)):
            span = self.span(step)
            mine = order[span.start : span.stop : span.step]
            images, labels = self.images.index_select(0, mine), self.labels.index_select(0, mine)
            if self._mirrored is not None:
                mirrored = self._mirrored.index_select(0, mine) ^ bool(epoch % 2)
                images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
            if self.augment:
                self._generator.manual_seed(mixed(self.seed, epoch, step, self.rank))
                images = self.augment(images, self._generator)
            yield images, labels


def batches_of(
    dataset: AnyDataset,
    batch_size: int,
    *,
    training: bool = False,
    augment: CropFlip | None = None,
    alternate: bool = False,
    seed: int = 0,
    device: torch.device | str | None = None,
    workers: int | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Steps:
    """Return the batches of any data set.

    Args:
        dataset: in memory or streamed.
        batch_size: images of this rank in a step.
        training: shuffle, and drop a last, smaller step, for BatchNorm's sake.
        augment: the augmentation of images in memory; a streamed data set gets the paper's augmentation of ImageNet
            instead (random area and aspect ratio, colours, and `augment.flip`).
        alternate: mirror each image every other epoch; for images in memory.
        seed: seed of the order and of augmentation.
        device: the device of the batches.
        workers: reader processes of a streamed data set (None: this rank's share of the cores).
        rank: the number of this process.
        world_size: the number of processes that train together.

    >>> import lehr.data
    >>> train, validation, test = lehr.data.load("digits")
    >>> len(batches_of(validation, 60))
    3
    """
    if isinstance(dataset, Dataset):
        return Batches(
            dataset,
            batch_size,
            shuffle=training,
            augment=augment,
            alternate=alternate,
            seed=seed,
            device=device,
            drop_last=training,
            rank=rank,
            world_size=world_size,
        )
    return StreamedBatches(
        dataset,
        batch_size,
        crop=RandomCrop(dataset.size, flip=augment.flip) if augment else CentreCrop.of(dataset.size),
        shuffle=training,
        augment=Colour() if augment else None,
        seed=seed,
        device=device,
        drop_last=training,
        rank=rank,
        world_size=world_size,
        workers=workers,
    )


def examples_of(dataset: AnyDataset, count: int) -> Tensor:
    """Return up to `count` images spread evenly over a data set, as evaluation sees them, uint8.

    >>> import lehr.data
    >>> examples_of(lehr.data.load("digits").test, 3).shape
    torch.Size([3, 1, 8, 8])
    """
    if isinstance(dataset, Dataset):
        return dataset.images[spread(count, len(dataset))]
    return dataset.examples(count)
