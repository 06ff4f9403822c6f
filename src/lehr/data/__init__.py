"""Read, check, fetch, split and augment data sets of images and signals; small ones in memory, ImageNet streamed.

>>> import lehr.data
>>> lehr.data.names()
('digits', 'mnist', 'fashion-mnist', 'cifar10', 'har', 'ecg5000', 'ford-a')
>>> train, validation, test = lehr.data.load("digits")
>>> batches = lehr.data.Batches(train, 64, shuffle=True, seed=1)
"""

from lehr.data.augment import Augment, Colour, CropFlip
from lehr.data.batches import AnyDataset, Batches, batches_of, examples_of
from lehr.data.catalogue import STREAMED, fetch, fetch_missing, folder, load, load_streamed, names
from lehr.data.dataset import DataError, Dataset, DownloadError, Splits, hold_out
from lehr.data.decode import CentreCrop, RandomCrop
from lehr.data.image_files import ImageFiles, read_folder
from lehr.data.image_folder import load_folder
from lehr.data.imagenet import StreamedSplits, load_images
from lehr.data.shards import Shards, pack
from lehr.data.steps import Steps
from lehr.data.streamed import StreamedBatches
from lehr.data.windows import windows, z_normalized

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
    "fetch_missing",
    "folder",
    "hold_out",
    "load",
    "load_folder",
    "load_images",
    "load_streamed",
    "names",
    "pack",
    "read_folder",
    "windows",
    "z_normalized",
]
