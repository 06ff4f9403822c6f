"""A base install of lehr, or one with some extras, without installing anything: a folder of links.

The folder holds what `pip install 'lehr[EXTRAS]'` would bring, linked from the packages of this Python: the
distributions that pyproject.toml names, and what those need. A Python that sees no other folder is such an install.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def make_install(folder: Path, *extras: str) -> Path:
    """Fill a folder with links to what lehr and these extras need, and lehr's own metadata; return it."""
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    wanted += [Requirement(text) for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    seen: set[tuple[str, str]] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name == "lehr":
            wanted += [Requirement(t) for e in requirement.extras for t in PROJECT["optional-dependencies"][e]]
            continue
        distribution = metadata.distribution(name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            needs = map(Requirement, distribution.requires or ())
            wanted += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
        _link(distribution, folder)
    (folder / "lehr").symlink_to(ROOT / "src" / "lehr")
    _write_metadata(folder)
    return folder


def run_installed(folder: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run Python with what is in the folder alone; the words are its arguments."""
    return subprocess.run(
        [sys.executable, "-S", *words],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(folder), **settings},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _link(distribution: metadata.Distribution, folder: Path) -> None:
    parts = {file.parts[0] for file in distribution.files or () if not file.parts[0].startswith((".", "__pycache__"))}
    for part in parts:
        link = folder / part
        if not link.exists():
            link.symlink_to(Path(str(distribution.locate_file(part))).resolve())


def _write_metadata(folder: Path) -> None:
    version = re.findall(r'^__version__ = "(.*?)"', (ROOT / "src/lehr/__init__.py").read_text(), re.M)[0]
    lines = ["Metadata-Version: 2.4", "Name: lehr", f"Version: {version}"]
    lines += [f"Requires-Python: {PROJECT['requires-python']}"]
    lines += [f"Requires-Dist: {text}" for text in PROJECT["dependencies"]]
    for extra, texts in PROJECT["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        for text in texts:
            what, _, marker = text.partition(";")
            marker = f"({marker.strip()}) and extra == '{extra}'" if marker else f"extra == '{extra}'"
            lines.append(f"Requires-Dist: {what.strip()}; {marker}")
    target = folder / f"lehr-{version}.dist-info"
    target.mkdir()
    (target / "METADATA").write_text("\n".join(lines) + "\n")
