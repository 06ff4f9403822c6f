"""Batches of any data set, in memory or read while the network trains, by one call.

>>> import lehr.data
>>> train, validation, test = lehr.data.load("digits")
>>> len(batches_of(validation, 60))
3
"""

import torch
from torch import Tensor

from .augment import CropFlip
from .batches import Batches
from .colour import Colour
from .dataset import Dataset
from .decode import CentreCrop, RandomCrop
from .image_files import ImageFiles, spread
from .shards import Shards
from .steps import Steps
from .streamed import StreamedBatches

AnyDataset = Dataset | ImageFiles | Shards


def batches_of(
    dataset: AnyDataset,
    batch_size: int,
    *,
    shuffle: bool = False,
    augment: bool = False,
    padding: int = 4,
    flip: bool = True,
    cutout: int = 0,
    seed: int = 0,
    device: torch.device | str | None = None,
    drop_last: bool = False,
    rank: int = 0,
    world_size: int = 1,
    workers: int | None = None,
) -> Steps:
    """Return the batches of a data set, with the augmentation the paper has for it.

    In memory that is `padding`, random crop, `flip` and `cutout`; of image files random area and aspect ratio, flip,
    colours. `workers` are the reader processes of a data set that is not in memory (None: the cores there are).
    """
    if isinstance(dataset, Dataset):
        return Batches(
            dataset,
            batch_size,
            shuffle=shuffle,
            augment=CropFlip(padding, flip, cutout) if augment else None,
            seed=seed,
            device=device,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
    return StreamedBatches(
        dataset,
        batch_size,
        crop=RandomCrop(dataset.size, flip=flip) if augment else CentreCrop.of(dataset.size),
        shuffle=shuffle,
        augment=Colour() if augment else None,
        seed=seed,
        device=device,
        drop_last=drop_last,
        rank=rank,
        world_size=world_size,
        workers=workers,
    )


def examples_of(dataset: AnyDataset, count: int) -> Tensor:
    """Return up to `count` images of a data set as evaluation sees them, uint8, spread over it.

    >>> import lehr.data
    >>> examples_of(lehr.data.load("digits").test, 3).shape
    torch.Size([3, 1, 8, 8])
    """
    if isinstance(dataset, Dataset):
        return dataset.images[spread(count, len(dataset))]
    return dataset.examples(count)
