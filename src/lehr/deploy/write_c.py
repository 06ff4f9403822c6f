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

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lehr.deploy.build import RUNTIME, sources
from lehr.deploy.c_text import C_TYPES, array, comment, initialisers, number, string
from lehr.deploy.inputs import check_batch
from lehr.deploy.integer_net import IntegerNet, random_batch
from lehr.deploy.operations import Round
from lehr.deploy.plan import Plan, plan
from lehr.deploy.structs import FIELDS, INSTRUCTION_SETS, Layer, Planes, Routine, Strips
from lehr.deploy.targets import DEVICES, TARGETS, Target
from lehr.deploy.write_c_readme import constant_bytes, is_signal, readme


def to_c(
    net: IntegerNet,
    directory: str | Path,
    *,
    images: np.ndarray | torch.Tensor | None = None,
    target: str = "host",
) -> None:
    """Write `net` as C into `directory`, where `make` builds it and runs its test vector.

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
    yield f"typedef {C_TYPES[net.input_dtype]} model_input; /* (channel, row, column), MODEL_INPUTS of them */"
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
    yield from _named_outputs(net, planned)
    yield ""
    yield "#endif"


def _named_outputs(net: IntegerNet, planned: Plan) -> Iterator[str]:
    """One run computes all outputs; a struct for each says where it lies."""
    names = _output_names(net)
    yield "/* One lehr_run(&model, ..) computes all outputs. lehr_score and lehr_logit read one by its struct:"
    for name, output in zip(names, net.outputs, strict=True):
        yield f" *     &{name}: {comment(output.name)}, {' x '.join(map(str, output.shape)) or '1'}"
    yield " * The first is `model` itself, which MODEL_OUTPUTS and model_classes are of. */"
    yield f"#define MODEL_RESULTS {len(names)}"
    yield f"#define {names[0]} model"
    for name, result in list(zip(names, planned.results, strict=True))[1:]:
        yield f"#define {name.upper()}_SIZE {result.outputs}"
        yield f"extern const lehr_net {name};"
    yield "extern const lehr_net *const model_results[MODEL_RESULTS];"
    yield "extern const char *const model_result_names[MODEL_RESULTS];"


def _output_names(net: IntegerNet) -> list[str]:
    """For each output a name of C that no other has."""
    names: list[str] = []
    for output in net.outputs:
        name = "model_output_" + re.sub(r"[^A-Za-z0-9]", "_", output.name)
        names.append(name if name.upper() not in map(str.upper, names) else f"{name}_{len(names)}")
    return names


def _fallbacks(planned: Plan) -> Iterator[str]:
    """A comment with the layers that multiply, the reason, and what that costs."""
    direct = [layer for layer in planned.layers if layer.routine in (Routine.DIRECT, Routine.SHORT)]
    if direct:
        yield "/* Layers that multiply and add, a byte or more a weight, as no routine of tables or bits can do them:"
        for layer in direct:
            assert layer.weights is not None
            yield f" *     {comment(layer.name)}: {layer.why};"
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
                    yield from array(f"{name}_{index}", value)
            elif isinstance(value, (Planes, Strips)):
                yield ""
                yield f"static const lehr_{name} {name}_{index} = {{"
                yield from (f"    {line}," for line in initialisers(vars(value)))
                yield "};"
    yield ""
    yield f"static const lehr_layer layers[{len(planned.layers)}] = {{"
    for index, layer in enumerate(planned.layers):
        yield f"    {{ /* {comment(layer.name)} */"
        yield from (f"        {line}," for line in initialisers(_constants(index, layer, names)))
        yield "    },"
    yield "};"
    yield ""
    structs = ["model", *_output_names(net)[1:]]
    for name, result in zip(structs, planned.results, strict=True):
        yield f"const lehr_net {name} = {{"
        yield "    .layers = layers,"
        yield f"    .count = {len(planned.layers)},"
        yield f"    .image_bytes = {planned.image_bytes},"
        yield from (f"    {line}," for line in initialisers({**vars(result), "memory": planned.memory}))
        yield "};"
        yield ""
    yield f"const lehr_net *const model_results[MODEL_RESULTS] = {{{', '.join(f'&{name}' for name in structs)}}};"
    texts = ", ".join(string(output.name) for output in net.outputs)
    yield f"const char *const model_result_names[MODEL_RESULTS] = {{{texts}}};"
    yield ""
    if device is not None:
        yield from _functions(planned, device)
    yield "const char *const model_classes[MODEL_OUTPUTS] = {"
    numbers = tuple(map(str, range(planned.results[0].outputs)))
    for name in net.classes if len(net.classes) == len(numbers) else numbers:
        yield f"    {string(name)},"
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
            case Planes() | Strips():
                constants[name] = f"&{name}_{index}"
            case None:
                pass
            case _:
                constants[name] = value
    return constants


def _test_vector(net: IntegerNet, images: np.ndarray) -> Iterator[str]:
    """Images, and beside one another for each what all outputs must be: scores, or logits of outputs without them."""
    scores, logits = (_by_output(net, found) for found in (net.scores(images), net.run(images)))
    integer = [net.values[net.score_of(output)].kind == "integer" for output in net.outputs]
    kinds = (
        ("test_scores", [part if is_int else 0 * part for part, is_int in zip(scores, integer, strict=True)], np.int32),
        (
            "test_logits",
            [0 * part if is_int else part for part, is_int in zip(logits, integer, strict=True)],
            np.float32,
        ),
    )
    yield "/* Written by lehr.deploy.to_c: images and the scores of the reference run. */"
    yield "#include <stdint.h>"
    yield f"#define TEST_IMAGES {len(images)}"
    rows = {"test_images": images.reshape(len(images), -1)}
    for name, parts, dtype in kinds:
        all_parts = np.concatenate(parts, axis=1).astype(dtype)
        needed = any(integer) if dtype is np.int32 else not all(integer)
        rows[name] = all_parts if needed else all_parts[:1]
    for name, values in rows.items():
        yield ""
        yield f"static const {C_TYPES[values.dtype.name]} {name}[{len(values)}][{values.shape[1]}] = {{"
        for row in values:
            numbers = [number(x) for x in row] if values.dtype == np.float32 else list(map(str, row.tolist()))
            yield "    {"
            for at in range(0, len(numbers), 20):
                yield f"        {', '.join(numbers[at : at + 20])},"
            yield "    },"
        yield "};"


def _by_output(net: IntegerNet, found: Any) -> list[np.ndarray]:
    """What `run` or `scores` gives, (image, number), for each output."""
    parts = [found[output.name] for output in net.outputs] if len(net.outputs) > 1 else [found]
    return [np.asarray(part).reshape(len(part), -1) for part in parts]
