"""The wheels: with LEHR_WHEEL=TARGET in the environment, the C runtime is compiled into a wheel for that platform.

Without it, as for an editable install or one from source, the wheel is for any platform and has no library: the runtime
is compiled on demand. `make wheels` builds one for each of `TARGETS`. macOS and Windows are compiled by ziglang.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_ZIG = (sys.executable, "-m", "ziglang", "cc", "-target")


class Target(NamedTuple):
    """A platform: its name in wheels, the machine as Python names it there, a library's suffix, the compiler."""

    tag: str
    machine: str
    suffix: str
    compiler: tuple[str, ...]


# The tags promise what the libraries need: they call memcpy, memset and the like, which glibc 2.17 has.
TARGETS = {
    "linux-x86_64": Target("manylinux_2_17_x86_64", "x86_64", ".so", ("gcc",)),
    "linux-aarch64": Target("manylinux_2_17_aarch64", "aarch64", ".so", ("aarch64-linux-gnu-gcc",)),
    "macos-arm64": Target("macosx_11_0_arm64", "arm64", ".dylib", (*_ZIG, "aarch64-macos.11.0")),
    "macos-x86_64": Target("macosx_11_0_x86_64", "x86_64", ".dylib", (*_ZIG, "x86_64-macos.11.0")),
    "windows-x86_64": Target("win_amd64", "AMD64", ".dll", (*_ZIG, "x86_64-windows-gnu")),
}


class CompiledRuntime(BuildHookInterface):
    """Adds the library to the wheel, and says which platform the wheel is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile for the target that LEHR_WHEEL names, if there is one."""
        name = os.environ.get("LEHR_WHEEL")
        if not name or version == "editable":
            return
        if name not in TARGETS:
            raise ValueError(f"LEHR_WHEEL is one of {', '.join(TARGETS)}, got {name!r}")
        target, build = TARGETS[name], _build_module(Path(self.root))
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name) / f"{build.library_name(target.machine)}{target.suffix}"
        build.compile_library(target.compiler, library, machine=target.machine, flags=("-s",))
        build_data["force_include"][str(library)] = f"lehr/deploy/prebuilt/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{target.tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: it is in the wheel."""
        if os.environ.get("LEHR_WHEEL") and version != "editable":
            self._folder.cleanup()


def _build_module(root: Path) -> ModuleType:
    """The module lehr.deploy.build, without the rest of lehr, which needs torch."""
    spec = importlib.util.spec_from_file_location("lehr_build", root / "src" / "lehr" / "deploy" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
