"""Reads folders of images: a folder for each class, or a flat folder with a file that says what each image shows.

    train/n01440764/n01440764_10026.JPEG      a class is a folder; classes are numbered in the order of their names
    val/n01440764/ILSVRC2012_val_00000293.JPEG
    val/ILSVRC2012_val_00000293.JPEG          as the official archive has it: a mapping file says the rest

A mapping file stands beside or in the flat folder. Each of its lines is `file class` (separated by a space or comma,
the file's extension may be missing, more may follow; the first line may be a heading) or only `class`, of the n-th file
in the order of names. A class is a name or its number from 0. The official development kit numbers classes in an order
of its own, from 1; `meta.mat` beside its list tells which they are.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from .errors import DataError
from .image_files import ImageFiles
from .names import Names

EXTENSIONS = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm")
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


def read_folder(folder: Path, classes: Sequence[str] | None = None, *, size: int) -> ImageFiles:
    """Read a folder of class folders; `classes` are those of the training images; without them, all there are."""
    found = sorted(entry.name for entry in _scan(folder) if entry.is_dir())
    if not found:
        raise DataError(f"{folder}: expected a folder for each class, found none")
    strangers = sorted(set(found) - set(classes or found))
    if strangers:
        raise DataError(
            f"{folder}: expected the {len(classes or ())} classes of the training images, found {strangers[0]} too"
        )
    training, classes = classes is None, tuple(classes or found)
    number = {name: label for label, name in enumerate(classes)}
    names, labels, empty = [], [], []
    for name in found:
        files = [f"{name}/{file}" for file in _images(folder / name)]
        empty += [] if files else [name]
        names += files
        labels += [number[name]] * len(files)
    if not names:
        raise DataError(f"{folder}: expected images ({', '.join(EXTENSIONS)}) in its class folders, found none")
    if training and empty:
        raise DataError(f"{folder}: expected images in every class folder, found none in {', '.join(empty[:5])}")
    return ImageFiles(folder, Names(names), torch.arange(len(names)), torch.tensor(labels), classes, size)


def read_flat(folder: Path, classes: Sequence[str], mapping: Path, *, size: int) -> ImageFiles:
    """Read a folder of images whose classes a mapping file tells."""
    names = _images(folder)
    labels = _labels(mapping, names, classes)
    return ImageFiles(folder, Names(names), torch.arange(len(names)), torch.tensor(labels), tuple(classes), size)


def is_flat(folder: Path, classes: Sequence[str]) -> bool:
    """Whether the images lie in the folder itself; one that went astray beside folders of these classes is none."""
    return bool(_images(folder)) and not any((folder / name).is_dir() for name in classes)


def find_mapping(folder: Path) -> Path:
    """Return the mapping file of a flat folder, which is in it or beside it."""
    for home in (folder, folder.parent):
        for name in MAPPINGS:
            if (home / name).is_file():
                return home / name
    raise DataError(
        f"{folder}: its images are not in class folders, so a file that tells their classes is needed beside it: "
        f"val.txt with a line `file class` for each, or the official {KIT}"
    )


def _labels(mapping: Path, names: list[str], classes: Sequence[str]) -> list[int]:
    try:
        lines = [line.replace(",", " ").split() for line in mapping.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{mapping}: expected a text file that can be read, found: {error}") from error
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
    """Give (number, name) of each class of the official development kit."""
    from scipy.io import loadmat  # a dependency of scikit-learn

    if not path.is_file():
        raise DataError(f"{path}: expected it beside the list of the development kit, whose numbers it explains")
    for synset in loadmat(path, squeeze_me=True)["synsets"]:
        yield int(synset["ILSVRC2012_ID"]), str(synset["WNID"])


def _images(folder: Path) -> list[str]:
    return sorted(entry.name for entry in _scan(folder) if entry.name.lower().endswith(EXTENSIONS))


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: expected a folder that can be read, found: {error.strerror}") from error
