"""Data sets: reading, checking, fetching, splitting and augmenting, all in memory and in uint8.

>>> import lehr.data
>>> lehr.data.names()
('digits', 'mnist', 'fashion-mnist', 'cifar10')
>>> train, validation, test = lehr.data.load("digits")
>>> batches = lehr.data.Batches(train, 64, shuffle=True, seed=1)
"""

from .augment import Augment, CropFlip
from .batches import Batches
from .catalogue import fetch, load, names
from .dataset import Dataset, Splits
from .errors import DataError, DownloadError
from .source import folder
from .split import hold_out

__all__ = [
    "Augment",
    "Batches",
    "CropFlip",
    "DataError",
    "Dataset",
    "DownloadError",
    "Splits",
    "fetch",
    "folder",
    "hold_out",
    "load",
    "names",
]
