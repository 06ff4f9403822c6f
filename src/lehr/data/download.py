"""Fetches a file over HTTP so that a half-written one is never taken for a whole one.

Bytes go to NAME.part; a cut connection is taken up where it ended (Range), unless the server's copy changed
meanwhile (If-Range); the whole is compared with the published checksum, and only then renamed to NAME. Of an
archive exactly the named members are unpacked, each the same way. A file that is there with the right
checksum is not fetched again, so a user without network can put it there.
"""

import gzip
import hashlib
import http.client
import os
import shutil
import socket
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from .errors import DataError, DownloadError

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes here, bytes in all or None where the server does not say)."""

CHUNK = 1 << 18
LONGEST_PAUSE = 30.0  # seconds
DIGITS = {"md5": 32, "sha256": 64}
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})  # the HTTP answers that may differ next time


@dataclass(frozen=True)
class Download:
    """One file of the web: its mirrors, its checksum, and where below the data folder it goes."""

    path: str  # below the data folder
    urls: tuple[str, ...]  # in the order they are tried
    checksum: str  # "md5:..." or "sha256:...", as published
    members: tuple[str, ...] = ()  # of a tar archive: what to unpack, to these paths below the data folder

    def __post_init__(self) -> None:
        algorithm, _, digest = self.checksum.partition(":")
        if len(digest) != DIGITS.get(algorithm) or set(digest) - set("0123456789abcdef"):
            raise ValueError(f"a checksum is md5: or sha256: and its hexadecimal digits, got {self.checksum!r}")


def obtain(
    wanted: Download,
    root: Path,
    *,
    progress: Progress | None = None,
    attempts: int = 5,  # failures in a row without a new byte, before giving up
    pause: float = 1.0,  # seconds after the first failure, doubled by each that follows
    timeout: float = 30.0,  # seconds without a byte
) -> None:
    """Have `wanted` below `root`, whole and checked, and where it is an archive its members instead.

    An archive fetched for that is removed; one that was there before stays.
    """
    target = root / wanted.path
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".lock"):  # two processes fetching the same file would write into one .part
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
                part = _part(target)
                with source, part.open("wb") as file:
                    shutil.copyfileobj(source, file, CHUNK)
                    _settle(file)
                _publish(part, target)
                missing.remove(entry.name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: expected a whole tar archive, found a damaged one: {error}") from error
    if missing:
        raise DataError(f"{archive}: expected {', '.join(sorted(missing))} in it, found no such member")


class _Refused(Exception):
    """Asking this server again will not help."""


class _Interrupted(Exception):
    """Asking again may help."""


def _fetch(
    wanted: Download, target: Path, *, progress: Progress | None, attempts: int, pause: float, timeout: float
) -> None:
    part, urls, reasons = _part(target), list(wanted.urls), dict[str, str]()
    failures = furthest = 0
    while urls and failures < attempts:
        url = urls[failures % len(urls)]
        try:
            _transfer(url, part, target.name, progress, timeout)
            found = checksum(part, like=wanted.checksum)
            if found == wanted.checksum:
                _publish(part, target)
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
        if size > furthest:  # a slow way forward is not a failure
            furthest, failures = size, 0
        else:
            failures += 1
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
        if validator := _recall(part, url):
            request.add_header("If-Range", validator)
    with _open(request, timeout) as response:
        if response.status == 416:  # nothing after what is here: whole, or too long; the checksum will tell
            return
        if response.status == 206:
            expected, found = f"bytes {here}-", response.headers.get("Content-Range", "")
            if not found.startswith(expected):
                part.unlink()
                raise _Interrupted(f"expected the range {expected}, found {found!r}")
        else:
            here = 0
        length = response.headers.get("Content-Length")
        total = here + int(length) if length and length.isdecimal() else None
        _remember(part, url, response.headers)
        with part.open("ab" if here else "wb") as file:
            while chunk := _read(response):
                file.write(chunk)
                here += len(chunk)
                if progress:
                    progress(name, here, total)
            _settle(file)
    if total is not None and here < total:
        raise _Interrupted(f"the connection ended after {here} of {total} bytes")


def _open(request: urllib.request.Request, timeout: float) -> http.client.HTTPResponse:
    try:
        return urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error  # pyright: ignore[reportReturnType]: an HTTPError is a response too
        error.close()
        kind = _Interrupted if error.code in TRY_AGAIN else _Refused
        raise kind(f"HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        no_way = isinstance(error.reason, socket.gaierror | ssl.SSLCertVerificationError)
        raise (_Refused if no_way else _Interrupted)(str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _remember(part: Path, url: str, headers: http.client.HTTPMessage) -> None:
    """Keep what tells this version of the server's file from the next; a weak ETag does not."""
    etag = headers.get("ETag", "")
    validator = etag if etag.startswith('"') else headers.get("Last-Modified", "")
    _tag(part).write_text(f"{url}\n{validator}\n")


def _recall(part: Path, url: str) -> str:
    """Return what was kept, where it was this server's."""
    tag = _tag(part)
    if not tag.is_file():
        return ""
    its_url, validator, *_ = [*tag.read_text().split("\n"), "", ""]
    return validator if its_url == url else ""


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(part: Path, target: Path) -> None:
    """Give the finished file its name, in one step that survives a loss of power."""
    os.replace(part, target)
    if os.name == "posix":
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
