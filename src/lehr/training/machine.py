"""What a CPU may lack for a recipe's way to compute, found out before training begins."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from lehr.training.errors import RunError

_CPU = Path("/proc/cpuinfo")
_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


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
    """Raise a `RunError` if there is no C++ compiler, which `torch.compile` needs for a CPU; its choice is ours."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if sys.platform != "win32" and shutil.which(compiler) is None:
        raise RunError(
            f"--compile needs a C++ compiler, and there is no {compiler}: install one, set CXX to yours, "
            "or train without --compile"
        )
