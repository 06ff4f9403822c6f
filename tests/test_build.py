"""The cache of compiled runtimes: whole, ours, and useful without a compiler."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from compilers import with_last
from lehr.deploy import CompilerError, build, compile
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Flatten, Linear, Table, Weights

NET = IntegerNet(
    (1, 1, 2),
    (
        Table("pixels", np.arange(256)[None] // 128),
        Flatten("flat", "pixels"),
        Linear("sums", "flat", Weights.of([[1, -1], [0, 1]])),
    ),
)
IMAGES = np.array([[[[200, 7]]]], dtype=np.uint8)
PROGRAM = """
import sys, numpy as np
from lehr.deploy import compile, load
print(compile(load(sys.argv[1]))(np.array([[[[200, 7]]]], dtype=np.uint8)).tolist())
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """A cache with a runtime that is quickly built."""
    folder = tmp_path_factory.mktemp("cache")
    build.build([with_last(build.find_compiler(), "-O0", folder=folder)], folder=folder)
    return folder


@pytest.fixture
def cache(filled, tmp_path, monkeypatch) -> Path:
    folder = shutil.copytree(filled, tmp_path / "cache")
    monkeypatch.setenv("LEHR_CACHE", str(folder))
    monkeypatch.setenv("CC", str(filled / "compiler"))
    return folder


def library(cache: Path) -> Path:
    (path,) = (cache / "runtime").glob("*.so")
    return path


def in_another_process(tmp_path: Path) -> str:
    """Loaded libraries stay loaded: what a new user of the cache sees, a new process tells."""
    NET.save(tmp_path / "net.lehr")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "net.lehr")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"{done.returncode}: {done.stderr}"


@pytest.mark.parametrize("kept", [0, 0.5, "zeros"])
def test_a_damaged_library_is_built_anew(cache, tmp_path, kept):
    path = library(cache)
    whole = path.read_bytes()
    damaged = bytes(len(whole)) if kept == "zeros" else whole[: int(kept * len(whole))]
    path.write_bytes(damaged)
    assert in_another_process(tmp_path) == "[[1, 0]]"
    assert library(cache).read_bytes() == whole


def test_a_library_that_cannot_be_loaded_is_an_error_of_the_compiler(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ] && [ $# != 0 ]; do shift; done\n[ $# = 0 ] || echo no > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("LEHR_CACHE", str(tmp_path / "cache"))
    with pytest.raises(CompilerError, match=r"the compiled runtime cannot be loaded: .*IntegerNet.run works without"):
        compile(NET)


@pytest.mark.parametrize("value", ["   ", '"unclosed', "gcc '", "/", "/dev/null", "true", "false", "cat", "\udcff"])
def test_odd_values_of_cc_are_an_error_of_the_compiler(tmp_path, monkeypatch, value):
    monkeypatch.setenv("CC", value)
    monkeypatch.setenv("LEHR_CACHE", str(tmp_path))
    with pytest.raises(CompilerError, match=r"IntegerNet\.run works without"):
        compile(NET)
    assert not list(tmp_path.rglob("*.so"))


def test_a_compiler_that_is_no_program_for_this_machine(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_bytes(b"\x7fELF nonsense")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("LEHR_CACHE", str(tmp_path / "cache"))
    with pytest.raises(CompilerError, match="the C compiler cannot be run"):
        compile(NET)


def test_a_compiler_that_never_ends_is_given_up(tmp_path, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexec sleep 100\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "LONGEST_SECONDS", 0.1)
    with pytest.raises(CompilerError, match="the C compiler cannot be run: .* timed out"):
        build.build([str(compiler)], folder=tmp_path / "cache")


def test_a_cached_runtime_works_without_a_compiler(cache, tmp_path, monkeypatch):
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compile(NET)(IMAGES).tolist() == [[1, 0]]
    library(cache).unlink()
    monkeypatch.setenv("LEHR_CACHE", str(tmp_path / "empty"))
    with pytest.raises(CompilerError, match="there is no C compiler"):
        compile(NET)


def test_folders_of_killed_builds_are_removed(cache):
    old, new = (cache / "runtime" / name for name in ("building-old", "building-new"))
    for folder in (old, new):
        folder.mkdir()
        (folder / "scalar.o").touch()
    os.utime(old, (time.time() - 7200,) * 2)
    library(cache).unlink()
    build.build(build.find_compiler(), folder=cache)
    assert not old.exists()
    assert new.exists()  # somebody may be building in it right now


def owned_by_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, give it away; else be somebody else from now on."""
    user = os.geteuid()
    if user == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)


def test_a_library_others_can_write_is_not_loaded(cache):
    path = library(cache)
    whole = path.read_bytes()
    path.chmod(0o777)
    before = path.stat().st_ino
    assert build.built_before(cache) is None
    path = build.build(build.find_compiler(), folder=cache)
    assert path.read_bytes() == whole
    assert path.stat().st_ino != before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_library_of_another_user_is_not_loaded(cache, tmp_path, monkeypatch):
    (cache / "runtime").chmod(0o777)
    path = library(cache)
    owned_by_another(path, monkeypatch)
    assert build.built_before(cache) is None
    assert in_another_process(tmp_path) == "[[1, 0]]"
    assert library(cache).stat().st_uid == os.geteuid()
    assert (cache / "runtime").stat().st_mode & 0o777 == 0o755


def test_a_link_is_not_loaded(cache, tmp_path):
    path = library(cache)
    elsewhere = tmp_path / path.name
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert build.built_before(cache) is None
    assert elsewhere.exists()


def test_a_folder_of_another_user_is_refused(cache, monkeypatch):
    owned_by_another(cache / "runtime", monkeypatch)
    with pytest.raises(CompilerError, match="belongs to another user, and loading a library runs it: set LEHR_CACHE"):
        compile(NET)


def test_a_cache_in_a_folder_anybody_can_change_is_refused(cache):
    cache.chmod(0o777)
    with pytest.raises(CompilerError, match=r"everybody can replace what is in .*: `chmod o-w .*cache`, or set LEHR"):
        compile(NET)
    cache.chmod(0o1777)  # as /tmp: only the owner can rename what is in it
    assert compile(NET)(IMAGES).tolist() == [[1, 0]]


def test_a_cache_that_is_no_folder_is_an_error_that_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEHR_CACHE", str(tmp_path / "file"))
    with pytest.raises(CompilerError, match=r"cannot be kept in .*file.*IntegerNet.run works without"):
        compile(NET)
