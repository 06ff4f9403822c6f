"""An `IntegerNet` as one WebAssembly file, for browsers, node and whatever else runs it.

    to_wasm(net, "model.wasm")    # and beside it model.mjs, which loads and runs it, and model.d.mts, its types

It is the C of write_c.py for vectors of 16 bytes, compiled by clang and linked by lld: no Emscripten and no C library,
so the file is the network and some 30 KB. browser/model.mjs says how to use it.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from lehr.deploy.build import PORTABLE_FILES, RUNTIME, CompilerError
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.write_c import to_c

BROWSER = Path(__file__).parent / "browser"
# -O2: -O3 is as fast and 10 % larger, -Os half as fast.
_FLAGS = (
    *("--target=wasm32", "-msimd128", "-mbulk-memory", "-nostdlib", "-std=c99", "-O2", "-ffp-contract=off"),
    *("-Wl,--no-entry", "-Wl,--gc-sections", "-Wl,--strip-all"),
)
_INSTALL = (
    "WebAssembly needs clang with its wasm32 target, and lld: `apt install clang lld` on Debian and Ubuntu, "
    "`brew install llvm lld` on macOS, whose own clang lacks the target"
)


def to_wasm(net: IntegerNet, path: str | Path) -> None:
    """Write `net` as a .wasm file, and beside it the JavaScript module that runs it and its types.

    Args:
        net: the network, with one output
        path: the .wasm file; the others take its name
    """
    path = Path(path)
    path.write_bytes(wasm_of(net))
    for suffix in (".mjs", ".d.mts"):
        shutil.copyfile(BROWSER / f"model{suffix}", path.with_suffix(suffix))


def wasm_of(net: IntegerNet) -> bytes:
    """The bytes of the .wasm file. Raises CompilerError where clang or lld is missing, and names what to install."""
    missing = [name for name in ("clang", "wasm-ld") if shutil.which(name) is None]
    if missing:
        raise CompilerError(f"there is no {' and no '.join(missing)}. {_INSTALL}.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        to_c(net, folder)
        files = [*(str(RUNTIME / name) for name in PORTABLE_FILES), str(RUNTIME / "wasm" / "wasm.c"), "model.c"]
        folders = ["-isystem", str(RUNTIME / "wasm"), f"-I{RUNTIME}", "-I."]
        command = ["clang", *_FLAGS, "-DMODEL_INSTRUCTION_SET=LEHR_VECTOR", *folders, "-o", "model.wasm", *files]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise CompilerError(f"clang failed: {shlex.join(command)}\n{done.stderr.strip()}\n{_INSTALL}.")
        return (folder / "model.wasm").read_bytes()
