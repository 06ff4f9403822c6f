"""An `IntegerNet` as C99 source: constants and calls, beside the hand-written runtime that runs them.

`to_c` writes into a directory

    model.h, model.c    the layers and their tables, all constant: they stay in flash on a microcontroller
    test_vector.h       images with the scores of the reference run
    lehr.h, lehr.c ..   the runtime, copied; main.c classifies standard input, test.c runs the test vector
    stream.h, stream.c  for signals: the windows of a sensor's samples; listen.c, a program that uses them
    Makefile, README.md how to build and use it; for a device also start-up code and linker script (targets.py)

Nothing is allocated: a run needs one block of MODEL_MEMORY bytes, which model.h states. An export for a device has
only the files of the runtime that its network uses; model.c names its functions, so that the linker drops the rest.
"""

from __future__ import annotations

import math
import re
import shutil
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

import numpy as np
import torch

from lehr.deploy.build import RUNTIME, sources
from lehr.deploy.integer_net import IntegerNet, check_batch, random_batch
from lehr.deploy.operations import Round
from lehr.deploy.plan import Plan, plan
from lehr.deploy.structs import FIELDS, INSTRUCTION_SETS, Areas, Layer, Routine, Strips, Tables
from lehr.deploy.targets import DEVICES, TARGETS, Target
from lehr.deploy.write_c_readme import constant_bytes, is_signal, readme
from lehr.printable import printable

_C_TYPES = {
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "float32": "float",
}
# What may stand in C source as it is. `*`, `/`, `\\`, `?` (trigraphs), quotes and line ends of any kind may not.
_PLAIN = frozenset(string.ascii_letters + string.digits + " _-.,:#()")
_PLAIN_IN_STRINGS = _PLAIN | frozenset("/*!$%&'+;<=>@[]^`{|}~")


def to_c(
    net: IntegerNet,
    directory: str | Path,
    *,
    images: np.ndarray | torch.Tensor | None = None,
    target: str = "host",
) -> None:
    """Write `net` as C into `directory`, where `make` builds it and `make check` runs its test vector.

    Args:
        net: the network
        directory: where to write it
        images: those of the test vector; 4 random ones unless given
        target: the processor: host, cortex-m4, cortex-m0, cortex-m55, rv32 or aarch64
    """
    if target not in TARGETS:
        raise ValueError(f"target is one of {', '.join(TARGETS)}, got {target!r}")
    if images is None:
        images = random_batch(net, 4)
    check_batch(images, net.input_shape, net.input_dtype)
    if len(net.outputs) > 1:
        names = ", ".join(output.name for output in net.outputs)
        raise ValueError(f"C gives one output, and this network has {names}: freeze a network for each")
    images = np.asarray(images)
    if not len(images):
        raise ValueError("images: the test vector needs at least one, got none")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    device = DEVICES.get(target)
    planned = plan(net, TARGETS[target].instruction_set)
    if device is not None:  # one instruction set runs there
        memory = zip(INSTRUCTION_SETS, planned.memory, strict=True)
        planned = replace(planned, memory=tuple(size * (name == device.instruction_set) for name, size in memory))
    for source in _host_files() if device is None else _device_files(device, planned):
        shutil.copyfile(source, directory / source.name)
    if is_signal(net):
        for source in (RUNTIME / "signals").iterdir():
            if device is None or source.name != "listen.c":  # a program for standard input
                shutil.copyfile(source, directory / source.name)
    _write(directory / "model.h", _header(net, planned, device))
    _write(directory / "model.c", _model(net, planned, device))
    _write(directory / "test_vector.h", _test_vector(net, images))
    _write(directory / "README.md", readme(net, planned, len(images), device))


def _host_files() -> list[Path]:
    runtime = [path for path in sources() if not path.name.startswith(("amx", "small"))]  # these want their own weights
    example = RUNTIME / "example"
    return [*runtime, *sorted(example.glob("*.c")), example / "Makefile"]


def _device_files(device: Target, planned: Plan) -> list[Path]:
    """The files of the runtime that the plan's layers use, and what they include; the test; the device's own."""
    number = INSTRUCTION_SETS.index(device.instruction_set)
    sets = {INSTRUCTION_SETS[layer.built_for[number]] for layer in planned.layers} - {"reference"}
    needed = [RUNTIME / name for name in ("lehr.c", "reference.c", *(f"{name}.c" for name in sorted(sets)))]
    for path in needed:  # which grows meanwhile
        included = [RUNTIME / name for name in re.findall(r'^#include "([\w.]+)"', path.read_text(), re.MULTILINE)]
        needed += [other for other in included if other not in needed and other.exists()]  # model.h is written
    return [*needed, RUNTIME / "example" / "test.c", RUNTIME / "targets" / "Makefile", *device.files()]


def _write(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def _header(net: IntegerNet, planned: Plan, device: Target | None) -> Iterator[str]:
    channels, rows, columns = net.input.shape
    yield "/* Written by lehr.deploy.to_c. */"
    yield "#ifndef MODEL_H"
    yield "#define MODEL_H"
    yield ""
    yield '#include "lehr.h"'
    yield ""
    yield f"#define MODEL_CHANNELS {channels}"
    yield f"#define MODEL_ROWS {rows}"
    yield f"#define MODEL_COLUMNS {columns}"
    yield f"#define MODEL_OUTPUTS {planned.results[0].outputs}"
    yield f"#define MODEL_INPUTS {net.input.size}"
    yield ""
    yield f"typedef {_C_TYPES[net.input_dtype]} model_input; /* (channel, row, column), MODEL_INPUTS of them */"
    for operation in net.operations:
        if isinstance(operation, Round):
            yield "/* It is rounded to floor((input - mean) * factor + 0.5), per channel"
            for mean, factor in zip(*np.broadcast_arrays(operation.mean, operation.factor), strict=True):
                yield f" *     mean {mean:.9g}, factor {factor:.9g}"
            yield f" * within -{operation.limit} to {operation.limit}. */"
    yield ""
    yield "/* Bytes of memory a run needs. */"
    if device is not None:
        yield f"#define MODEL_MEMORY {planned.memory_on(device.instruction_set)}"
        yield f"#define MODEL_STACK {device.stack} /* bytes of stack at most, besides */"
        yield f"#define MODEL_CONSTANTS {constant_bytes(planned)} /* bytes of flash: weights and thresholds */"
        yield from _fallbacks(planned)
        yield f"#define MODEL_INSTRUCTION_SET LEHR_{device.instruction_set.upper()}"
        yield "extern lehr_operation_function *const model_operations[LEHR_OPERATIONS];"
        yield "extern lehr_routine_function *const model_routines[LEHR_ROUTINES];"
    else:
        # a build that contains an instruction set contains those before it, and a run may take any of them
        sets = ("scalar", "vector", "avx2", "avx512")
        for count in range(len(sets), 0, -1):
            macro, memory = f"LEHR_HAVE_{sets[count - 1].upper()}", max(map(planned.memory_on, sets[:count]))
            yield "#else" if count == 1 else f"#{'if' if count == len(sets) else 'elif'} defined({macro})"
            yield f"#define MODEL_MEMORY {memory}"
        yield "#endif"
    yield ""
    yield "extern const lehr_net model;"
    yield "extern const char *const model_classes[MODEL_OUTPUTS];"
    yield ""
    yield "#endif"


def _fallbacks(planned: Plan) -> Iterator[str]:
    """A comment with the layers that multiply, the reason, and what that costs."""
    direct = [layer for layer in planned.layers if layer.routine in (Routine.DIRECT, Routine.SHORT)]
    if direct:
        yield "/* Layers that multiply and add, a byte or more a weight, as no routine of tables or bits can do them:"
        for layer in direct:
            assert layer.weights is not None
            yield f" *     {_comment(layer.name)}: {layer.why};"
            yield f" *         {layer.weights.nbytes} bytes of flash for its weights, {max(layer.scratch)} of scratch"
        yield " */"


def _model(net: IntegerNet, planned: Plan, device: Target | None) -> Iterator[str]:
    yield "/* Written by lehr.deploy.to_c. */"
    yield '#include "model.h"'
    yield "#include <math.h> /* INFINITY */"
    names = _array_names(planned)
    for index, layer in enumerate(planned.layers):
        for name in FIELDS:
            value = getattr(layer, name)
            if isinstance(value, np.ndarray):
                if names[name, index] == f"{name}_{index}":
                    yield ""
                    yield from _array(f"{name}_{index}", value)
            elif isinstance(value, (Tables, Strips)):
                yield ""
                yield f"static const lehr_{name} {name}_{index} = {{"
                yield from (f"    {line}," for line in _initialisers(vars(value)))
                yield "};"
    yield ""
    yield f"static const lehr_layer layers[{len(planned.layers)}] = {{"
    for index, layer in enumerate(planned.layers):
        yield f"    {{ /* {_comment(layer.name)} */"
        yield from (f"        {line}," for line in _initialisers(_constants(index, layer, names)))
        yield "    },"
    yield "};"
    yield ""
    yield "const lehr_net model = {"
    yield "    .layers = layers,"
    yield f"    .count = {len(planned.layers)},"
    (result,) = planned.results
    yield f"    .image_bytes = {planned.image_bytes},"
    for name in ("outputs", "scores", "logits"):
        yield f"    .{name} = {getattr(result, name)},"
    types = {"scores_type": result.scores_type, "logits_type": result.logits_type}
    yield from (f"    {line}," for line in _initialisers({**types, "memory": planned.memory}))
    yield "};"
    yield ""
    if device is not None:
        yield from _functions(planned, device)
    yield "const char *const model_classes[MODEL_OUTPUTS] = {"
    numbers = tuple(map(str, range(result.outputs)))
    for name in net.classes if len(net.classes) == len(numbers) else numbers:
        yield f"    {_string(name)},"
    yield "};"


def _functions(planned: Plan, device: Target) -> Iterator[str]:
    """The functions that the layers of a device use, as tables for lehr.c."""
    number = INSTRUCTION_SETS.index(device.instruction_set)
    operations: dict[str, str] = {}
    routines: dict[str, str] = {}
    for layer in planned.layers:
        if layer.routine == Routine.NAIVE:
            name = layer.operation.name
            operations[name] = _function("reference", name)
        else:
            name = layer.routine.name
            routines[name] = _function(INSTRUCTION_SETS[layer.built_for[number]], name)
    yield f"extern lehr_routine_function {', '.join(sorted({*routines.values()}))};" if routines else ""
    for kind, functions in (("operation", operations), ("routine", routines)):
        yield f"lehr_{kind}_function *const model_{kind}s[LEHR_{kind.upper()}S] = {{"
        yield from (f"    [LEHR_{name}] = {function}," for name, function in functions.items())
        yield "};"
    yield ""


def _function(instruction_set: str, name: str) -> str:
    """The C function of an operation or a routine, as the table of that instruction set names it."""
    rows = re.findall(r"^    \[LEHR_(\w+)\] = (\w+),", (RUNTIME / f"{instruction_set}.c").read_text(), re.MULTILINE)
    return dict(rows)[name]


def _array_names(planned: Plan) -> dict[tuple[str, int], str]:
    """The name of each array, by its field and its layer; equal arrays are one."""
    firsts: dict[tuple[str, bytes], str] = {}
    names = {}
    for index, layer in enumerate(planned.layers):
        for name in FIELDS:
            array = getattr(layer, name)
            if isinstance(array, np.ndarray):
                names[name, index] = firsts.setdefault((array.dtype.name, array.tobytes()), f"{name}_{index}")
    return names


def _constants(index: int, layer: Layer, names: dict[tuple[str, int], str]) -> dict[str, object]:
    """The fields of `struct lehr_layer`; an array or a struct is the address of a constant."""
    constants: dict[str, object] = {}
    for name in FIELDS:
        value = getattr(layer, name)
        match value:
            case np.ndarray():
                constants[name] = names[name, index]
            case Tables() | Strips():
                constants[name] = f"&{name}_{index}"
            case None:
                pass
            case _:
                constants[name] = value
    return constants


def _initialisers(fields: Mapping[str, object]) -> Iterator[str]:
    """`.name = value` for each field; C makes the others zero."""
    for name, value in fields.items():
        text = _initialiser(value)
        if text != "0":
            yield f".{name} = {text}"


def _initialiser(value: object) -> str:
    """A constant of C. A tuple has a place for each instruction set."""
    match value:
        case IntEnum():
            return f"LEHR_{value.name}"
        case float():
            return _number(np.float32(value)) if value else "0"
        case Areas():
            return f"{{{', '.join(_initialisers(vars(value)))}}}"
        case tuple():
            texts = zip(INSTRUCTION_SETS, map(_initialiser, value), strict=True)
            some = [f"[LEHR_{name.upper()}] = {text}" for name, text in texts if text not in ("0", "{}")]
            return f"{{{', '.join(some)}}}" if some else "0"
        case _:
            return str(value)


def _array(name: str, array: np.ndarray, shape: str | None = None) -> Iterator[str]:
    flat = array.ravel()
    numbers = [_number(x) for x in flat] if array.dtype == np.float32 else list(map(str, flat.tolist()))
    yield f"static const {_C_TYPES[array.dtype.name]} {name}{shape or f'[{flat.size}]'} = {{"
    for at in range(0, len(numbers), 20):
        yield f"    {', '.join(numbers[at : at + 20])},"
    yield "};"


def _number(x: np.float32) -> str:
    """A float constant with the nine digits that name it exactly."""
    if math.isinf(x):
        return "INFINITY" if x > 0 else "-INFINITY"
    text = f"{float(x):.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def _string(text: str) -> str:
    """A C string of plain characters: other bytes as octal, which ends after three digits whatever follows.

    Programs print these names, so what would control a terminal is an escape that can be seen.
    """
    plain = _PLAIN_IN_STRINGS
    return '"' + "".join(chr(b) if chr(b) in plain else f"\\{b:03o}" for b in printable(text).encode()) + '"'


def _comment(text: str) -> str:
    """A name for a comment. No character of it can end the comment, start another, or join two lines."""
    return "".join(c if c in _PLAIN else "_" for c in text)


def _test_vector(net: IntegerNet, images: np.ndarray) -> Iterator[str]:
    count, outputs = len(images), net.output.size
    pixels = math.prod(net.input_shape)
    integer = net.values[net.score_name].kind == "integer"
    yield "/* Written by lehr.deploy.to_c: images and the scores of the reference run. */"
    yield "#include <stdint.h>"
    yield f"#define TEST_IMAGES {count}"
    for name, array, width in (
        ("test_images", images.reshape(count, -1), pixels),
        ("test_scores", (net.scores(images) if integer else np.zeros(1)).astype(np.int32), outputs),
        ("test_logits", (net.run(images) if not integer else np.zeros(1)).astype(np.float32), outputs),
    ):
        array = array.reshape(len(array), -1)
        yield ""
        yield f"static const {_C_TYPES[array.dtype.name]} {name}[{len(array)}][{width}] = {{"
        for row in array:
            numbers = [_number(x) for x in row] if array.dtype == np.float32 else list(map(str, row.tolist()))
            yield "    {"
            for at in range(0, len(numbers), 20):
                yield f"        {', '.join(numbers[at : at + 20])},"
            yield "    },"
        yield "};"
