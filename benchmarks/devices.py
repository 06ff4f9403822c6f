"""Networks of the zoo on microcontrollers and 64-bit Arm: executed instructions, memory and flash, beside their goals.

    python benchmarks/devices.py [--networks digits ...] [--targets cortex-m4 ...] [--write]

Each network is exported for each target (`lehr export --to c --target ..`), built by the Makefile of the export and run
in qemu, where a plugin (instructions.c) counts what `lehr_run` executes: the same number each time, on any
computer. These are instructions, not cycles, which only a board could tell. The images are 4 random ones, and the
count is their mean. `--write` keeps the numbers in the zoo's devices.csv, which `lehr zoo` shows and
to which tests/test_targets.py holds the code.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

from lehr import zoo
from lehr.deploy import to_c
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.pack import load
from lehr.table import Table

HERE = Path(__file__).parent
KEPT = zoo.DEVICES
NETWORKS = tuple(zoo.networks())
# What is built with other flags than the export's own: a Cortex-M4 without its DSP instructions has those of an M3.
VARIANTS = {"cortex-m4 plain C": ("cortex-m4", "-mcpu=cortex-m3 -mthumb")}
TARGETS = ("cortex-m4", *VARIANTS, "cortex-m0", "cortex-m55", "rv32", "aarch64")
# The most that a number may be, as prototypes reached it.
GOALS = {
    ("cifar10-quick", "cortex-m4", "instructions"): 10_500_000,
    ("cifar10-quick", "cortex-m4 plain C", "instructions"): 15_500_000,
    ("cifar10-quick", "cortex-m4", "memory"): 36 * 1024,
    ("cifar10-quick", "cortex-m4", "code"): 10 * 1024,
    ("cifar10-quick", "cortex-m0", "instructions"): 28_000_000,
    ("cifar10-quick", "rv32", "instructions"): 17_000_000,
    ("cifar10-quick", "cortex-m55", "instructions"): 7_100_000,
    ("cifar10-quick", "aarch64", "instructions"): 4_100_000,
    ("digits", "cortex-m4", "instructions"): 120_000,
    ("digits", "cortex-m4", "flash"): 40 * 1024,
}


@dataclass(frozen=True)
class Figures:
    """What a network takes on a target.

    Args:
        instructions: of a run, the mean of the test vector's images
        memory: bytes of RAM: MODEL_MEMORY
        stack: bytes besides, as the test program measured them
        code: bytes of the runtime's functions and of their constants
        flash: bytes of code and of the network's constants, without the C library and the test itself
    """

    instructions: int
    memory: int
    stack: int
    code: int
    flash: int


def missing(target: str) -> list[str]:
    """The programs that `target` needs and this computer has not."""
    words = {
        "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
        "rv32": ("riscv64-unknown-elf-gcc", "qemu-system-riscv32"),
    }
    needed = words.get(target, ("arm-none-eabi-gcc", "qemu-system-arm"))
    return [name for name in (*needed, "make", "gcc") if shutil.which(name) is None]


def compiler_of(folder: Path) -> str:
    """The compiler of an export, with its version."""
    name = _variable(folder, "CC")
    version = subprocess.run([name, "-dumpversion"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{name} {version}"


def measure(net: IntegerNet, target: str, folder: Path) -> Figures:
    """Export `net` into `folder`, build it, run it and count; RuntimeError if a score is wrong."""
    name, processor = VARIANTS.get(target, (target, None))
    to_c(net, folder, target=name)
    variables = [] if processor is None else [f"PROCESSOR={processor}"]
    _run("make", "-s", "-C", str(folder), *variables, "test.elf")
    nm = re.sub(r"(gcc|cc)$", "nm", _variable(folder, "CC"))
    addresses = {
        name: address
        for address, _, name in map(str.split, _run(nm, "--defined-only", str(folder / "test.elf")).splitlines())
    }
    plugin = f"{_plugin()},from=0x{addresses['lehr_run']},to=0x{addresses['lehr_score']}"
    emulator, *arguments = _variable(folder, "RUN").split()
    count = [emulator, "-plugin", plugin, "-d", "plugin", *arguments, str(folder / "test.elf")]
    told = _run(*count)
    if ": 0 differ" not in told:
        raise RuntimeError(f"{target}: scores differ from the reference: {told}")
    sizes = _sizes((folder / "test.map").read_text())
    model = sizes.pop("model.o")
    code = sum(
        size for file, size in sizes.items() if (HERE.parent / "src/lehr/deploy/runtime" / f"{file[:-2]}.c").exists()
    )
    stated = re.search(r"#define MODEL_MEMORY (\d+)", (folder / "model.h").read_text())
    stack = re.search(r"(\d+) bytes of stack", told)
    assert stated
    assert stack
    return Figures(
        instructions=round(mean(map(int, re.findall(r"instructions (\d+)", told)))),
        memory=int(stated[1]),
        stack=int(stack[1]),
        code=code,
        flash=code + model,
    )


def _sizes(linker_map: str) -> dict[str, int]:
    """Bytes of code and constants that each object file has in the program, from the linker's map."""
    sizes: dict[str, int] = {}
    kept = linker_map[linker_map.index("Linker script and memory map") :]
    for size, file in re.findall(r"^ \.(?:text|rodata|data)\S*\s+0x\w+\s+0x(\w+) (\w+\.o)$", kept, re.MULTILINE):
        sizes[file] = sizes.get(file, 0) + int(size, 16)
    return sizes


@cache
def _plugin() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lehr-instructions-"))
    _run("gcc", "-shared", "-fPIC", "-O2", "-o", str(folder / "instructions.so"), str(HERE / "instructions.c"))
    return folder / "instructions.so"


def _variable(folder: Path, name: str) -> str:
    """A variable of an export's Makefile."""
    return _run("make", "-s", "-C", str(folder), "--eval", f"show: ; @echo $({name})", "show").strip()


def _run(*command: str) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--targets", nargs="+", default=TARGETS, choices=TARGETS)
    parser.add_argument("--write", action="store_true", help="keep the numbers in devices.csv")
    arguments = parser.parse_args()
    rows, found = [], dict(zoo.devices())
    for network in arguments.networks:
        net = load(zoo.file_of(network))
        for target in arguments.targets:
            if missing(target):
                print(f"{network} on {target}: not measured, {', '.join(missing(target))} not found", file=sys.stderr)
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    figures = measure(net, target, Path(folder))
                except RuntimeError as error:
                    if "will not fit in region" not in str(error):
                        raise
                    print(
                        f"{network} on {target}: not measured, larger than the flash of the emulated board",
                        file=sys.stderr,
                    )
                    continue
                compiler = compiler_of(Path(folder))
            found[network, target] = {
                "network": network,
                "target": target,
                **{name: str(value) for name, value in vars(figures).items()},
                "compiler": compiler,
            }
            for name, value in vars(figures).items():
                goal = GOALS.get((network, target, name))
                verdict = "" if goal is None else "met" if value <= goal else f"missed by {value / goal - 1:.1%}"
                rows.append((network, target, name, f"{value:,}", "" if goal is None else f"<= {goal:,}", verdict))
    print(Table(("network", "target", "what", "measured", "goal", ""), rows))
    if arguments.write:
        order = [(network, target) for network in NETWORKS for target in TARGETS if (network, target) in found]
        with KEPT.open("w", newline="") as file:
            writer = csv.DictWriter(file, found[order[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(found[key] for key in order)
    return 0


if __name__ == "__main__":
    sys.exit(main())
