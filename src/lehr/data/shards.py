"""Images in tar shards, read from front to back: for file systems that hate small files. The format is WebDataset's.

    train/imagenet-000000.tar ...   each sample `key.jpg` (or jpeg, png) and `key.cls`, its class's number
    train/sizes.json                {"imagenet-000000.tar": 1000, ...}; counted where it is missing, which takes a while
    train/classes.txt               the classes' names, a line each; ImageNet's thousand numbers where it is missing

`pack` writes such shards from a folder of images.
"""

import itertools
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .decode import CentreCrop, decode_batch
from .errors import DataError
from .image_files import MEAN, STD, ImageFiles

IMAGES = ("jpg", "jpeg", "png")
SIZES, CLASSES = "sizes.json", "classes.txt"


class Sample(NamedTuple):
    """One sample of a shard: its number among all, its name, its file (or why there is none), its label."""

    number: int
    name: str
    file: bytes | str
    label: int


@dataclass(frozen=True)
class Shards:
    """Shards of labelled images; `sizes[i]` samples are in `paths[i]`, the first of them is number `firsts[i]`."""

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
        """Read samples `begin` to `end` of a shard: as many as there should be, whatever the shard holds."""
        path, first = self.paths[shard], self.firsts[shard]
        end = self.sizes[shard] if end is None else end
        done, reason = begin, "the shard has ended before it"
        try:
            with path.open("rb") as stream:
                for position, content in enumerate(itertools.islice(_grouped(stream, path), end)):
                    if position >= begin:
                        yield self._sample(path, first + position, content)
                        done = position + 1
        except (OSError, tarfile.TarError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error.args[0])
        for position in range(done, end):
            yield Sample(first + position, f"{path}, sample {position}", reason, 0)

    def examples(self, count: int) -> Tensor:
        """Return up to `count` images as evaluation sees them, the first of each shard, as many of each as needed.

        Files that fail are left out. Raises DataError where none can be read.
        """
        found, reason = [], "there are no samples"
        for shard in range(len(self.paths)):
            left, shards = count - sum(map(len, found)), len(self.paths) - shard
            if not left:
                break
            wanted = max(-(-left // shards), left - sum(self.sizes[shard + 1 :]))
            samples = [*itertools.islice(self.samples(shard), wanted)]
            decoded = decode_batch([s.file for s in samples], CentreCrop.of(self.size), [0] * len(samples))
            if decoded.positions:
                found.append(decoded.images)
            elif samples:
                reason = f"{samples[0].name}: {decoded.failures[0][1]}"
        if not found:
            raise DataError(f"{self.paths[0].parent}: no shard begins with an image that can be read; {reason}")
        return torch.cat(found)

    def _sample(self, path: Path, number: int, content: dict[str, Any]) -> Sample:
        name = f"{path}, {content['__key__']}"
        image = next((content[kind] for kind in IMAGES if kind in content), None)
        label = content.get("cls", b"").decode("ascii", "replace").strip()
        if image is None:
            return Sample(number, name, f"expected an image ({', '.join(IMAGES)}), found none", 0)
        if not label.isdecimal() or int(label) >= len(self.classes):
            return Sample(number, name, f"expected a class from 0 to {len(self.classes) - 1}, found {label!r}", 0)
        return Sample(number, name, image, int(label))


def read_shards(folder: Path, *, size: int) -> Shards:
    """Read what shards there are in a folder, and how many samples are in each."""
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
    """Count a shard's samples by its headers, without reading the images."""
    from webdataset.tariterators import base_plus_ext

    try:
        with tarfile.open(path) as tar:
            keys = (base_plus_ext(member.name)[0] for member in tar if member.isreg())
            return sum(key is not None for key, _ in itertools.groupby(keys))
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{path}: expected a tar file that can be read, found: {error}") from error


def hold_out_shards(shards: Shards, count: int, *, seed: int) -> tuple[Shards, Shards]:
    """Return (kept, held out): whole shards, as many as hold at least `count` samples; the seed decides which."""
    order = torch.randperm(len(shards.paths), generator=torch.Generator().manual_seed(seed)).tolist()
    before = itertools.accumulate((shards.sizes[at] for at in order), initial=0)
    held = sorted(at for at, reached in zip(order, before, strict=False) if reached < count)
    if len(held) == len(order):
        raise ValueError(f"holding {count} images out leaves none of {len(order)} shards with {len(shards)} images")

    def only(chosen: list[int]) -> Shards:
        fields = {name: tuple(getattr(shards, name)[at] for at in chosen) for name in ("paths", "sizes", "firsts")}
        return replace(shards, **fields)

    return only(sorted(set(order) - set(held))), only(held)


def pack(files: ImageFiles, folder: Path, *, per_shard: int = 1000, seed: int = 0) -> Shards:
    """Write `files` as shards into `folder`, in a shuffled order, each file as it is; return the shards."""
    from webdataset.writer import TarWriter

    if per_shard < 1:
        raise ValueError(f"a shard has at least 1 sample, got per_shard={per_shard}")
    folder.mkdir(parents=True, exist_ok=True)
    there = sorted(folder.glob("*.tar"))
    if there:
        raise ValueError(f"{folder} holds shards already ({there[0].name}, ...): remove them, or choose another folder")
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


def _grouped(stream: Any, path: Path) -> Iterator[dict[str, Any]]:
    """Give the samples of an open tar file as webdataset groups them: `__key__`, and content by extension."""
    try:
        from webdataset.tariterators import group_by_keys, tar_file_expander
    except ImportError as error:
        raise DataError("shards are read with webdataset: pip install 'lehr[imagenet]'") from error
    return group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}]))
