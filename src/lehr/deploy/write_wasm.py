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

from lehr.deploy.build import RUNTIME, CompilerError
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.write_c import to_c

BROWSER = Path(__file__).parent / "browser"
_OWN = RUNTIME / "wasm"  # what JavaScript calls, and the few functions of a C library
_TARGET = "aarch64"  # whose vectors are those of WebAssembly: 16 bytes
_NOT_NEEDED = ("test.c", "stream.c")
# -O2: -O3 is as fast and larger, -Os half as fast. Unrolling loops of unknown length only makes the file larger.
_FLAGS = (
    *("--target=wasm32", "-msimd128", "-mbulk-memory", "-nostdlib", "-std=c99", "-O2", "-ffp-contract=off"),
    *("-DLEHR_DEVICE", "-ffunction-sections", "-fdata-sections", "-mllvm", "-unroll-runtime=0"),
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
    if len(net.outputs) > 1:
        names = ", ".join(output.name for output in net.outputs)
        raise ValueError(f"WebAssembly gives one output, and this network has {names}: freeze a network for each")
    missing = [name for name in ("clang", "wasm-ld") if shutil.which(name) is None]
    if missing:
        raise CompilerError(f"there is no {' and no '.join(missing)}. {_INSTALL}.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        to_c(net, folder, target=_TARGET)
        files = [path.name for path in folder.glob("*.c") if path.name not in _NOT_NEEDED]
        command = ["clang", *_FLAGS, "-isystem", str(_OWN), "-I.", "-o", "model.wasm", *files, str(_OWN / "wasm.c")]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise CompilerError(f"clang failed: {shlex.join(command)}\n{done.stderr.strip()}\n{_INSTALL}.")
        return (folder / "model.wasm").read_bytes()
