"""The C runtime as a shared library: compiled once for a machine, kept in a cache, checked before it is loaded.

A library in the cache is named for what it was made of and for its own contents,

    ~/.cache/lehr/runtime/lehr-{sources and flags}-{compiler}-{SHA-256 of the file}.so

so a damaged file is noticed and built anew, and without a compiler one that was built before still serves. Loading a
library runs what is in it: files and folders that another user owns or can write to are not used. A wheel for one
platform has the library in it already (`prebuilt`), made of the same sources when the wheel was built.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

RUNTIME = Path(__file__).parent / "runtime"
PREBUILT = Path(__file__).parent / "prebuilt"  # in wheels alone
# -ffp-contract=off: a product and a sum are rounded each, as in the reference run.
FLAGS = ("-std=c99", "-O3", "-ffp-contract=off")
PORTABLE_FILES = ("lehr.c", "reference.c", "scalar.c", "vector.c")
# What microcontrollers run. Computers have it to compare; exports for them leave it out.
SMALL_FILE, _SMALL_MACRO = "small.c", "LEHR_HAVE_SMALL"
# Each file with the flags it alone gets, and the macro that says it is there.
VECTOR_FILES = {
    "avx2.c": ("LEHR_HAVE_AVX2", ("-mavx2", "-mpopcnt")),
    "avx512.c": ("LEHR_HAVE_AVX512", ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mpopcnt")),
    "amx.c": (
        "LEHR_HAVE_AMX",
        (
            "-mamx-tile",
            "-mamx-int8",
            "-mavx512f",
            "-mavx512bw",
            "-mavx512dq",
            "-mavx512vl",
            "-mavx512vpopcntdq",
        ),
    ),
}
LONGEST_SECONDS = 600  # of one command of a compiler
_LEFT_OVER = 3600  # seconds after which a folder of an unfinished build belongs to nobody any more
_WITHOUT = "IntegerNet.run works without, only slower."
_NO_COMPILER = f"lehr.deploy.compile needs one to build its runtime; {_WITHOUT}"


class CompilerError(RuntimeError):
    """There is no C compiler, or it failed, or there is no safe place for what it builds; and what works without."""


def find_compiler() -> list[str]:
    """The C compiler as a command: CC, else the first of cc, gcc, clang."""
    chosen = os.environ.get("CC")
    if chosen:
        try:
            command = shlex.split(chosen)
        except ValueError as error:
            raise CompilerError(f"CC is {chosen!r}, which is no command: {error}. {_NO_COMPILER}") from None
        if command and shutil.which(command[0]):
            return command
        raise CompilerError(f"CC is {chosen!r}, which is not a program here. {_NO_COMPILER}")
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise CompilerError(f"there is no C compiler (cc, gcc or clang, or set CC). {_NO_COMPILER}")


def cache_folder() -> Path:
    """Where compiled runtimes are kept: LEHR_CACHE, else ~/.cache/lehr."""
    chosen = os.environ.get("LEHR_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path.home() / ".cache" / "lehr"
    except RuntimeError as error:
        raise CompilerError(f"{error}: set LEHR_CACHE to a folder for the compiled runtime. {_WITHOUT}") from None


def build(compiler: Sequence[str], *, flags: tuple[str, ...] = (), folder: Path | None = None) -> Path:
    """Path of the compiled runtime, built if the cache does not hold it whole. Safe for processes at once.

    Args:
        compiler: the compiler's command
        flags: further flags for it
        folder: the cache, instead of `cache_folder()`
    """
    version = _run([*compiler, "--version"]).stdout
    made_by = hashlib.sha256(repr((tuple(compiler), version)).encode()).hexdigest()[:16]
    name = f"lehr-{_source_hash(flags)}-{made_by}"
    try:
        folder = _own_folder((folder or cache_folder()) / "runtime", make=True)
        return _cached(folder, name) or _built(compiler, flags, folder, name)
    except OSError as error:
        raise CompilerError(f"the compiled runtime cannot be kept in {folder}: {error}. {_WITHOUT}") from error


def built_before(folder: Path | None = None) -> Path | None:
    """Path of a runtime that any compiler built of these sources and the cache holds, or None."""
    try:
        folder = _own_folder((folder or cache_folder()) / "runtime", make=False)
        return _cached(folder, f"lehr-{_source_hash(())}-*")
    except OSError:
        return None


def prebuilt() -> Path | None:
    """Path of the library that the installed wheel brings for this machine, or None; never one of other sources."""
    return next(iter(sorted(PREBUILT.glob(f"{library_name(platform.machine())}.*"))), None)


def library_name(machine: str) -> str:
    """Return the name, without its suffix, of the library of these sources for a machine, as `platform` names it."""
    return f"lehr-{_source_hash((), machine)}"


def sources() -> list[Path]:
    """The files of the runtime."""
    return sorted(path for path in RUNTIME.iterdir() if path.suffix in (".c", ".h", ".inc"))


def _source_hash(flags: tuple[str, ...], machine: str | None = None) -> str:
    key = hashlib.sha256(repr((FLAGS, VECTOR_FILES, flags, machine or platform.machine())).encode())
    for source in sources():
        key.update(source.name.encode() + b"\0" + source.read_bytes())
    return key.hexdigest()[:16]


def _cached(folder: Path, name: str) -> Path | None:
    """A whole library of that name that nobody else can have written; what is damaged is removed."""
    for path in sorted(folder.glob(f"{name}-*.so")):
        status = path.lstat()
        digest = path.stem.rpartition("-")[2]
        if stat.S_ISREG(status.st_mode) and _only_ours(status) and _digest(path) == digest:
            return path
        path.unlink(missing_ok=True)
    return None


def _built(compiler: Sequence[str], flags: tuple[str, ...], folder: Path, name: str) -> Path:
    """Compile into a folder of its own, then move the whole file to its place."""
    _remove_leftovers(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as temporary:
        made = Path(temporary) / "runtime.so"
        compile_library(compiler[:1], made, flags=(*compiler[1:], *flags))
        if not made.is_file():
            raise CompilerError(f"{shlex.join(compiler)} made no library and reported no error. {_WITHOUT}")
        made.chmod(0o755)
        with made.open("rb") as file:
            os.fsync(file.fileno())
        path = folder / f"{name}-{_digest(made)}.so"
        os.replace(made, path)
    return path


def compile_library(
    command: Sequence[str], target: Path, *, flags: Sequence[str] = (), machine: str | None = None
) -> None:
    """Compile the runtime into the shared library `target`, with objects beside it.

    The portable files and, for x86-64, the vector files this compiler knows the flags of: the best that a processor has
    is chosen when the library runs.

    Args:
        command: the compiler
        target: the library to write
        flags: further flags, which win over those of `FLAGS`
        machine: what to compile for, as `platform.machine()` names it; this one unless given
    """
    machine = machine or platform.machine()
    position = [] if target.suffix == ".dll" else ["-fPIC"]  # code of Windows can be anywhere
    common = [*command, *FLAGS, *position, *flags, "-c"]
    objects, macros = [], [f"-D{_SMALL_MACRO}"]
    if machine in ("x86_64", "AMD64"):
        for file, (macro, own) in VECTOR_FILES.items():
            made = str(target.parent / f"{file}.o")
            compilation = [*common, f"-D{macro}", *own, "-o", made, str(RUNTIME / file)]
            # What fails twice this compiler cannot do; once, it may have lacked memory, and the result is kept.
            if any(_run(compilation).returncode == 0 for _ in range(2)):
                objects.append(made)
                macros.append(f"-D{macro}")
    for file in (*PORTABLE_FILES, SMALL_FILE):
        objects.append(str(target.parent / f"{file}.o"))
        run_compiler([*common, *macros, "-o", objects[-1], str(RUNTIME / file)])
    run_compiler([*command, *flags, "-shared", "-o", str(target), *objects])


def run_compiler(command: list[str]) -> None:
    """Run a command of a compiler; raise CompilerError with what it said if it fails."""
    done = _run(command)
    if done.returncode:
        raise CompilerError(
            f"the C compiler failed (exit {done.returncode}): {shlex.join(command)}\n{done.stderr.strip()}\n{_WITHOUT}"
        )


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"the C compiler cannot be run: {error}. {_WITHOUT}") from error


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _remove_leftovers(folder: Path) -> None:
    """Remove what builds that were killed left behind."""
    for path in folder.iterdir():
        if path.is_dir() and path.lstat().st_mtime < time.time() - _LEFT_OVER:
            shutil.rmtree(path, ignore_errors=True)


def _own_folder(folder: Path, *, make: bool) -> Path:
    """The folder, once nobody else can write to it; CompilerError if that cannot be had."""
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    if os.name != "posix":
        return folder
    around, status = folder.parent.stat(), folder.stat()
    if around.st_mode & stat.S_IWOTH and not around.st_mode & stat.S_ISVTX:
        raise CompilerError(
            f"everybody can replace what is in {folder.parent}, and loading a library runs it: "
            f"`chmod o-w {shlex.quote(str(folder.parent))}`, or set LEHR_CACHE to another folder. {_WITHOUT}"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise CompilerError(
            f"{folder} belongs to another user, and loading a library runs it: set LEHR_CACHE to a folder of yours. "
            + _WITHOUT
        )
    if not _only_ours(status):
        folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
    return folder


def _only_ours(status: os.stat_result) -> bool:
    """Whether nobody but this user, and root, can write to a file or a folder."""
    if os.name != "posix":
        return True
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
