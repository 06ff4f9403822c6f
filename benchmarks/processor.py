"""Run a Python program as if on another processor: what is asked of CPUID is answered otherwise (processor.c).

    python benchmarks/processor.py avx2 benchmarks/deploy.py
    python benchmarks/processor.py tiles -m lehr train cifar10-quick --precision bf16-mixed --compile true

`avx2` hides AVX-512, VNNI and AMX, so that every library takes its AVX2 kernels. `tiles` answers what some virtual
machines hide, the layout of AMX's tiles, without which bfloat16 cannot be trained on them (lehr.training.machine).
Needs Linux on x86-64, a C compiler, and a processor on which CPUID can be made to fault.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lehr.deploy.build import find_compiler


def main() -> None:
    which, *program = sys.argv[1:] or [""]
    if which not in ("avx2", "tiles") or not program:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder) / "processor.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(
            [*find_compiler(), "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", shim, source], check=True
        )
        environment = {**os.environ, "LD_PRELOAD": str(shim), "LEHR_PROCESSOR": which}
        sys.exit(subprocess.run([sys.executable, *program], env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
