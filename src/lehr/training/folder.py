"""A run is a folder: recipe.yaml, run.json, metrics.csv, checkpoints/, results.json. It can be resumed at any time.

A full-precision twin that is trained first, to start from or to learn from, is a run too, in twin/.

Files are written under a temporary name, synced and renamed, so that none is ever half-written. Checksums detect a
checkpoint that was damaged later; the one before it is used instead.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pickle
import reprlib
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lehr.training import plain
from lehr.training.errors import RunError, RunWarning

KEPT = 3  # checkpoints: the newest, and two to fall back on
_LARGEST_METRICS = 256_000_000  # bytes
_DIGITS_OF_EPOCHS = 10


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.info = path / "run.json"
        self.metrics = path / "metrics.csv"
        self.results = path / "results.json"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.final = self.checkpoints / "final.ckpt"
        self.twin = path / "twin"

    @classmethod
    def unused(cls, path: Path) -> RunFolder:
        """Return the folder of a new run without creating it; raise RunError if it already holds a run."""
        folder = cls(path)
        if folder.recipe.exists():
            raise RunError(
                f"{path} already holds a run: continue it with `lehr train --resume {path}`, or choose another folder"
            )
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of an existing run; raise RunError if it holds none."""
        folder = cls(path)
        if not folder.recipe.exists():
            raise RunError(f"{path} is not a run: it has no recipe.yaml")
        return folder

    def create(self, recipe: str, info: Mapping[str, Any]) -> None:
        """Create the folder of a new run, with its recipe and the content of run.json."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the run folder {self.path}: {error.strerror}") from error
        write_json(self.info, info)
        write_text(self.recipe, recipe)  # last: recipe.yaml makes the folder a run

    def checkpoint(self, epoch: int) -> Path:
        """Return the path of the checkpoint after `epoch` epochs."""
        return self.checkpoints / f"epoch-{epoch:05d}.ckpt"

    def epochs_done(self) -> int:
        """Return the number of epochs of the newest checkpoint, by its name; 0 if there is none."""
        names = [path.stem for path in self.checkpoints.glob("epoch-*.ckpt")]
        return max((int(name.removeprefix("epoch-")) for name in names), default=0)

    def newest_checkpoint(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the path and content of the newest readable checkpoint; warn of damaged ones and skip them.

        Return None if there is no checkpoint yet. Raise RunError if there are some and none can be read.
        """
        paths = sorted(self.checkpoints.glob("epoch-*.ckpt"), reverse=True)
        for path in paths:
            try:
                return path, load_checkpoint(path)
            except RunError as error:
                warnings.warn(f"{error}; trying the checkpoint before it", RunWarning, stacklevel=2)
        if paths:
            raise RunError(f"no checkpoint of {self.path} can be read: start over with `lehr train {self.recipe}`")
        return None

    def prune(self) -> None:
        """Remove old checkpoints and the files that interrupted writes left behind."""
        for path in sorted(self.checkpoints.glob("epoch-*.ckpt"))[:-KEPT]:
            path.unlink(missing_ok=True)
        for path in [*self.path.glob("*.part"), *self.checkpoints.glob("*.part")]:
            path.unlink(missing_ok=True)

    def read_metrics(self) -> list[dict[str, str]]:
        """Return the rows of metrics.csv, one per epoch; warn of damaged rows and skip them."""
        if not self.metrics.exists():
            return []
        try:
            text = plain.read_text(self.metrics, _LARGEST_METRICS)
            header, *rows = csv.reader(io.StringIO(text.replace("\0", "?"), newline=""))  # Python 3.10 reads no NUL
        except (OSError, ValueError, csv.Error) as error:
            if self.metrics.exists() and not self.metrics.stat().st_size:
                return []
            raise RunError(f"{self.metrics} is damaged: {error}") from error
        if "epoch" not in header or len(set(header)) < len(header):
            raise RunError(f"{self.metrics} is damaged: expected a column epoch, found {', '.join(header)[:200]!r}")
        if rows and not text.endswith("\n"):
            rows[-1] = []  # truncated, perhaps within a number
        whole, damaged = {}, []
        for line, row in enumerate(rows, 2):
            if len(row) == len(header) and all(map(_is_number, row)):
                cells = dict(zip(header, row, strict=True))
                if cells["epoch"].isdecimal() and len(cells["epoch"]) < _DIGITS_OF_EPOCHS:
                    whole[int(cells["epoch"])] = cells
                    continue
            damaged.append(line)
        if damaged:
            warnings.warn(f"{self.metrics}: skipped damaged {ranges(damaged, 'line')}", RunWarning, stacklevel=2)
        return [whole[epoch] for epoch in sorted(whole)]

    def metrics_before(self, epoch: int) -> list[dict[str, str]]:
        """Return the rows of the epochs before `epoch`, for a run that resumes there; warn of missing ones."""
        try:
            rows = self.read_metrics()
        except RunError as error:
            warnings.warn(str(error), RunWarning, stacklevel=2)
            rows = []
        rows = [row for row in rows if int(row["epoch"]) < epoch]
        missing = sorted({*range(epoch)} - {int(row["epoch"]) for row in rows})
        if missing:
            lost = ranges(missing, "epoch")
            warnings.warn(
                f"{self.metrics} has no {lost}: only the curves have a gap, the network was trained there too",
                RunWarning,
                stacklevel=2,
            )
        return rows

    def read_info(self, *, otherwise: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the content of run.json: when, where and on which images the run began.

        If it cannot be read, warn, write `otherwise` to it and return that.
        """
        try:
            return read_json(self.info)
        except RunError as error:
            warnings.warn(f"{error}; it is replaced, with the present environment", RunWarning, stacklevel=2)
            write_json(self.info, {**otherwise, "restored": True})
            return otherwise

    def read_results(self) -> dict[str, Any] | None:
        """Return the content of results.json, or None if the run is not finished."""
        if not self.results.exists():
            return None
        try:
            content = plain.from_json(plain.read_text(self.results, plain.LARGEST_JSON))
            if not isinstance(content, dict):
                raise ValueError(f"it should hold names and numbers, got {type(content).__name__}")
            for name, value in content.items():
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise ValueError(f"{name} should be a number, got {reprlib.repr(value)}")
        except ValueError as error:
            advice = f"remove it, and create it again with `lehr train --resume {self.path}`"
            raise RunError(f"{self.results} is damaged: {error}; {advice}") from error
        return content

    def write_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace metrics.csv."""
        rows = list(rows)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.metrics, text.getvalue() if columns else "")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, loaded as data only: an untrusted file cannot run code."""
    if path.exists() and not path.is_file():
        raise RunError(f"checkpoint {path} is not a regular file")
    try:
        with zipfile.ZipFile(path) as archive:
            # Torch does not compress: an archive that unpacks to more than the file's size is not torch's.
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise RunError(f"checkpoint {path} is damaged: it would unpack to more than the file holds")
            damaged = archive.testzip()  # torch writes checksums but does not check them
        if damaged is not None:
            raise RunError(f"checkpoint {path} is damaged: the checksum of {damaged} is wrong")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RunError(f"there is no checkpoint {path}") from None
    except pickle.UnpicklingError as error:
        raise RunError(f"checkpoint {path} holds more than numbers and is not loaded: it could run code") from error
    except (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError, NotImplementedError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RunError(f"checkpoint {path} is damaged ({reason[:120]})") from error
    if not isinstance(content, dict) or "state_dict" not in content:
        raise RunError(f"{path} is not a checkpoint of a run: it has no state_dict")
    state = content["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise RunError(f"{path} is not a checkpoint of a run: its state_dict does not map names to tensors")
    return content


def save_checkpoint(content: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint atomically."""
    written = io.BytesIO()  # torch.save to a full disk would hide the OSError
    torch.save(content, written)
    with replacing(path) as part:
        part.write_bytes(written.getbuffer())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, then rename it to `path`; a failure leaves `path` unchanged."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        _sync(part)
        part.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; what was saved before is intact: "
            f"fix the cause and continue with --resume"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically."""
    with replacing(path) as part:
        part.write_text(text)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file as a dict."""
    try:
        content = plain.from_json(plain.read_text(path, plain.LARGEST_JSON))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} should hold an object of names and values, got {type(content).__name__}")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def ranges(numbers: Sequence[int], name: str) -> str:
    """Return sorted numbers as text, with consecutive ones joined.

    >>> ranges([2], "line"), ranges([3, 4, 5, 9], "epoch")
    ('line 2', 'epochs 3 to 5, 9')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"{name}{'s' * (len(numbers) > 1)} {text}"


def _is_number(cell: str) -> bool:
    try:
        return not cell or isinstance(float(cell), float)
    except ValueError:
        return False


def _sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
