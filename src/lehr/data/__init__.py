"""Data sets: reading, checking, fetching, splitting and augmenting, in uint8; small ones in memory, ImageNet streamed.

>>> import lehr.data
>>> lehr.data.names()
('digits', 'mnist', 'fashion-mnist', 'cifar10')
>>> train, validation, test = lehr.data.load("digits")
>>> batches = lehr.data.Batches(train, 64, shuffle=True, seed=1)
"""

from .augment import Augment, CropFlip
from .batches import Batches
from .catalogue import fetch, load, names
from .colour import Colour
from .dataset import Dataset, Splits
from .decode import CentreCrop, RandomCrop
from .errors import DataError, DownloadError
from .image_files import ImageFiles
from .imagenet import STREAMED, StreamedSplits, load_images, load_streamed
from .loading import AnyDataset, batches_of, examples_of
from .shards import Shards, pack
from .source import folder
from .split import hold_out
from .steps import Steps
from .streamed import StreamedBatches

__all__ = [
    "STREAMED",
    "AnyDataset",
    "Augment",
    "Batches",
    "CentreCrop",
    "Colour",
    "CropFlip",
    "DataError",
    "Dataset",
    "DownloadError",
    "ImageFiles",
    "RandomCrop",
    "Shards",
    "Splits",
    "Steps",
    "StreamedBatches",
    "StreamedSplits",
    "batches_of",
    "examples_of",
    "fetch",
    "folder",
    "hold_out",
    "load",
    "load_images",
    "load_streamed",
    "names",
    "pack",
]
