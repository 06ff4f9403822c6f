"""A lock, so that only one process trains into a run folder.

with alone(path):
    ...                                # train into the folder `path`, created if missing

The operating system locks RUN/train.lock: the lock ends with the process, however that ends, and is shared by machines
on a network file system (NFS supports POSIX record locks). The file names the process that holds it.
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
_LARGEST = 10_000  # bytes of a lock file

_held: set[Path] = set()  # by this process: the operating system would grant it the lock again


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Lock the run folder `path` inside the block; raise RunError, naming the holder, if it is already locked.

    The folder is created if missing, and removed again if it is still empty afterwards.
    """
    folder = path.resolve()
    if folder in _held:
        raise RunError(f"this process is already training {path}: wait for it to end")
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
        for empty in made:  # innermost first; rmdir fails on a folder that is not empty
            with contextlib.suppress(OSError):
                empty.rmdir()


def _make(path: Path) -> list[Path]:
    """Create a folder and its parents; return those that were missing, innermost first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create the run folder {path}: {error.strerror}") from error
    return missing


def _taken(path: Path) -> int:
    """Return a handle of the lock file, locked by this process."""
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
                f"{path} cannot be locked ({error.strerror}): make sure that no other process trains into it",
                RunWarning,
                stacklevel=4,
            )
            handle = os.open(file, os.O_RDWR)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), file.stat()):
                break
        os.close(handle)  # the last holder removed the file meanwhile: open a new one
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    os.ftruncate(handle, 0)
    os.write(handle, f"{json.dumps(holder)}\n".encode())
    return handle


def _lock(handle: int) -> None:
    if fcntl is not None:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        windows: Any = msvcrt
        os.lseek(handle, _LARGEST, os.SEEK_SET)  # lock a byte past the text: Windows blocks reads of locked bytes
        windows.locking(handle, windows.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)


def _holder(file: Path) -> str:
    try:
        holder = plain.from_json(plain.read_text(file, _LARGEST))
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
