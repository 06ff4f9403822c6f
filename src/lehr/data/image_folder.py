"""A user's own images: the data set `folder`.

    root/cat/*.jpg   root/dog/*.jpg                                  a folder for each class
    root/train/cat/*.jpg ...   root/val/cat/*.jpg ...                split in two by the user (val or test)
    root/train/cat/*.jpg ...   root/val/... root/test/...            split in three by the user

Without such folders, a fifth of each class becomes the test set, the same for every seed. Without three of them, the
seed selects a tenth of the remaining images of each class for validation. With `train` and one of `val` and `test`,
that one is the test set, as with ImageNet.

Images of any size become squares of `size` pixels: the central square is cut out and scaled, as `lehr predict --resize`
does. Reader processes decode all images once; the pixels stay in memory. Files that cannot be read are named, counted
and skipped. Mean and std are computed from the training images.
"""

from pathlib import Path

import torch
from torch import Tensor

from lehr.data.dataset import DataError, Dataset, Splits, hold_out
from lehr.data.decode import MiddleSquare
from lehr.data.image_files import ImageFiles, class_folders, image_names, read_folder
from lehr.data.streamed import StreamedBatches

SIZE = 32  # pixels a side by default, as in the CIFAR-10 recipes
_FEWEST = 5  # images of a class, so that each of the three parts gets one
_MOST_BYTES = 4 << 30  # of decoded pixels; stream a larger data set
_IN_THIS_PROCESS = 256  # images; for so few, starting reader processes takes longer than decoding
_BATCH = 64  # images that a reader returns at once


def load_folder(
    root: str | Path,
    *,
    size: int | None = None,
    seed: int = 0,
    validation: int | None = None,
    workers: int | None = None,
) -> Splits:
    """Read a folder of images into memory.

    Args:
        root: the folder, with a folder for each class or split into `train` and `val`.
        size: pixels a side of the scaled images (None: 32).
        seed: selects the training images that are held out for validation.
        validation: how many to hold out (None: a tenth); not allowed if the folder has train, val and test.
        workers: reader processes (None: one per core).
    """
    train, held_out, test = _split(Path(root).expanduser(), size or SIZE, seed, validation)
    pixels = sum(map(len, (train, held_out, test))) * 3 * train.size**2
    if pixels > _MOST_BYTES:
        raise DataError(
            f"{root}: its images would take {pixels / 1e9:.1f} GB of memory; the limit is {_MOST_BYTES / 1e9:.1f}:"
            " choose a smaller data.size, or data.name imagenet, which streams images from train and val"
        )
    training = images, labels, skipped = _decoded(train, workers)
    for label in sorted(set(range(len(train.classes))) - set(labels.tolist())):
        name = train.classes[label]
        first = next(": ".join(item) for item in skipped.items() if Path(item[0]).parent.name == name)
        raise DataError(f"{root}: none of the training images of class {name} can be read; {first}")
    mean, std = _statistics(images)
    parts = (training, _decoded(held_out, workers), _decoded(test, workers))
    return Splits(*(Dataset(images, labels, train.classes, mean, std, skipped) for images, labels, skipped in parts))


def _split(root: Path, size: int, seed: int, validation: int | None) -> tuple[ImageFiles, ImageFiles, ImageFiles]:
    """Return the files of (training, validation, test), split where the folders are not."""
    found = class_folders(root)
    if "train" in found and not {"val", "test"}.isdisjoint(found):
        training = read_folder(root / "train", size=size)
        parts = [read_folder(root / part, training.classes, size=size) for part in ("val", "test") if part in found]
        _check_classes(root / "train", training, fewest=1 if len(parts) == 2 else 2)
        if len(parts) == 2:
            if validation is not None:
                raise ValueError(
                    f"{root} has train, val and test, so val holds the validation images: "
                    f"leave data.validation out, got {validation}"
                )
            return training, parts[0], parts[1]
        rest, test = training, parts[0]
    else:
        if not found and image_names(root):
            raise DataError(
                f"{root}: expected a folder for each class, found images directly in it; move the images of each "
                "class into a folder named after it"
            )
        training = read_folder(root, size=size)
        _check_classes(root, training, fewest=_FEWEST)
        rest, test = hold_out(training, len(training) // 5, seed=0)
    kept, held_out = hold_out(rest, max(1, len(rest) // 10) if validation is None else validation, seed=seed)
    return kept, held_out, test


def _check_classes(folder: Path, training: ImageFiles, *, fewest: int) -> None:
    if len(training.classes) < 2:
        raise DataError(f"{folder}: expected at least two class folders, found one: {', '.join(training.classes)}")
    for name, count in zip(training.classes, torch.bincount(training.labels).tolist(), strict=True):
        if count < fewest:
            raise DataError(f"{folder}: expected at least {fewest} images of each class, found {count} in {name}")


def _decoded(files: ImageFiles, workers: int | None) -> tuple[Tensor, Tensor, dict[str, str]]:
    """Return pixels and labels of the readable files, and the reasons for the others."""
    workers = 0 if len(files) <= _IN_THIS_PROCESS else workers
    batches = StreamedBatches(files, _BATCH, crop=MiddleSquare(files.size), workers=workers)
    pixels = torch.empty((len(files), *files.shape), dtype=torch.uint8)
    labels = torch.empty(len(files), dtype=torch.int64)
    count = 0
    for images, numbers in batches:
        pixels[count : count + len(images)], labels[count : count + len(images)] = images, numbers
        count += len(images)
    if len(files) and not count:
        name, reason = next(iter(batches.skipped.reasons.items()))
        raise DataError(f"{files.root}: none of {len(files)} images can be read; {name}: {reason}")
    return pixels[:count], labels[:count], dict(batches.skipped.reasons)


def _statistics(
    images: Tensor,  # (sample, channel, height, width), uint8
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std of each channel, of pixel / 255."""
    means, stds = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        levels = torch.arange(256, dtype=torch.float64) / 255
        mean = (counts * levels).sum() / counts.sum()
        std = ((counts * (levels - mean) ** 2).sum() / counts.sum()).sqrt()
        means.append(round(float(mean), 4))
        stds.append(round(max(float(std), 1 / 255), 4))  # it is 0 if all images have one colour
    return tuple(means), tuple(stds)
