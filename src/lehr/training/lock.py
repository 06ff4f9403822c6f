"""One process trains into a run folder: the others are told who does.

with alone(path):
    ...                                # train into the folder `path`, made if it is not there

The lock is the operating system's, on RUN/train.lock: it ends with the process, however that ends, and holds between
the machines of a network file system (POSIX record locks, which NFS carries). The file says who holds it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lehr.training import plain
from lehr.training.errors import RunError, RunWarning

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NAME = "train.lock"
_TAKEN = (errno.EACCES, errno.EAGAIN)
_LARGEST = 10_000  # bytes of what a lock says

_held: set[Path] = set()  # by this process, which the operating system would let in again


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the run folder `path` while training into it; RunError with the holder if another process does.

    The folder is made if it is not there, and removed again if it still holds no run afterwards.
    """
    folder = path.resolve()
    if folder in _held:
        raise RunError(f"{path} is being trained by this process already")
    made = _make(path)
    try:
        handle = _taken(path)
        _held.add(folder)
        try:
            yield
        finally:
            _held.discard(folder)
            with contextlib.suppress(OSError):
                (path / NAME).unlink()
            os.close(handle)
    finally:
        for empty in made:  # the innermost first; one that holds something stays
            with contextlib.suppress(OSError):
                empty.rmdir()


def _make(path: Path) -> list[Path]:
    """Make a folder, and give those that were not there, the innermost first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the run folder {path}: {error.strerror}") from error
    return missing


def _taken(path: Path) -> int:
    """The open lock file, locked by this process."""
    file = path / NAME
    while True:
        try:
            handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            raise RunError(f"cannot write into the run folder {path}: {error.strerror}") from error
        try:
            _lock(handle)
        except OSError as error:
            os.close(handle)
            if error.errno in _TAKEN:
                raise RunError(f"{path} is being trained by {_holder(file)}: wait for it to end, or stop it") from None
            warnings.warn(
                f"{path} cannot be locked ({error.strerror}): see to it that no other process trains into it",
                RunWarning,
                stacklevel=4,
            )
            handle = os.open(file, os.O_RDWR)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), file.stat()):
                break
        os.close(handle)  # its holder removed it meanwhile: take the new one
    said = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    os.ftruncate(handle, 0)
    os.write(handle, f"{json.dumps(said)}\n".encode())
    return handle


def _lock(handle: int) -> None:
    if fcntl is not None:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        windows: Any = msvcrt
        os.lseek(handle, _LARGEST, os.SEEK_SET)  # Windows forbids others to read what is locked
        windows.locking(handle, windows.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)


def _holder(file: Path) -> str:
    try:
        said = plain.from_json(plain.read_text(file, _LARGEST))
        return f"process {said['pid']} on {said['host']} since {said['since']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
