"""A time budget for tests that look for trouble at random: a few seconds each, or as many as LEHR_FUZZ_SECONDS says.

`make fuzz` gives them minutes. A failure names its seed; LEHR_FUZZ_SEED=N begins with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

_SECONDS = 2.0
_FEWEST = 5  # on a machine that is busy with other things


def seeds() -> Iterator[int]:
    """Numbers to draw from, each once, until the time is over."""
    first = int(os.environ.get("LEHR_FUZZ_SEED", "0"))
    deadline = time.monotonic() + float(os.environ.get("LEHR_FUZZ_SECONDS", _SECONDS))
    seed = first
    while seed < first + _FEWEST or time.monotonic() < deadline:
        yield seed
        seed += 1
