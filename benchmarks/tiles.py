"""`lehr` with bfloat16 on AMX, on a virtual machine that hides the processor's tiles (see lehr.training.machine).

    python benchmarks/tiles.py train cifar10-quick --precision bf16-mixed --compile true

oneDNN's answers to "how many tiles, rows, bytes a row?" are overwritten in the memory of this process with those of
every processor with AMX so far (palette 1: 8 tiles of 16 rows of 64 bytes). For measuring only: it needs Linux on
x86-64, nm and a torch whose symbols were not stripped; nothing on disk changes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import torch

from lehr.cli import main

_ANSWERS = {
    "get_target_palette": 1,
    "get_max_palette": 1,
    "get_max_tiles": 8,
    "get_max_rows": 16,
    "get_max_column_bytes": 64,
}


def tell_onednn() -> None:
    """Let each question return its answer at once: mov eax, ANSWER; ret."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    loaded = Path("/proc/self/maps").read_text().splitlines()
    base = min(int(line.partition("-")[0], 16) for line in loaded if line.endswith(library.name))
    symbols = subprocess.run(["nm", "--demangle", library], capture_output=True, text=True, check=True).stdout
    found = 0
    for line in symbols.splitlines():
        _, _, name = line.partition("dnnl::impl::cpu::x64::amx::")
        question = name.partition("(")[0]
        if question not in _ANSWERS or " t " not in line or not name.endswith(")"):
            continue
        address = base + int(line.split()[0], 16)
        page = address - address % mmap.PAGESIZE
        everything = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), 2 * mmap.PAGESIZE, everything):
            sys.exit("this system does not let a process change its own code")
        ctypes.memmove(address, b"\xb8" + _ANSWERS[question].to_bytes(4, "little") + b"\xc3", 6)
        found += 1
    if found != len(_ANSWERS):
        sys.exit(f"{library.name} has {found} of the {len(_ANSWERS)} functions: oneDNN is another one than expected")


if __name__ == "__main__":
    tell_onednn()
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_AMX"  # asked for: lehr does not try it in another process
    sys.exit(main())
