"""Is this installation whole? A row for each thing that lehr needs or can use, "OK" or what to do.

Works in a base install: what an extra brings is examined where it is installed, and else the row names the extra.
Supported versions are those of the package's own metadata.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import lehr
from lehr.table import Table, Tabular

EXTRAS = ("train", "deploy", "imagenet", "ray")  # those that users install; the others are for developers
_LITTLE = 2**30  # bytes of free disk: less does not hold a data set and its runs


@dataclass(frozen=True)
class Finding:
    """One thing examined.

    Args:
        what: its name.
        found: what is there.
        advice: what to do about it; empty if it is as it should be.
        broken: whether lehr needs it and cannot use it.
    """

    what: str
    found: str
    advice: str = ""
    broken: bool = False


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """All findings; prints as a table."""

    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of what is needed and broken."""
        return tuple(finding.what for finding in self.findings if finding.broken)

    def table(self) -> Table:
        """Return a row for each finding."""
        rows = [(finding.what, finding.found, finding.advice or "OK") for finding in self.findings]
        return Table(("what", "found", "OK, or what to do"), rows)


def examine() -> Diagnosis:
    """Examine this Python, this machine and lehr's folders; the first time, the C runtime is compiled."""
    parts = (_lehr_and_python, _packages, _processor, _gpus, _compiler, _engine, _data, _disk)
    return Diagnosis(tuple(finding for part in parts for finding in _guarded(part)))


def _guarded(part: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a part; an error of its own is a finding too, so that the others are still seen."""
    try:
        yield from part()
    except Exception as error:
        name = part.__name__.strip("_").replace("_", " ")
        yield Finding(name, f"{type(error).__name__}: {' '.join(str(error).split())}", "report this as an issue", True)


def _lehr_and_python() -> Iterator[Finding]:
    yield Finding("lehr", f"{lehr.__version__} in {Path(lehr.__file__).parent}")
    try:
        wanted = metadata.metadata("lehr")["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        yield Finding("metadata", "none: supported versions are unknown", "pip install -e . in the clone")
        wanted = ""
    version = platform.python_version()
    fits = SpecifierSet(wanted).contains(version, prereleases=True)
    advice = "" if fits else f"use a Python {wanted}"
    yield Finding("python", f"{version} ({wanted}), {platform.platform()}", advice, broken=not fits)


def _packages() -> Iterator[Finding]:
    """The packages of the base install and of each extra, against the ranges in lehr's metadata."""
    try:
        requirements = [Requirement(text) for text in metadata.requires("lehr") or ()]
    except metadata.PackageNotFoundError:
        return
    told: set[str] = set()
    for extra in ("", *EXTRAS):
        lacking = []
        for needed in _of_extra(requirements, extra):
            version = _version(needed.name)
            if version is None:
                lacking.append(needed.name)
            elif needed.name not in told:
                told.add(needed.name)
                yield _package(needed, version)
        if lacking and not extra:
            yield Finding("base install", f"lacks {', '.join(lacking)}", "pip install lehr", broken=True)
        elif lacking:
            yield Finding(f"lehr[{extra}]", f"lacks {', '.join(lacking)}", f"to use it: pip install 'lehr[{extra}]'")


def _of_extra(requirements: list[Requirement], extra: str) -> Iterator[Requirement]:
    for needed in requirements:
        for_all = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if needed.name != "lehr" and (
            for_all if not extra else not for_all and needed.marker and needed.marker.evaluate({"extra": extra})
        ):
            yield needed


def _package(needed: Requirement, version: str) -> Finding:
    supported = str(needed.specifier)
    if not needed.specifier.contains(version, prereleases=True):
        advice = f"pip install '{needed.name}{supported}'"
        return Finding(needed.name, f"{version}, outside {supported}", advice, broken=True)
    return Finding(needed.name, f"{version} ({supported})")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("processor", f"{_model()}, {cores} cores, torch uses {capability}, {torch.get_num_threads()} threads")


def _model() -> str:
    """The processor's own name where the system tells it."""
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(number)
            yield Finding(f"GPU {number}", f"{device.name}, {device.total_memory / 2**30:.0f} GB")
    elif torch.backends.mps.is_available():
        yield Finding("GPU", "Apple (mps)")
    else:
        built = f"; torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else ""
        yield Finding("GPU", f"none: training runs on the CPU{built}")


def _compiler() -> Iterator[Finding]:
    from lehr.deploy.build import CompilerError, find_compiler, prebuilt

    if prebuilt() is not None and not os.environ.get("CC"):
        yield Finding("C compiler", "not needed: the engine came compiled with the wheel")
        return
    try:
        command = find_compiler()
        told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=60)
        yield Finding("C compiler", f"{' '.join(command)}: {(told.stdout or told.stderr).splitlines()[0]}")
    except CompilerError as error:
        # A compiler that the user chose and that does not work is broken; having none is not: networks run slower.
        yield Finding("C compiler", "none", str(error), broken=bool(os.environ.get("CC")))


def _engine() -> Iterator[Finding]:
    """Whether the engine can be built, and gives what the reference run gives."""
    from lehr.deploy.build import CompilerError, cache_folder

    try:
        yield Finding("cache", str(cache_folder()))
        import numpy as np

        from lehr import zoo
        from lehr.deploy.cpu import available, compile
        from lehr.deploy.integer_net import random_batch

        net = zoo.networks()["digits"].load()
        images = random_batch(net, 3)
        for name in available():
            if not np.array_equal(compile(net, instruction_set=name).run(images), net.run(images)):
                yield Finding("engine", f"{name} differs from the reference run", "report this as an issue", True)
                return
        yield Finding("engine", f"{', '.join(available())}: as the reference run")
    except ModuleNotFoundError as error:
        yield Finding("engine", f"not examined: {error.name} is missing", "to use it: pip install 'lehr[deploy]'")
    except CompilerError as error:
        yield Finding("engine", "cannot be built", str(error).splitlines()[0], broken=shutil.which("cc") is not None)


def _data() -> Iterator[Finding]:
    if _version("scikit-learn") is None:  # one of the data sets is in it
        yield Finding("data", "not examined: scikit-learn is missing", "to use it: pip install 'lehr[train]'")
        return
    from lehr.data.catalogue import folder, states

    home = folder()
    yield Finding("data folder", f"{home}{'' if home.is_dir() else ', not made yet'}")
    for name, state in states().items():
        yield Finding(f"data: {name}", state, "" if state == "complete" else f"to use it: lehr data {name}")


def _disk() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free
    advice = "" if free >= _LITTLE else "runs and data sets need room: work in another folder, or set LEHR_DATA"
    yield Finding("free disk", f"{free / 2**30:.1f} GB in {Path.cwd()}", advice)
