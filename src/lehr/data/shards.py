"""Images in tar shards, read from front to back: for file systems that are slow with small files.

The format is WebDataset's.

    train/imagenet-000000.tar ...   each sample `key.jpg` (or jpeg, png) and `key.cls`, its class's number
    train/sizes.json                {"imagenet-000000.tar": 1000, ...}; if missing, samples are counted, which is slow
    train/classes.txt               the names of the classes, one per line; if missing, the numbers 0 to 999

`pack` writes such shards from a folder of images.
"""

import itertools
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lehr.data.dataset import DataError
from lehr.data.decode import CentreCrop, Sample, decode_batch
from lehr.data.image_files import MEAN, STD, ImageFiles

IMAGES = ("jpg", "jpeg", "png")
SIZES, CLASSES = "sizes.json", "classes.txt"
_LARGEST = 1 << 26  # bytes of a member, 64 MB; the largest files of ImageNet have about 15 MB


@dataclass(frozen=True)
class Shards:
    """Shards of labelled images.

    Args:
        paths: the tar files.
        sizes: the number of samples in each.
        firsts: the number of each shard's first sample among all samples.
        classes: the names of the classes.
        size: pixels a side when decoded.
        mean: mean of pixel / 255, per channel.
        std: standard deviation of pixel / 255, per channel.
    """

    paths: tuple[Path, ...]
    sizes: tuple[int, ...]
    firsts: tuple[int, ...]
    classes: tuple[str, ...]
    size: int
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channel, height, width) of one decoded image."""
        return (3, self.size, self.size)

    def __len__(self) -> int:
        return sum(self.sizes)

    def samples(self, shard: int, begin: int = 0, end: int | None = None) -> Iterator[Sample]:
        """Yield samples `begin` to `end` of a shard; a missing one yields the reason instead of its content.

        Args:
            shard: the number of the shard.
            begin: the first sample.
            end: the sample to stop before (None: the end of the shard).
        """
        path, first = self.paths[shard], self.firsts[shard]
        end = self.sizes[shard] if end is None else end
        done, reason = begin, "the shard ends before it"
        try:
            with path.open("rb") as stream:
                for position, content in enumerate(itertools.islice(_grouped(stream), end)):
                    if position >= begin:
                        yield self._sample(path, first + position, content)
                        done = position + 1
        except DataError:
            raise
        except Exception as error:  # a damaged file can raise anything in a parser
            words = [error.strerror] if isinstance(error, OSError) and error.strerror else error.args
            reason = str(words[0]) if words else type(error).__name__
        for position in range(done, end):
            yield Sample(first + position, f"{path}, sample {position}", reason, 0)

    def examples(self, count: int) -> Tensor:
        """Return up to `count` images as evaluation sees them, taken from the start of each shard.

        Skip files that cannot be read; raise DataError if none can.
        """
        found, reason = [], "there are no samples"
        for shard in range(len(self.paths)):
            left, shards = count - sum(map(len, found)), len(self.paths) - shard
            if not left:
                break
            wanted = max(-(-left // shards), left - sum(self.sizes[shard + 1 :]))
            samples = [*itertools.islice(self.samples(shard), wanted)]
            images, _, failures = decode_batch(samples, CentreCrop.of(self.size))
            if len(images):
                found.append(images)
            elif failures:
                reason = ": ".join(failures[0])
        if not found:
            raise DataError(f"{self.paths[0].parent}: no shard begins with a readable image; {reason}")
        return torch.cat(found)

    def _sample(self, path: Path, number: int, content: dict[str, Any]) -> Sample:
        name = f"{path}, {content['__key__']}"
        image = next((content[kind] for kind in IMAGES if kind in content), None)
        label = content.get("cls", b"")
        if image is None:
            return Sample(number, name, f"expected an image ({', '.join(IMAGES)}), found none", 0)
        if isinstance(image, str) or isinstance(label, str):  # the reason why it was not read
            return Sample(number, name, image if isinstance(image, str) else label, 0)
        digits = label[:99].decode("ascii", "replace").strip()
        if not digits.isdecimal() or int(digits) >= len(self.classes):
            return Sample(number, name, f"expected a class from 0 to {len(self.classes) - 1}, found {digits!r}", 0)
        return Sample(number, name, image, int(digits))


def read_shards(folder: Path, *, size: int) -> Shards:
    """Return the shards in a folder, with their numbers of samples."""
    paths = tuple(sorted(folder.glob("*.tar")))
    if not paths:
        raise DataError(f"{folder}: expected shards (*.tar), found none")
    known = _known_sizes(folder / SIZES)
    sizes = tuple(known[path.name] if path.name in known else count_samples(path) for path in paths)
    listed = (folder / CLASSES).read_text().splitlines() if (folder / CLASSES).is_file() else map(str, range(1000))
    return Shards(paths, sizes, tuple(itertools.accumulate(sizes, initial=0))[:-1], tuple(listed), size)


def _known_sizes(path: Path) -> dict[str, int]:
    if not path.is_file():
        return {}
    try:
        sizes = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected the sizes of the shards as JSON, found: {error}") from error
    if not isinstance(sizes, dict) or not all(type(size) is int and size >= 0 for size in sizes.values()):
        raise DataError(f"{path}: expected a number of samples for each shard, found something else")
    return sizes


def count_samples(path: Path) -> int:
    """Return the number of samples in a shard, from its headers only."""
    from webdataset.tariterators import base_plus_ext

    try:
        with tarfile.open(path, "r:") as tar:
            keys = (base_plus_ext(member.name)[0] for member in tar if member.isreg())
            return sum(key is not None for key, _ in itertools.groupby(keys))
    except Exception as error:  # as above
        raise DataError(f"{path}: expected a readable tar file, found: {error}") from error


def hold_out_shards(shards: Shards, count: int, *, seed: int) -> tuple[Shards, Shards]:
    """Split shards into (kept, held out): whole shards with together at least `count` samples are held out.

    Args:
        shards: the shards.
        count: the least number of held-out samples.
        seed: selects the held-out shards.
    """
    order = torch.randperm(len(shards.paths), generator=torch.Generator().manual_seed(seed)).tolist()
    before = itertools.accumulate((shards.sizes[at] for at in order), initial=0)
    held = sorted(at for at, reached in zip(order, before, strict=False) if reached < count)
    if len(held) == len(order):
        raise ValueError(
            f"validation must leave at least one of {len(order)} shards with {len(shards)} images, got {count}"
        )

    def only(chosen: list[int]) -> Shards:
        fields = {name: tuple(getattr(shards, name)[at] for at in chosen) for name in ("paths", "sizes", "firsts")}
        return replace(shards, **fields)

    return only(sorted(set(order) - set(held))), only(held)


def pack(files: ImageFiles, folder: Path, *, per_shard: int = 1000, seed: int = 0) -> Shards:
    """Write image files, unchanged and in a shuffled order, as shards; return the shards.

    Args:
        files: the images.
        folder: the folder for the shards; it must hold none yet.
        per_shard: samples of each shard.
        seed: seed of the order.
    """
    from webdataset.writer import TarWriter

    if per_shard < 1:
        raise ValueError(f"per_shard must be at least 1, got {per_shard}")
    folder.mkdir(parents=True, exist_ok=True)
    there = sorted(folder.glob("*.tar"))
    if there:
        raise ValueError(f"{folder} already holds shards ({there[0].name}, ...): remove them, or choose another folder")
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
    sizes = {}
    for number, first in enumerate(range(0, len(order), per_shard)):
        path = folder / f"images-{number:06d}.tar"
        chosen = order[first : first + per_shard]
        with path.open("wb") as stream, TarWriter(stream, encoder=False) as tar:
            for index in chosen:
                file = files.path(index)
                label = str(int(files.labels[index])).encode()
                kind = "png" if file.suffix.lower() == ".png" else "jpg"
                tar.write({"__key__": f"{int(files.samples[index]):08d}", kind: file.read_bytes(), "cls": label})
        sizes[path.name] = len(chosen)
    (folder / CLASSES).write_text("".join(f"{name}\n" for name in files.classes))
    (folder / SIZES).write_text(json.dumps(sizes, indent=0))
    return read_shards(folder, size=files.size)


def _grouped(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the samples of an open tar file as webdataset groups them: `__key__`, and contents by extension."""
    try:
        from webdataset.tariterators import group_by_keys
    except ImportError as error:
        raise DataError("shards need webdataset: pip install 'lehr[imagenet]'") from error
    return group_by_keys(_members(stream))


def _members(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the name and content of each file, or the reason for not reading it, as webdataset expects them.

    A sparse member is refused: its size can be large although it takes no space in the shard.
    """
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            tar.members = []  # pyright: ignore[reportAttributeAccessIssue]: the list would grow with the shard
            source = tar.extractfile(member) if member.isreg() else None
            if source is None:
                continue
            if member.issparse() or member.size > _LARGEST:
                kind = "a sparse file" if member.issparse() else "one"
                data = f"expected a file of at most {_LARGEST >> 20} MB, found {kind} of {member.size >> 20} MB"
            else:
                data = source.read()
            yield {"fname": member.name, "data": data, "__url__": ""}
