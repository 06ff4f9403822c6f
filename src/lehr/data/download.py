"""Downloads a file over HTTP so that a half-written one is never taken for a whole one.

Bytes go to NAME.part; a cut connection is resumed where it ended (Range), unless the server's copy changed meanwhile
(If-Range); the whole is compared with the published checksum, and only then renamed to NAME. Of an archive exactly the
named members are unpacked, each the same way. A file that is there with the right checksum is not fetched again, so a
user without network can put it there.

`pooch` checks and unpacks too, but begins a cut download anew and asks one server only.
"""

import gzip
import hashlib
import http.client
import os
import shutil
import socket
import ssl
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from lehr.data.dataset import DataError

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes here, bytes in all or None where the server does not say)."""

CHUNK = 1 << 18
LONGEST_PAUSE = 30.0  # seconds
DIGITS = {"md5": 32, "sha256": 64}
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})  # the HTTP answers that may differ next time


class DownloadError(DataError):
    """A file could not be fetched."""


@dataclass(frozen=True)
class Download:
    """One file of the web.

    Args:
        path: where it goes below the data folder.
        urls: its mirrors, in the order they are tried.
        checksum: "md5:..." or "sha256:...", as published.
        members: of a tar archive, what to unpack, to these paths below the data folder.
    """

    path: str
    urls: tuple[str, ...]
    checksum: str
    members: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        algorithm, _, digest = self.checksum.partition(":")
        if len(digest) != DIGITS.get(algorithm) or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"a checksum is md5: or sha256: and its hexadecimal digits, got {self.checksum!r}")


def obtain(
    wanted: Download,
    root: Path,
    *,
    progress: Progress | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Download a file unless it is there, whole and checked; of an archive, unpack its members.

    An archive downloaded for that is removed; one that was there before stays.

    Args:
        wanted: the file.
        root: the data folder.
        progress: called as bytes arrive.
        attempts: failures in a row without a new byte, before giving up.
        pause: seconds after the first failure, doubled by each that follows.
        timeout: seconds without a byte, which is a failure.
    """
    target = root / wanted.path
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".lock"):  # two processes downloading the same file would write into one .part
        here = target.is_file() and checksum(target, like=wanted.checksum) == wanted.checksum
        if not here:
            _fetch(wanted, target, progress=progress, attempts=attempts, pause=pause, timeout=timeout)
        if wanted.members:
            unpack(target, wanted.members, root)
            if not here:
                target.unlink()


def checksum(path: Path, *, like: str) -> str:
    """Return the checksum of a file, by the algorithm of the checksum `like`."""
    algorithm = like.partition(":")[0]
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return f"{algorithm}:{digest.hexdigest()}"


def unpack(archive: Path, members: tuple[str, ...], root: Path) -> None:
    """Take exactly `members` out of a tar archive, to those paths below `root`, and nothing else."""
    missing = set(members)
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:
                if entry.name not in missing:
                    continue
                if not entry.isreg() or (source := tar.extractfile(entry)) is None:
                    raise DataError(f"{archive}: expected {entry.name} to be a file, found something else")
                target = root / entry.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, _part(target).open("wb") as file:
                    shutil.copyfileobj(source, file, CHUNK)
                _publish(target)
                missing.remove(entry.name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: expected a whole tar archive, found a damaged one: {error}") from error
    if missing:
        raise DataError(f"{archive}: expected {', '.join(sorted(missing))} in it, found no such member")


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Yield a function that draws one bar per file while the context lasts; None if nobody sees standard error."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks = {}

        def show(name: str, here: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=here, total=total)

        yield show


class _Refused(Exception):
    """Asking this server again will not help."""


class _Interrupted(Exception):
    """Asking again may help."""


@contextmanager
def _network() -> Iterator[None]:
    """Raise what goes wrong on the network as `_Refused` or `_Interrupted`."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        kind = _Interrupted if error.code in TRY_AGAIN else _Refused
        raise kind(f"HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        no_way = isinstance(error.reason, socket.gaierror | ssl.SSLCertVerificationError)
        raise (_Refused if no_way else _Interrupted)(str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


def _fetch(
    wanted: Download, target: Path, *, progress: Progress | None, attempts: int, pause: float, timeout: float
) -> None:
    """Ask one mirror after the other until the file is whole."""
    part, urls, reasons = _part(target), list(wanted.urls), dict[str, str]()
    failures = furthest = 0
    while urls and failures < attempts:
        url = urls[failures % len(urls)]
        try:
            _transfer(url, part, target.name, progress, timeout)
            found = checksum(part, like=wanted.checksum)
            if found == wanted.checksum:
                _publish(target)
                _tag(part).unlink(missing_ok=True)
                return
            part.unlink()
            reasons[url] = f"expected the checksum {wanted.checksum}, found {found}"
        except _Refused as error:
            reasons[url] = str(error)
            urls.remove(url)
            continue
        except _Interrupted as error:
            reasons[url] = str(error)
        size = part.stat().st_size if part.exists() else 0
        failures = 0 if size > furthest else failures + 1  # a slow way forward is not a failure
        furthest = max(size, furthest)
        if failures < attempts:
            time.sleep(min(pause * 2 ** max(failures - 1, 0), LONGEST_PAUSE))
    if target.is_file():
        found = checksum(target, like=wanted.checksum)
        reasons[str(target)] = f"expected the checksum {wanted.checksum}, found {found}"
    told = "; ".join(f"{place}: {reason}" for place, reason in reasons.items())
    raise DownloadError(f"cannot fetch {target.name} ({told})")


def _transfer(url: str, part: Path, name: str, progress: Progress | None, timeout: float) -> None:
    """Lengthen `part` by what the server sends, or start it anew; return when all of it came."""
    here = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "lehr"})
    if here:
        request.add_header("Range", f"bytes={here}-")
        if version := _version(part, url):
            request.add_header("If-Range", version)
    with _network():
        try:
            response = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            error.close()  # nothing after what is here: whole, or too long; the checksum will show
            return
    with response:
        if response.status == 206:
            expected, found = f"bytes {here}-", response.headers.get("Content-Range", "")
            if not found.startswith(expected):
                part.unlink()
                raise _Interrupted(f"expected the range {expected}, found {found!r}")
        else:
            here = 0
        length = response.headers.get("Content-Length")
        total = here + int(length) if length and length.isdecimal() else None
        etag = response.headers.get("ETag", "")
        version = (
            etag if etag.startswith('"') else response.headers.get("Last-Modified", "")
        )  # a weak ETag is no version
        _tag(part).write_text(f"{url}\n{version}\n")
        with part.open("ab" if here else "wb") as file:
            while True:
                with _network():
                    chunk = response.read1(CHUNK)
                if not chunk:
                    break
                file.write(chunk)
                here += len(chunk)
                if progress:
                    progress(name, here, total)
    if total is not None and here < total:
        raise _Interrupted(f"the connection ended after {here} of {total} bytes")


def _version(part: Path, url: str) -> str:
    """Return which version of the server's file `part` is the beginning of, if it came from this server."""
    lines = _tag(part).read_text().split("\n") if _tag(part).is_file() else []
    return lines[1] if len(lines) > 1 and lines[0] == url else ""


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _publish(target: Path) -> None:
    """Give the finished file its name, once it is on the disk."""
    with _part(target).open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(_part(target), target)
