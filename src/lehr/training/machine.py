"""What a run asks of its machine: bfloat16, a compiler, memory that stays; what is lacking is told before training."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from lehr.training.errors import RunError

_CPU = Path("/proc/cpuinfo")
_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**31 - 1  # mallopt takes an int


def check_bfloat16() -> None:
    """Raise a `RunError` if a product in bfloat16 ends another process, which is asked where there is AMX alone.

    oneDNN takes AMX, the matrix units of newer Xeons, where the processor announces it, and asks the processor for the
    layout of its tiles. Some virtual machines (Firecracker's) hide that answer, and the first product ends the process
    with an illegal instruction, without a word.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not _CPU.exists() or "amx_bf16" not in _CPU.read_text():
        return
    ended = subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True, check=False)
    if ended.returncode == -signal.SIGILL:
        raise RunError(
            "bfloat16 ends with an illegal instruction on this machine, which hides the tiles of its processor: "
            "train with --precision 32-true, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )


def check_compiler() -> None:
    """Raise a `RunError` if the C++ compiler that `torch.compile` takes for a CPU is not there."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if sys.platform != "win32" and shutil.which(compiler) is None:
        raise RunError(
            f"--compile needs a C++ compiler, and there is no {compiler}: install one, set CXX to yours, "
            "or train without --compile"
        )


def keep_freed_memory() -> bool:
    """Let this process keep what it frees; return whether the C library can (glibc can).

    Each training step frees its activations and gradients and asks for the same amounts again. glibc hands large blocks
    back to the system in between, and every page of the next step's is mapped and cleared anew: a sixth of AlexNet's
    step on a CPU in full precision, a third of it quantized, whose weights pass through two more large tensors.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _LARGEST))
