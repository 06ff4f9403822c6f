"""ImageNet on disk: class folders, the official flat validation folder, or tar shards.

    root/train/n01440764/*.JPEG   root/val/n01440764/*.JPEG              class folders
    root/train/n01440764/*.JPEG   root/val/*.JPEG   root/val.txt         flat, with a mapping file
    root/train/*.tar              root/val/*.tar                         shards (shards.py)

The official validation images are the test set here; validation images are held out of the training set.

A mapping file lies beside or in the flat folder. Each line is `file class` (separated by a space or comma; the file's
extension may be missing; further columns and a heading are ignored), or only `class` for the n-th file in the order of
names. A class is a name or its number from 0. The official development kit numbers classes from 1 in another order,
which `meta.mat` beside its list defines.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from lehr.data.dataset import DataError, hold_out
from lehr.data.image_files import ImageFiles, Names, image_names, read_folder
from lehr.data.shards import Shards, hold_out_shards, read_shards

KIT = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
MAPPINGS = (
    "val.txt",
    "val_map.txt",
    "val_labels.txt",
    "LOC_val_solution.csv",
    "imagenet_2012_validation_synset_labels.txt",
    "ILSVRC2012_validation_ground_truth.txt",
    KIT,
    KIT.removeprefix("ILSVRC2012_devkit_t12/"),
)
_HELD_OUT = 10  # of each class, on average
_PROBES = 16  # images decoded before training, so that a folder of other files fails at once and not after hours

Streams = ImageFiles | Shards
"""A data set that is read during training."""


class StreamedSplits(NamedTuple):
    """Images to train on, images to make choices by, and images to report."""

    train: Streams
    validation: Streams
    test: Streams


def load_images(root: Path, *, size: int = 224, seed: int = 0, validation: int | None = None) -> StreamedSplits:
    """List the images below `root`, and decode a few of each split as a check.

    Raise DataError if the layout is none of the three, or if all of a split's checked images fail.

    Args:
        root: the folder, or one with a folder `imagenet` in it.
        size: pixels a side of the cropped images: 224 for MobileNetV2, 227 for AlexNet.
        seed: selects the held-out training images.
        validation: how many to hold out (None: ten times the classes).
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
        if len(part):  # `validation` may be 0
            part.examples(_PROBES)
    return splits


def _home(root: Path) -> Path:
    for home in (root, root / "imagenet"):
        if (home / "train").is_dir() and (home / "val").is_dir():
            return home
    raise DataError(
        f"{root}: expected the folders train and val of ImageNet here or in imagenet/, found none; ImageNet cannot be "
        "fetched without an account: get it at https://image-net.org and give its folder as --data.root"
    )


def read_flat(folder: Path, classes: Sequence[str], mapping: Path, *, size: int) -> ImageFiles:
    """List the images of a flat folder, with their classes from a mapping file.

    Args:
        folder: holds the images.
        classes: the classes of the training images.
        mapping: the mapping file.
        size: pixels a side when decoded.
    """
    names = image_names(folder)
    labels = _labels(mapping, names, classes)
    return ImageFiles(folder, Names(names), torch.arange(len(names)), torch.tensor(labels), tuple(classes), size)


def is_flat(folder: Path, classes: Sequence[str]) -> bool:
    """Return whether the images lie directly in the folder and not in folders of these classes."""
    return bool(image_names(folder)) and not any((folder / name).is_dir() for name in classes)


def find_mapping(folder: Path) -> Path:
    """Return the mapping file in or beside a flat folder; raise DataError if there is none."""
    for home in (folder, folder.parent):
        for name in MAPPINGS:
            if (home / name).is_file():
                return home / name
    raise DataError(
        f"{folder}: its images are not in class folders and no mapping file lies beside it: "
        f"add val.txt with a line `file class` for each, or the official {KIT}"
    )


def _labels(mapping: Path, names: list[str], classes: Sequence[str]) -> list[int]:
    try:
        lines = [line.replace(",", " ").split() for line in mapping.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{mapping}: expected a readable text file, found: {error}") from error
    number = {name: label for label, name in enumerate(classes)}
    if mapping.name == Path(KIT).name:
        number = {str(at): number[name] for at, name in _kit_classes(mapping.parent / "meta.mat") if name in number}
    else:
        number |= {str(label): label for label in range(len(classes)) if str(label) not in number}
    if lines and all(len(line) == 1 for line in lines):
        if len(lines) != len(names):
            raise DataError(f"{mapping}: expected a class for each of {len(names)} images, found {len(lines)}")
        class_of = dict(zip(names, (line[0] for line in lines), strict=True))
    else:
        class_of = {line[0]: line[1] for line in lines if len(line) > 1}
    labels = []
    for name in names:
        known = class_of.get(name, class_of.get(os.path.splitext(name)[0]))
        if known is None:
            raise DataError(f"{mapping}: expected the class of {name}, found no line for it")
        if known not in number:
            raise DataError(f"{mapping}: expected one of the {len(classes)} classes for {name}, found {known}")
        labels.append(number[known])
    return labels


def _kit_classes(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, name) of each class of the official development kit."""
    from scipy.io import loadmat  # a dependency of scikit-learn

    if not path.is_file():
        raise DataError(f"{path}: expected it beside the list of the development kit, since it defines the numbers")
    for synset in loadmat(path, squeeze_me=True)["synsets"]:
        yield int(synset["ILSVRC2012_ID"]), str(synset["WNID"])
