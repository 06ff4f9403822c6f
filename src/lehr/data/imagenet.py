"""ImageNet as a user has it on disk: class folders, the official flat validation folder, or tar shards.

    root/train/n01440764/*.JPEG   root/val/n01440764/*.JPEG              class folders
    root/train/n01440764/*.JPEG   root/val/*.JPEG   root/val.txt         flat, with a mapping (image_folder.py)
    root/train/*.tar              root/val/*.tar                         shards (shards.py)

The official validation images are the test set here: choices are made by images held out of the training set.
"generated-images" stands in for ImageNet where there is none; it is drawn into the data folder when first asked for.
"""

from pathlib import Path
from typing import NamedTuple

from .errors import DataError
from .generated import write_images
from .image_files import ImageFiles
from .image_folder import find_mapping, is_flat, read_flat, read_folder
from .shards import Shards, hold_out_shards, read_shards
from .source import folder
from .split import hold_out

STREAMED = ("imagenet", "generated-images")
_HELD_OUT = 10  # of each class, on average
_PROBES = 16  # images tried before training begins; a folder of anything else fails there and not hours later

Streams = ImageFiles | Shards
"""A data set that is read while the network trains."""


class StreamedSplits(NamedTuple):
    """What is trained on, what choices are made by, and what is reported."""

    train: Streams
    validation: Streams
    test: Streams


def load_streamed(
    name: str, root: Path | None = None, *, size: int | None = None, seed: int = 0, validation: int | None = None
) -> StreamedSplits:
    """Read a data set of `STREAMED` below `root` (default: the data folder) as `load_images` does."""
    if name not in STREAMED:
        raise ValueError(f"no streamed data set is called {name!r}; there are {', '.join(STREAMED)}")
    home = folder() if root is None else root.expanduser()
    if name == "generated-images":
        home = write_images(home / name)
    return load_images(home, size=size or 224, seed=seed, validation=validation)


def load_images(root: Path, *, size: int = 224, seed: int = 0, validation: int | None = None) -> StreamedSplits:
    """Read the layout below `root` and hold `validation` training images out, by seed: ten times the classes, if None.

    `size` is what images are cut to: 224 for MobileNetV2, 227 for AlexNet. Only names are read,
    and a few images of each part: DataError where none of them can be decoded.
    """
    home = _home(root)
    if any((home / "train").glob("*.tar")):
        training, test = (read_shards(home / part, size=size) for part in ("train", "val"))
        if training.classes != test.classes:
            raise DataError(f"{home}: the shards of train and val have different classes")
        count = _HELD_OUT * len(training.classes) if validation is None else validation
        splits = StreamedSplits(*hold_out_shards(training, count, seed=seed), test)
    else:
        training = read_folder(home / "train", size=size)
        folder = home / "val"
        if is_flat(folder, training.classes):
            test = read_flat(folder, training.classes, find_mapping(folder), size=size)
        else:
            test = read_folder(folder, training.classes, size=size)
        count = _HELD_OUT * len(training.classes) if validation is None else validation
        splits = StreamedSplits(*hold_out(training, count, seed=seed), test)
    for part in splits:
        if len(part):  # nothing may have been held out
            part.examples(_PROBES)
    return splits


def _home(root: Path) -> Path:
    for home in (root, root / "imagenet"):
        if (home / "train").is_dir() and (home / "val").is_dir():
            return home
    raise DataError(
        f"{root}: expected the folders train and val of ImageNet, found neither here nor in imagenet below; ImageNet "
        "cannot be fetched without an account: get it at https://image-net.org and give its folder as --data.root"
    )
