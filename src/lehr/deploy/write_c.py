"""An `IntegerNet` as C99 source: constants and calls, beside the hand-written runtime that runs them.

`to_c` writes into a directory

    model.h, model.c    the layers and their tables, all constant: they stay in flash on a microcontroller
    test_vector.h       images with the scores of the reference run
    lehr.h, lehr.c ..   the runtime, copied; main.c classifies standard input, test.c runs the test vector
    stream.h, stream.c  for signals: the windows of a sensor's samples; listen.c, a program that uses them
    Makefile, README.md how to build and use it; cortex-m4/ shows a bare-metal program

Nothing is allocated: a run needs one block of MODEL_MEMORY bytes; model.h states it for each instruction set.
"""

from __future__ import annotations

import math
import shutil
import string
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path

import numpy as np
import torch

from lehr.deploy.build import RUNTIME, sources
from lehr.deploy.integer_net import IntegerNet, check_batch, random_batch
from lehr.deploy.operations import Round
from lehr.deploy.plan import Plan, plan
from lehr.deploy.structs import FIELDS, INSTRUCTION_SETS, Areas, Layer, Tables
from lehr.printable import printable

_C_TYPES = {
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "uint8": "uint8_t",
    "uint32": "uint32_t",
    "float32": "float",
}
# What may stand in C source as it is. `*`, `/`, `\\`, `?` (trigraphs), quotes and line ends of any kind may not.
_PLAIN = frozenset(string.ascii_letters + string.digits + " _-.,:#()")
_PLAIN_IN_STRINGS = _PLAIN | frozenset("/*!$%&'+;<=>@[]^`{|}~")


def to_c(net: IntegerNet, directory: str | Path, *, images: np.ndarray | torch.Tensor | None = None) -> None:
    """Write `net` as C into `directory`; the test vector takes `images`, or else 4 random ones."""
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
    planned = plan(net)
    runtime = [path for path in sources() if path.name != "amx.c"]  # that wants its own weights
    for source in (*runtime, *(RUNTIME / "example").glob("*.c"), RUNTIME / "example" / "Makefile"):
        shutil.copyfile(source, directory / source.name)
    shutil.copytree(RUNTIME / "example" / "cortex-m4", directory / "cortex-m4", dirs_exist_ok=True)
    if _is_signal(net):
        for source in (RUNTIME / "signals").iterdir():
            shutil.copyfile(source, directory / source.name)
    _write(directory / "model.h", _header(net, planned))
    _write(directory / "model.c", _model(net, planned))
    _write(directory / "test_vector.h", _test_vector(net, images))
    _write(directory / "README.md", _readme(net, planned, len(images)))


def _is_signal(net: IntegerNet) -> bool:
    """Whether the network takes a window of samples: float32, (channel, time)."""
    return net.input_dtype == "float32" and len(net.input_shape) == 2


def _write(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def _header(net: IntegerNet, planned: Plan) -> Iterator[str]:
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
    yield "#if defined(LEHR_HAVE_AVX512)"
    yield f"#define MODEL_MEMORY {planned.memory_on('avx512')}"
    yield "#elif defined(LEHR_HAVE_AVX2)"
    yield f"#define MODEL_MEMORY {planned.memory_on('avx2')}"
    yield "#elif defined(LEHR_HAVE_VECTOR)"
    yield f"#define MODEL_MEMORY {planned.memory_on('vector')}"
    yield "#else"
    yield f"#define MODEL_MEMORY {planned.memory_on('scalar')}"
    yield "#endif"
    yield ""
    yield "extern const lehr_net model;"
    yield "extern const char *const model_classes[MODEL_OUTPUTS];"
    yield ""
    yield "#endif"


def _model(net: IntegerNet, planned: Plan) -> Iterator[str]:
    yield "/* Written by lehr.deploy.to_c. */"
    yield '#include "model.h"'
    yield "#include <math.h> /* INFINITY */"
    for index, layer in enumerate(planned.layers):
        for name in FIELDS:
            value = getattr(layer, name)
            if isinstance(value, np.ndarray):
                yield ""
                yield from _array(f"{name}_{index}", value)
            elif isinstance(value, Tables):
                yield ""
                yield f"static const lehr_tables {name}_{index} = {{"
                yield from (f"    {line}," for line in _initialisers(vars(value)))
                yield "};"
    yield ""
    yield f"static const lehr_layer layers[{len(planned.layers)}] = {{"
    for index, layer in enumerate(planned.layers):
        yield f"    {{ /* {_comment(layer.name)} */"
        yield from (f"        {line}," for line in _initialisers(_constants(index, layer)))
        yield "    },"
    yield "};"
    yield ""
    yield "const lehr_net model = {"
    yield "    .layers = layers,"
    yield f"    .count = {len(planned.layers)},"
    (result,) = planned.results
    yield f"    .image_bytes = {planned.image_bytes},"
    yield f"    .value_bytes = {planned.value_bytes},"
    for name in ("outputs", "scores", "logits"):
        yield f"    .{name} = {getattr(result, name)},"
    types = {"scores_type": result.scores_type, "logits_type": result.logits_type}
    yield from (f"    {line}," for line in _initialisers({**types, "memory": planned.memory}))
    yield "};"
    yield ""
    yield "const char *const model_classes[MODEL_OUTPUTS] = {"
    numbers = tuple(map(str, range(result.outputs)))
    for name in net.classes if len(net.classes) == len(numbers) else numbers:
        yield f"    {_string(name)},"
    yield "};"


def _constants(index: int, layer: Layer) -> dict[str, object]:
    """The fields of `struct lehr_layer`; an array or a struct is the address of a constant."""
    constants: dict[str, object] = {}
    for name in FIELDS:
        value = getattr(layer, name)
        match value:
            case np.ndarray():
                constants[name] = f"{name}_{index}"
            case Tables():
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


def _readme(net: IntegerNet, planned: Plan, images: int) -> Iterator[str]:
    channels, rows, columns = net.input.shape
    constants = sum(
        getattr(layer, name).nbytes
        for layer in planned.layers
        for name in FIELDS
        if isinstance(getattr(layer, name), np.ndarray)
    )
    yield f"""# A network as C

Input: {channels} x {rows} x {columns} {net.input_dtype} (channel, row, column). Outputs: {planned.results[0].outputs}.

| | bytes |
|---|---|
| constants (flash) | {constants:,} |
| memory of a run, portable C (RAM) | {planned.memory_on("scalar"):,} |
| memory of a run, vectors of 16 bytes | {planned.memory_on("vector"):,} |
| memory of a run, AVX2 | {planned.memory_on("avx2"):,} |
| memory of a run, AVX-512 | {planned.memory_on("avx512"):,} |

Besides, a run takes less than 4 KB of stack. It allocates nothing.

## On a computer

    make                      # classify, test
    make check                # {images} images against the reference scores, on every instruction set
    ./classify < image.raw    # the class and the scores of each image

## In a program

    #include "model.h"

    static uint64_t memory[(MODEL_MEMORY + 7) / 8];

    lehr_run(&model, image, memory, lehr_best_instruction_set());
    printf("%s\\n", model_classes[lehr_class(&model, memory)]);

Compile model.c, lehr.c, reference.c, scalar.c and vector.c with `-std=c99 -O3 -ffp-contract=off`. On x86-64 add avx2.c
(`-mavx2 -mpopcnt`) and avx512.c (`-mavx512f -mavx512bw -mavx512vl -mpopcnt`) and give `-DLEHR_HAVE_AVX2
-DLEHR_HAVE_AVX512` to all files; the best one is chosen at run time. Threads each need memory of their own; the
model is constant and shared.

## On a microcontroller

These four files are all: the tables are `const`, so they stay in flash, and `memory` is the only RAM.
Nothing is prepared at start. The runtime uses memcpy, memset and memmove of the C library, and no floating
point in a network of integers but the last scale and shift (`lehr_score` does without).
`make cortex-m4` builds test.c bare metal (gcc-arm-none-eabi, newlib) and runs it in qemu-system-arm as a
Cortex-M4; cortex-m4/ holds the start-up code and linker script to start from."""
    if _is_signal(net):
        ring, window = 2 * net.input.size, 4 * net.input.size
        yield f"""
## From a sensor

stream.c keeps the newest {columns} samples of {channels} channels, int16_t, in a ring of {ring:,} bytes, and makes
windows of them, {window:,} bytes, every so many samples: in the sensor's units or z-normalised, the same numbers
as `lehr.data.windows` and `lehr.data.z_normalized`. RAM in all: {planned.memory_on("scalar") + ring + window:,}
bytes and the stack. listen.c is the loop:

    make listen
    ./listen 50 0.001 < samples.raw   # int16_t, sample after sample; a decision every 50, in thousandths of a unit
    ./listen 50 z < samples.raw       # each window with mean 0 and deviation 1"""
