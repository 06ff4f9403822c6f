"""Wheels that need no compiler: built, installed into an empty environment, and used there; AArch64 under emulation."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from installs import ROOT
from lehr import zoo
from lehr.data import load
from lehr.deploy import to_c

pytest.importorskip("hatchling", reason="wheels are built by hatchling: pip install hatchling")


def build_wheel(target: str, folder: Path) -> Path:
    code = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        env={**os.environ, "LEHR_WHEEL": target},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.split()[-1]


def library_of(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if "/prebuilt/" in name]
        return Path(archive.extract(name, folder))


def newest_glibc(library: Path) -> tuple[int, int]:
    """The newest version of glibc whose functions a library needs."""
    told = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=False).stdout
    versions = [(int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", told)]
    return max(versions, default=(0, 0))


@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux" or not shutil.which("gcc"),
    reason="the wheel that is installed is that of Linux on x86-64, compiled by gcc",
)
def test_a_wheel_predicts_without_a_compiler(tmp_path: Path) -> None:
    wheel = build_wheel("linux-x86_64", tmp_path)
    assert wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl")
    if shutil.which("objdump"):
        assert newest_glibc(library_of(wheel, tmp_path / "unpacked")) <= (2, 17)
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    paths = {"base": str(tmp_path / "empty"), "platbase": str(tmp_path / "empty")}
    packages = Path(sysconfig.get_path("purelib", "posix_prefix", paths))
    with zipfile.ZipFile(wheel) as archive:  # what pip does with a wheel of Python files and a library
        archive.extractall(packages)
    (packages / "shared.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    digit = load("digits").test
    Image.fromarray(np.asarray(digit.images[0, 0])).save(tmp_path / "digit.png")
    code = (
        "import lehr, sys; from lehr.deploy.cpu import available; print(lehr.__file__, *available());"
        "from lehr.cli import main; sys.exit(main(['predict', 'digits', 'digit.png']))"
    )
    environment = {"PATH": str(tmp_path / "nothing"), "LEHR_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    ended = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    (where, *available), _, row = (line.split() for line in ended.stdout.splitlines())
    assert where.startswith(str(packages))
    assert {"reference", "scalar", "vector"} <= {*available}
    assert row[:2] == ["digit.png", str(int(digit.labels[0]))]
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")),
    reason="needs the packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user",
)
def test_the_library_for_aarch64_runs_the_zoo(tmp_path: Path) -> None:
    wheel = build_wheel("linux-aarch64", tmp_path)
    assert wheel.name.endswith("-py3-none-manylinux_2_17_aarch64.whl")
    library = library_of(wheel, tmp_path / "unpacked")
    net = zoo.load("digits")
    to_c(net, tmp_path / "c", images=load("digits").test.images[:6])
    program = tmp_path / "test"
    sources = [str(tmp_path / "c" / name) for name in ("test.c", "model.c")]
    command = ["aarch64-linux-gnu-gcc", "-std=c99", "-O1", *sources, str(library), "-o", str(program), "-lm"]
    subprocess.run(command, check=True)
    emulated = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={library.parent}", program]
    ended = subprocess.run(emulated, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "6 images" in ended.stdout


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="macOS and Windows need ziglang: make wheels")
@pytest.mark.parametrize(
    ("target", "tag", "begins"),
    [
        ("macos-arm64", "macosx_11_0_arm64", b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01"),  # Mach-O, 64 bits, ARM64
        ("macos-x86_64", "macosx_11_0_x86_64", b"\xcf\xfa\xed\xfe\x07\x00\x00\x01"),  # x86-64
        ("windows-x86_64", "win_amd64", b"MZ"),
    ],
)
def test_other_platforms_get_a_library_that_exports_the_runtime(
    target: str, tag: str, begins: bytes, tmp_path: Path
) -> None:
    wheel = build_wheel(target, tmp_path)
    assert wheel.name.endswith(f"-py3-none-{tag}.whl")
    content = library_of(wheel, tmp_path / "unpacked").read_bytes()
    assert content.startswith(begins)
    for name in (b"lehr_run_batch", b"lehr_best_instruction_set"):
        assert name in content


def test_an_unknown_platform_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="LEHR_WHEEL is one of linux-x86_64, .*, got 'amiga'"):
        build_wheel("amiga", tmp_path)
