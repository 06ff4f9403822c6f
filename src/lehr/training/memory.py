"""Memory that a step frees, kept for the next one.

Each training step frees its activations and gradients and asks for the same amounts again. glibc hands large blocks
back to the system in between, and every page of the next step's is mapped and cleared anew: a sixth of AlexNet's step
on a CPU in full precision, a third of it quantized, whose weights pass through two more large tensors.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**31 - 1  # mallopt takes an int


def keep_freed_memory() -> bool:
    """Let this process keep what it frees; whether the C library could be told (glibc can)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _LARGEST))
