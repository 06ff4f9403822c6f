"""A run is a folder: recipe.yaml, run.json, metrics.csv, checkpoints/, results.json; and it can always go on.

Nothing here is ever half-written under its final name: files are written beside it, synced and renamed. A checkpoint
that was damaged later, or by a dying disk, is found out when it is read, and the one before it is taken.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

KEPT = 3  # checkpoints: the newest, and two to fall back on


class RunError(Exception):
    """A run folder that is not what it should be; the message says what to do."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.info = path / "run.json"
        self.metrics = path / "metrics.csv"
        self.results = path / "results.json"
        self.checkpoints = path / "checkpoints"
        self.final = self.checkpoints / "final.ckpt"

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new folder; one that holds a run already is refused."""
        folder = cls(path)
        if folder.recipe.exists():
            raise RunError(
                f"{path} holds a run already: continue it with `lehr train --resume {path}`, or name another"
            )
        try:
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the run folder {path}: {error.strerror}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that holds a run."""
        folder = cls(path)
        if not folder.recipe.exists():
            raise RunError(f"{path} is not a run: it has no recipe.yaml")
        return folder

    def checkpoint(self, epoch: int) -> Path:
        """The name of the checkpoint after `epoch` epochs."""
        return self.checkpoints / f"epoch-{epoch:05d}.ckpt"

    def newest_checkpoint(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that can be read, and what is in it; damaged ones are told and passed over."""
        for path in sorted(self.checkpoints.glob("epoch-*.ckpt"), reverse=True):
            try:
                return path, load_checkpoint(path)
            except RunError as error:
                warnings.warn(f"{error}; taking the one before", stacklevel=2)
        return None

    def prune(self) -> None:
        """Remove old checkpoints and what an interrupted write left behind."""
        for path in sorted(self.checkpoints.glob("epoch-*.ckpt"))[:-KEPT]:
            path.unlink(missing_ok=True)
        for path in self.path.rglob("*.part"):
            path.unlink(missing_ok=True)

    def read_metrics(self) -> list[dict[str, str]]:
        """The rows of metrics.csv, one an epoch."""
        if not self.metrics.exists():
            return []
        with self.metrics.open(newline="") as file:
            return list(csv.DictReader(file))

    def write_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace metrics.csv."""
        rows = list(rows)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.metrics, text.getvalue() if columns else "")

    def write_json(self, path: Path, content: Mapping[str, Any]) -> None:
        """Replace a JSON file of the run."""
        write_text(path, json.dumps(content, indent=2) + "\n")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What a checkpoint holds, read as data only: a file from a stranger cannot run code."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RunError(f"there is no checkpoint {path}") from None
    except Exception as error:  # torch raises many kinds, from zip errors to UnpicklingError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"checkpoint {path} cannot be read ({reason[:120]})") from error
    if not isinstance(content, dict) or "state_dict" not in content:
        raise RunError(f"{path} is no checkpoint of a run: it has no state_dict")
    return content


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when all went well; a failure leaves `path` as it was."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; what was saved before is untouched, "
            f"make room and continue with --resume"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a text file, whole or not at all."""
    with replacing(path) as part:
        part.write_text(text)
