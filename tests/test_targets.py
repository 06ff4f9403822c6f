"""Exports for devices build with one `make`, give the reference scores in the emulator, and keep to what they state."""

import re
import subprocess
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

import devices
from lehr import zoo
from lehr.cli.commands import export
from lehr.deploy import to_c
from lehr.deploy.pack import load
from lehr.deploy.targets import DEVICES, TARGETS
from test_write_c import make_net

PAGE = Path(devices.__file__).parents[1] / "docs" / "devices.md"
MOST_MORE = 1.02  # instructions, memory or flash, against devices.csv


def need(target):
    if devices.missing(target):
        pytest.skip(f"needs {', '.join(devices.missing(target))}")


def stated(folder):
    """The numbers of model.h."""
    return {name: int(n) for name, n in re.findall(r"#define MODEL_(\w+) (\d+)", (folder / "model.h").read_text())}


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m0", "rv32"])  # and digits, below, on all of them
def test_one_make_builds_it_and_runs_its_test_vector(target, tmp_path):
    need(target)
    net = make_net()  # every kernel of integers, and some that no table can do
    to_c(net, tmp_path, images=np.random.default_rng(1).integers(0, 256, (3, 1, 8, 8), dtype=np.uint8), target=target)
    quickly = [] if target == "cortex-m4" else ["OPTIMISE=-O1"]
    done = subprocess.run(["make", *quickly], cwd=tmp_path, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr  # qemu prints what some processors say as errors
    assert done.returncode == 0, told
    numbers = stated(tmp_path)
    assert f"3 images, 1 instruction sets, {-(-numbers['MEMORY'] // 8) * 8} bytes of memory: 0 differ" in told
    stack = re.search(r"(\d+) bytes of stack", told)
    assert stack
    assert int(stack[1]) <= numbers["STACK"]
    header = (tmp_path / "model.h").read_text()
    assert "depthwise: the weights are not in {-1, 0, 1};\n *         216 bytes of flash for its weights" in header


def test_with_the_addresses_that_the_page_names_it_runs_on_an_stm32f4(tmp_path):
    """In qemu, which has a board with the same processor family as the Nucleo of docs/devices.md."""
    need("cortex-m4")
    to_c(load(zoo.file_of("digits")), tmp_path, target="cortex-m4")
    page, script = PAGE.read_text(), tmp_path / "memory.ld"
    for memory in ("FLASH", "RAM"):
        line = re.search(rf"`({memory} .*?)`", page)
        assert line
        text, found = re.subn(rf"{memory} .*", line[1], script.read_text())
        assert found == 1
        script.write_text(text)
    board = ["RUN=qemu-system-arm -M netduinoplus2 -nographic -semihosting -kernel"]
    done = subprocess.run(["make", *board], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": 0 differ" in done.stdout + done.stderr
    assert re.search(r"\.vectors +0x08000000", kept_part(tmp_path))


@pytest.mark.parametrize("target", DEVICES)
def test_devices_take_no_more_than_they_did(target, tmp_path):
    """Against the zoo's devices.csv, which `python benchmarks/devices.py --write` writes; goals are in that script."""
    need(target)
    networks = ["digits", "cifar10-quick"] if target == "cortex-m4" else ["digits"]
    for network in networks:
        row, folder = zoo.devices()[network, target], tmp_path / network
        figures = devices.measure(load(zoo.file_of(network)), target, folder)
        if devices.compiler_of(folder) != row["compiler"]:
            pytest.skip(f"devices.csv was measured with {row['compiler']}")
        for name in ("instructions", "memory", "flash"):
            assert getattr(figures, name) <= MOST_MORE * int(row[name]), name
        numbers = stated(folder)
        assert numbers["MEMORY"] == figures.memory
        assert figures.stack <= numbers["STACK"]
        # flash is the constants that model.h states, the structs that point to them, the names of classes, and code
        assert numbers["CONSTANTS"] <= figures.flash - figures.code <= numbers["CONSTANTS"] + 6000
        if network == "digits":
            assert_only_its_routines_are_linked(folder, target)


def assert_only_its_routines_are_linked(folder, target):
    """The digits have linear layers alone."""
    linked = set(re.findall(r"^ \.text\.(lehr_\w+)\s+0x\w*[1-9a-f]\w*\s+0x", kept_part(folder), re.MULTILINE))
    small = DEVICES[target].instruction_set == "small"
    assert ("lehr_small_counters" if small else "lehr_vector_bits") in linked
    assert not linked & {"lehr_small_ternary", "lehr_small_direct", "lehr_naive_pool", "lehr_vector_ternary"}
    assert not (folder / "scalar.c").exists()


@pytest.mark.parametrize(("network", "kilobytes"), [("har", 64), ("ecg", 64), ("ford-a", 64), ("tiny-image", 96)])
def test_the_network_of_a_small_task_runs_its_test_vector_in_the_memory_of_its_device(network, kilobytes, tmp_path):
    need("cortex-m4")
    figures = devices.measure(load(zoo.file_of(network)), "cortex-m4", tmp_path)  # fails where a score differs
    assert figures.memory + figures.stack <= kilobytes * 1024


def kept_part(folder):
    """The linker's map, without the sections that it discarded."""
    return (folder / "test.map").read_text().partition("Linker script and memory map")[2]


def test_a_target_is_one_of_the_list(tmp_path):
    with pytest.raises(ValueError, match=f"target is one of {', '.join(TARGETS)}, got 'z80'"):
        to_c(make_net(), tmp_path, target="z80")


def test_the_command_takes_the_same_targets():
    assert get_args(get_type_hints(export)["target"]) == tuple(TARGETS)


def test_the_page_of_devices_has_the_counted_numbers():
    page = PAGE.read_text()
    for target in devices.TARGETS:
        rows = [zoo.devices()[network, target] for network in ("digits", "cifar10-quick")]
        cells = [f"{int(row[name]):,}" for row in rows for name in ("instructions", "memory", "flash")]
        shown = "the same without DSP instructions" if target in devices.VARIANTS else target
        assert f"| {shown} | {' | '.join(cells)} |" in page
