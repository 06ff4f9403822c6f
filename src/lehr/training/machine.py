"""Checks and settings of the machine before training: bfloat16, compilation, memory allocation."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lehr.training.errors import RunError

CPU_INFO = Path("/proc/cpuinfo")
PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**31 - 1  # mallopt takes an int
_WHOLE_LOOPS: dict[str, Any] = {"realize_opcount_threshold": 300, "realize_reads_threshold": 12}


def check_bfloat16() -> None:
    """Raise RunError if a bfloat16 product crashes; it is tried in another process, only on processors with AMX.

    oneDNN uses AMX, the matrix units of newer Xeons, and reads the layout of its tiles from the processor. Some virtual
    machines (Firecracker's) hide that layout, and the first product ends the process with an illegal instruction.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not CPU_INFO.exists() or "amx_bf16" not in CPU_INFO.read_text():
        return
    ended = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, check=False)
    if ended.returncode == -signal.SIGILL:
        raise RunError(
            "bfloat16 ends with an illegal instruction on this machine, which hides the processor's AMX tiles: "
            "train with --precision 32-true, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )


def check_compiler() -> None:
    """Raise RunError if the C++ compiler that `torch.compile` uses for a CPU is missing."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if sys.platform != "win32" and shutil.which(compiler) is None:
        raise RunError(
            f"--compile needs a C++ compiler, and there is no {compiler}: install one, set CXX to yours, "
            "or train without --compile"
        )


def compiled(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a model with `torch.compile`; on a CPU, let what stands between two convolutions be one loop.

    BatchNorm, quantizer, pooling and their derivatives are more operations than Inductor puts into one loop, so it
    writes what is between to memory and reads it again: 6 to 10 % of a step of `cifar10-flagship` and `cifar10-quick`.
    """
    options = _WHOLE_LOOPS if device.type == "cpu" else None
    return torch.compile(model, options=options)  # pyright: ignore[reportReturnType]


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for reuse; return whether it can (glibc can).

    Each training step frees its activations and gradients and allocates the same amounts again. By default glibc
    returns large blocks to the system, which maps and clears every page again: a sixth of the time of AlexNet's step on
    a CPU in full precision, a third when quantized, which passes weights through two more large tensors.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _LARGEST))
