"""What Python and C say of the runtime's structs is the same, and C notices sizes that are too small."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from enum import IntEnum
from pathlib import Path

import pytest

from compilers import with_last
from lehr.deploy import build, cpu, kernels
from lehr.deploy.ctypes_structs import STRUCTS
from lehr.deploy.operations import Requantize
from lehr.deploy.structs import InstructionSet, Kind, Routine, Type

HEADER = (build.RUNTIME / "lehr.h").read_text()


def enum_of(name: str) -> list[str]:
    """The members of a C enum that count from 0, without what only counts them."""
    body = re.search(rf"enum {name} {{(.*?)}};", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL), re.DOTALL)
    assert body
    members = [member.strip().removeprefix("LEHR_") for member in body[1].split(",")]
    return [member for member in members if member not in ("OPERATIONS", "ROUTINES", "INSTRUCTION_SETS", "")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lehr_operation", Kind),
        ("lehr_type", Type),
        ("lehr_routine", Routine),
        ("lehr_instruction_set", InstructionSet),
    ],
)
def test_enums_are_those_of_the_header(name: str, kind: type[IntEnum]):
    assert enum_of(name) == [member.name for member in kind]
    assert [member.value for member in kind] == list(range(len(kind)))


def test_structs_and_constants_are_those_of_the_header(tmp_path):
    expected, prints = {}, []
    for name, struct in STRUCTS.items():
        expected[name] = ctypes.sizeof(struct)
        prints.append(f'printf("{name} %lu\\n", (unsigned long)sizeof({name}));')
        for field, *_ in struct._fields_:
            expected[f"{name}.{field}"] = getattr(struct, field).offset
            prints.append(f'printf("{name}.{field} %lu\\n", (unsigned long)offsetof({name}, {field}));')
    for name, value in {
        "LEHR_OFFSET_BITS": Requantize.OFFSET_BITS,
        "LEHR_BITS_OUTPUTS": kernels.BITS_OUTPUTS,
        "LEHR_BLOCK": kernels.BLOCK,
        "LEHR_SHORT_PIXELS": kernels.SHORT_PIXELS,
        "LEHR_TILE_STEPS": kernels.TILE_STEPS,
        "LEHR_TILE_SLACK": kernels.TILE_SLACK,
        "LEHR_TILE_MOST": kernels.TILE_MOST,
    }.items():
        expected[name] = value
        prints.append(f'printf("{name} %d\\n", {name});')
    program = tmp_path / "layout.c"
    program.write_text(
        '#include "lehr.h"\n#include <stdio.h>\nint main(void)\n{\n' + "\n".join(prints) + "\nreturn 0;\n}\n"
    )
    command = [*build.find_compiler(), "-I", str(build.RUNTIME), "-o", str(tmp_path / "layout"), str(program)]
    subprocess.run(command, check=True)
    told = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    assert {name: int(number) for name, number in map(str.split, told.splitlines())} == expected


@pytest.mark.parametrize("name", [name for name in kernels.ROUTINES if name != "reference"])
def test_instruction_sets_have_the_routines_that_python_expects(name: str):
    source = (build.RUNTIME / f"{name}.c").read_text()
    assert set(re.findall(r"^    \[LEHR_(\w+)\] = ", source, re.MULTILINE)) == {
        routine.name for routine in kernels.ROUTINES[name]
    }


CASES = [
    ("TERNARY", "nothing"),
    ("TERNARY", "tables"),
    ("TERNARY", "sums"),
    ("TERNARY", "scratch"),
    ("WIDE", "nothing"),
    ("WIDE", "kept"),
    ("WIDE", "scratch"),
    ("BITS", "nothing"),
    ("BITS", "scratch"),
    ("DIRECT", "nothing"),
    ("DIRECT", "scratch"),
    ("SHORT", "nothing"),
    ("SHORT", "tables"),
    ("SHORT", "kept"),
    ("SHORT", "scratch"),
]
# A failed assertion ends the process, so each case runs in a fork of one that has imported everything.
RUN_WITH_LESS = """
import json, os, sys
from dataclasses import replace
import numpy as np
from lehr.deploy import cpu, plan, scratch
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Conv, Flatten, Linear, Table, Weights

def run(routine, less, instruction_set):
    def smaller(*arguments):
        layer = scratch.with_scratch(*arguments)
        if layer.routine.name != routine or less == "nothing":
            return layer
        if less == "scratch":
            return replace(layer, scratch=tuple(size - 64 for size in layer.scratch))
        areas = tuple(replace(areas, **{less: getattr(areas, less) - 64}) for areas in layer.planes.areas)
        return replace(layer, planes=replace(layer.planes, areas=areas))

    plan.with_scratch = smaller
    rng = np.random.default_rng(0)
    values = np.arange(256) - 128 if routine in ("WIDE", "DIRECT") else np.arange(256) % 3 - 1
    table = Table("x", np.tile(values, (16, 1)))
    levels = {"DIRECT": (-127, 0, 127), "SHORT": (-1, 0, 2)}.get(routine, (-1, 0, 1))
    conv = Conv("sums", "x", Weights(rng.integers(0, 3, (8, 16, 3, 3)), levels), padding=(1, 1))
    linear = Linear("sums", "flat", Weights(rng.integers(0, 3, (8, 16 * 81)), levels))
    net = IntegerNet((16, 9, 9), (table, *((Flatten("flat", "x"), linear) if routine == "BITS" else (conv,))))
    images = rng.integers(0, 256, (1, 16, 9, 9), dtype=np.uint8)
    engine = cpu.compile(net, instruction_set=instruction_set)
    assert routine in {layer.routine.name for layer in plan.plan(net, instruction_set).layers}
    return np.array_equal(engine.scores(images), net.scores(images))

cpu.available()
ends = []
for case in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os._exit(0 if run(*case) else 1)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_a_debug_build_stops_where_scratch_is_too_small(tmp_path):
    sets = [name for name in cpu.available() if name in ("scalar", "vector", "avx2", "avx512")]
    cases = [(routine, less, name) for routine, less in CASES for name in sets]
    environment = {
        **os.environ,
        "CC": with_last(build.find_compiler(), "-O1", "-DLEHR_DEBUG", folder=tmp_path),
        "LEHR_CACHE": str(tmp_path),
        "PYTHONPATH": str(Path(build.__file__).parents[2]),
    }
    command = [sys.executable, "-c", RUN_WITH_LESS, json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    stopped = [case for case, end in zip(cases, json.loads(done.stdout), strict=True) if end == -signal.SIGABRT]
    assert stopped == [case for case in cases if case[1] != "nothing"], done.stderr
