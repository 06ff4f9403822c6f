import errno
import hashlib
import io
import os
import random
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from data_server import Answer, Site, serve
from lehr.data import DataError, DownloadError
from lehr.data.download import Download, checksum, obtain, progress_bars, unpack

WHOLE = random.Random(0).randbytes(1 << 20)
HALF = len(WHOLE) // 2


def wanted(site: Site, *paths: str, content: bytes = WHOLE, members: tuple[str, ...] = ()) -> Download:
    digest = hashlib.sha256(content).hexdigest()
    urls = tuple(site.url + path for path in paths or ("/file",))
    return Download("folder/file", urls, f"sha256:{digest}", members)


def get(site: Site, root: Path, *paths: str, attempts: int = 3) -> bytes:
    obtain(wanted(site, *paths), root, attempts=attempts, pause=0, timeout=5)
    return (root / "folder/file").read_bytes()


def files(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file()} - {".lock"}


def ranges(site: Site) -> list[str | None]:
    return [headers.get("Range") for _, headers in site.asked]


def test_a_file_arrives_whole_and_nothing_else_stays(tmp_path):
    with serve({"/file": Answer(WHOLE)}) as site:
        assert get(site, tmp_path) == WHOLE
    assert files(tmp_path) == {"file"}


def test_a_file_that_is_there_with_the_right_checksum_is_not_fetched(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(WHOLE)
    with serve({}) as site:
        assert get(site, tmp_path) == WHOLE
        assert site.asked == []


def test_a_file_that_is_there_with_another_checksum_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(WHOLE[:HALF])
    with serve({"/file": Answer(WHOLE)}) as site:
        assert get(site, tmp_path) == WHOLE
        assert ranges(site) == [None]


def test_a_cut_connection_is_taken_up_where_it_ended(tmp_path):
    with serve({"/file": [Answer(WHOLE, cut=HALF), Answer(WHOLE)]}) as site:
        assert get(site, tmp_path) == WHOLE
        assert ranges(site) == [None, f"bytes={HALF}-"]


def test_a_download_is_taken_up_by_another_process_later(tmp_path):
    with serve({"/file": [Answer(WHOLE, cut=HALF), Answer(status=404)]}) as site:
        with pytest.raises(DownloadError, match="404"):
            get(site, tmp_path)
        assert not (tmp_path / "folder/file").exists()
        assert (tmp_path / "folder/file.part").stat().st_size == HALF
        site.answers["/file"] = [Answer(WHOLE)]
        assert get(site, tmp_path) == WHOLE
        assert ranges(site)[-1] == f"bytes={HALF}-"


def test_a_server_that_ignores_ranges_is_heard_from_the_beginning(tmp_path):
    with serve({"/file": [Answer(WHOLE, cut=HALF), Answer(WHOLE, ranges=False)]}) as site:
        assert get(site, tmp_path) == WHOLE
        assert ranges(site) == [None, f"bytes={HALF}-"]


def test_a_file_that_changed_since_is_fetched_again(tmp_path):
    before = Answer(WHOLE[::-1], cut=HALF, etag='"1"')
    with serve({"/file": [before, Answer(WHOLE, etag='"2"')]}) as site:
        assert get(site, tmp_path) == WHOLE
        assert [headers.get("If-Range") for _, headers in site.asked] == [None, '"1"']
        assert len(site.asked) == 2


def test_a_file_that_did_not_change_is_continued_by_its_etag(tmp_path):
    with serve({"/file": [Answer(WHOLE, cut=HALF, etag='"1"'), Answer(WHOLE, etag='"1"')]}) as site:
        sizes = []
        obtain(wanted(site), tmp_path, pause=0, progress=lambda name, here, total: sizes.append(here))
        assert sizes == sorted(sizes)  # never back to the beginning
        assert site.asked[1][1]["If-Range"] == '"1"'


def test_a_weak_etag_does_not_vouch_for_bytes(tmp_path):
    with serve({"/file": [Answer(WHOLE, cut=HALF, etag='W/"1"'), Answer(WHOLE)]}) as site:
        assert get(site, tmp_path) == WHOLE
        assert "If-Range" not in site.asked[1][1]


def test_a_change_no_etag_tells_of_is_found_by_the_checksum(tmp_path):
    with serve({"/file": [Answer(WHOLE[::-1], cut=HALF), Answer(WHOLE)]}) as site:
        assert get(site, tmp_path) == WHOLE
        assert ranges(site) == [None, f"bytes={HALF}-", None]


def test_garbage_is_refused_and_never_gets_the_name(tmp_path):
    with serve({"/file": Answer(b"<html>Sign in to this network</html>")}) as site:
        with pytest.raises(DownloadError, match=r"expected the checksum sha256:\w+, found sha256:\w+"):
            get(site, tmp_path)
        assert len(site.asked) == 3
    assert not (tmp_path / "folder/file").exists()
    assert not (tmp_path / "folder/file.part").exists()


def test_garbage_once_is_only_an_attempt(tmp_path):
    with serve({"/file": [Answer(b"not yet"), Answer(WHOLE)]}) as site:
        assert get(site, tmp_path) == WHOLE


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_server_in_trouble_is_asked_again(tmp_path, status):
    with serve({"/file": [Answer(status=status), Answer(status=status), Answer(WHOLE)]}) as site:
        assert get(site, tmp_path) == WHOLE
        assert len(site.asked) == 3


def test_a_server_that_stays_in_trouble_is_given_up(tmp_path):
    with serve({"/file": Answer(status=500)}) as site:
        with pytest.raises(DownloadError, match=r"cannot fetch file .*/file: HTTP 500"):
            get(site, tmp_path)
        assert len(site.asked) == 3


def test_a_file_that_is_not_there_is_asked_for_once(tmp_path):
    with serve({}) as site:
        with pytest.raises(DownloadError, match="HTTP 404"):
            get(site, tmp_path)
        assert len(site.asked) == 1


def test_a_copied_file_with_a_wrong_checksum_raises(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(WHOLE[:HALF])
    found = hashlib.sha256(WHOLE[:HALF]).hexdigest()
    with (
        serve({}) as site,
        pytest.raises(DownloadError, match=rf"folder/file: expected .*, found sha256:{found}"),
    ):
        get(site, tmp_path)
    assert (tmp_path / "folder/file").read_bytes() == WHOLE[:HALF]


def test_the_next_mirror_is_asked(tmp_path):
    with serve({"/a": Answer(status=404), "/b": Answer(status=500), "/c": Answer(WHOLE)}) as site:
        assert get(site, tmp_path, "/a", "/b", "/c") == WHOLE


def test_a_mirror_continues_what_another_began(tmp_path):
    begun = [Answer(WHOLE, cut=HALF, etag='"1"'), Answer(status=404)]
    with serve({"/a": begun, "/b": Answer(WHOLE, etag='"other"')}) as site:
        assert get(site, tmp_path, "/a", "/b") == WHOLE
        path, headers = site.asked[-1]
        assert (path, headers["Range"]) == ("/b", f"bytes={HALF}-")
        assert "If-Range" not in headers  # the first mirror's ETag says nothing about the second's file


def test_small_steps_forward_are_not_failures(tmp_path):
    cuts = [Answer(WHOLE, cut=len(WHOLE) * i // 10) for i in range(1, 10)]
    with serve({"/file": [*cuts, Answer(WHOLE)]}) as site:
        assert get(site, tmp_path, attempts=1) == WHOLE


def test_cuts_at_the_same_byte_end(tmp_path):
    with serve({"/file": Answer(WHOLE, cut=HALF, ranges=False)}) as site:
        with pytest.raises(DownloadError, match=f"ended after {HALF} of {len(WHOLE)} bytes"):
            get(site, tmp_path)
        assert len(site.asked) == 4  # the first went forward, three did not


def test_without_a_length_the_checksum_finds_the_cut(tmp_path):
    with serve({"/file": [Answer(WHOLE, cut=HALF, says_length=False), Answer(WHOLE)]}) as site:
        assert get(site, tmp_path) == WHOLE


def test_a_wrong_range_is_not_appended(tmp_path):
    with serve({"/file": [Answer(WHOLE, cut=HALF), Answer(WHOLE, wrong_range=True), Answer(WHOLE)]}) as site:
        assert get(site, tmp_path) == WHOLE
        assert ranges(site) == [None, f"bytes={HALF}-", None]


@pytest.mark.parametrize(("part", "requests"), [(WHOLE, 1), (WHOLE + b"more", 2)])
def test_a_part_as_long_as_the_whole_is_judged_by_its_checksum(tmp_path, part, requests):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file.part").write_bytes(part)
    with serve({"/file": Answer(WHOLE)}) as site:
        assert get(site, tmp_path) == WHOLE
        assert len(site.asked) == requests


def test_a_server_that_falls_silent_is_not_waited_for(tmp_path):
    with serve({"/file": [Answer(WHOLE, cut=HALF, stall=1), Answer(WHOLE)]}) as site:
        obtain(wanted(site), tmp_path, pause=0, timeout=0.1)
        assert ranges(site) == [None, f"bytes={HALF}-"]
    assert (tmp_path / "folder/file").read_bytes() == WHOLE


def test_nobody_listening_is_an_error_of_one_sentence(tmp_path):
    with serve({}) as site:
        pass
    with pytest.raises(DownloadError, match=r"cannot fetch file .*refused"):
        get(site, tmp_path)


def test_no_network_is_not_waited_for(tmp_path):
    lost = Download("file", ("http://no-such-host.invalid/file",), "md5:" + "0" * 32)
    with pytest.raises(DownloadError, match=r"no-such-host\.invalid"):
        obtain(lost, tmp_path, pause=1000)


def test_progress_counts_to_the_whole(tmp_path):
    seen = []
    with serve({"/file": Answer(WHOLE)}) as site:
        obtain(wanted(site), tmp_path, progress=lambda *report: seen.append(report))
    assert seen[-1] == ("file", len(WHOLE), len(WHOLE))


def test_a_full_disk_keeps_its_own_name(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with serve({"/file": Answer(WHOLE)}) as site:
        with pytest.raises(OSError, match="No space left"):
            get(site, tmp_path)
        assert len(site.asked) == 1
    assert not (tmp_path / "folder/file").exists()


def test_two_at_once_fetch_it_once(tmp_path):
    with serve({"/file": Answer(WHOLE)}) as site:
        threads = [threading.Thread(target=get, args=(site, tmp_path)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(site.asked) == 1
    assert (tmp_path / "folder/file").read_bytes() == WHOLE


def test_md5_and_sha256_are_known():
    path = Path(__file__)
    assert checksum(path, like="md5:") == "md5:" + hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="md5: or sha256: and hexadecimal digits, got 'crc32:0011'"):
        Download("file", (), "crc32:0011")


def archive(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in entries:
            info.size = len(content) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(content))
    return path


def test_an_archive_gives_its_members_and_goes(tmp_path):
    packed = archive(tmp_path / "x.tar.gz", (tarfile.TarInfo("set/a"), WHOLE)).read_bytes()
    with serve({"/file": Answer(packed)}) as site:
        obtain(wanted(site, content=packed, members=("set/a",)), tmp_path / "data", pause=0)
    assert (tmp_path / "data/set/a").read_bytes() == WHOLE
    assert files(tmp_path / "data") == {"a"}


def test_an_archive_brought_by_hand_stays(tmp_path):
    (tmp_path / "folder").mkdir()
    packed = archive(tmp_path / "folder/file", (tarfile.TarInfo("set/a"), WHOLE)).read_bytes()
    with serve({}) as site:
        obtain(wanted(site, content=packed, members=("set/a",)), tmp_path, pause=0)
    assert files(tmp_path) == {"file", "a"}


def test_only_the_named_members_are_unpacked(tmp_path):
    hostile = (tarfile.TarInfo("../outside"), tarfile.TarInfo("/outside"), tarfile.TarInfo("set/b"))
    path = archive(tmp_path / "x.tar.gz", *((i, b"!") for i in hostile), (tarfile.TarInfo("set/a"), b"fine"))
    unpack(path, ("set/a",), tmp_path / "data")
    assert files(tmp_path) == {"x.tar.gz", "a"}


def test_a_link_in_the_place_of_a_member_is_refused(tmp_path):
    link = tarfile.TarInfo("set/a")
    link.type, link.linkname = tarfile.SYMTYPE, "../../outside"
    path = archive(tmp_path / "x.tar.gz", (link, b""))
    with pytest.raises(DataError, match=r"x\.tar\.gz: expected set/a to be a file"):
        unpack(path, ("set/a",), tmp_path / "data")
    assert files(tmp_path) == {"x.tar.gz"}


def test_an_archive_without_a_member_says_which(tmp_path):
    path = archive(tmp_path / "x.tar.gz", (tarfile.TarInfo("set/a"), b"fine"))
    with pytest.raises(DataError, match=r"x\.tar\.gz: expected set/b in it"):
        unpack(path, ("set/a", "set/b"), tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b[:5],
        lambda b: b[: len(b) // 2],
        lambda b: b[: len(b) // 2] + bytes(100) + b[len(b) // 2 + 100 :],
    ],
)
def test_a_damaged_archive_is_named(tmp_path, damage):
    path = archive(tmp_path / "x.tar.gz", (tarfile.TarInfo("set/b"), WHOLE), (tarfile.TarInfo("set/a"), WHOLE))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"x\.tar\.gz: expected a tar archive, found a damaged file"):
        unpack(path, ("set/a",), tmp_path / "data")
    assert not (tmp_path / "data/set/a").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_each_file_and_how_much_of_it_came(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_bars() as progress:
        assert progress is not None
        progress("one.gz", 500_000, 1_000_000)
        progress("one.gz", 1_000_000, 1_000_000)
        progress("two.gz", 250_000, None)
    shown = screen.getvalue()
    assert "one.gz" in shown
    assert "1.0/1.0 MB" in shown
    assert "two.gz" in shown


def test_what_is_no_terminal_stays_silent(capsys):
    with progress_bars() as progress:
        assert progress is None
    assert capsys.readouterr() == ("", "")
