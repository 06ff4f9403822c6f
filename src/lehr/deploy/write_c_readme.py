"""README.md of an exported folder: sizes, how to build it, and how a program calls it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.plan import Plan
from lehr.deploy.structs import FIELDS
from lehr.deploy.targets import Target
from lehr.printable import printable


def readme(net: IntegerNet, planned: Plan, images: int, device: Target | None) -> Iterator[str]:
    """The page, in paragraphs; `images` are those of the test vector."""
    channels, rows, columns = net.input.shape
    yield f"""# A network as C

Input: {channels} x {rows} x {columns} {net.input_dtype} (channel, row, column). {_outputs(net)}

| | bytes |
|---|---|
| constants (flash) | {constant_bytes(planned):,} |"""
    yield from _host(planned, images) if device is None else _device(planned, images, device)
    if is_signal(net):
        memory = planned.memory_on("scalar" if device is None else device.instruction_set)
        yield from _sensor(net, memory, program=device is None)


def _outputs(net: IntegerNet) -> str:
    if len(net.outputs) == 1:
        return f"Outputs: {net.output.size}."
    told = ", ".join(f"{printable(output.name)} ({' x '.join(map(str, output.shape))})" for output in net.outputs)
    return f"Outputs: {told}, computed by one run; model.h names the struct of each."


def is_signal(net: IntegerNet) -> bool:
    """Whether the network takes a window of samples: float32, (channel, time)."""
    return net.input_dtype == "float32" and len(net.input_shape) == 2


def constant_bytes(planned: Plan) -> int:
    """Bytes of weights, thresholds and whatever else the layers point to, equal arrays counted once."""
    values = (getattr(layer, name) for layer in planned.layers for name in FIELDS)
    arrays = {(array.dtype.name, array.tobytes()): array.nbytes for array in values if isinstance(array, np.ndarray)}
    return sum(arrays.values())


_IN_A_PROGRAM = """## In a program

    #include "model.h"

    static uint64_t memory[(MODEL_MEMORY + 7) / 8];

    lehr_run(&model, image, memory, lehr_best_instruction_set());
    printf("%s\\n", model_classes[lehr_class(&model, memory)]);
"""


def _host(planned: Plan, images: int) -> Iterator[str]:
    yield f"""| memory of a run, portable C (RAM) | {planned.memory_on("scalar"):,} |
| memory of a run, vectors of 16 bytes | {planned.memory_on("vector"):,} |
| memory of a run, AVX2 | {planned.memory_on("avx2"):,} |
| memory of a run, AVX-512 | {planned.memory_on("avx512"):,} |

Besides, a run takes less than 4 KB of stack. It allocates nothing.

## On a computer

    make                      # builds it, and {images} images give the reference scores on every instruction set
    ./classify < image.raw    # the class and the scores of each image

{_IN_A_PROGRAM}
Compile model.c, lehr.c, reference.c, scalar.c and vector.c with `-std=c99 -O3 -ffp-contract=off`. On x86-64
add avx2.c (`-mavx2 -mpopcnt`) and avx512.c (`-mavx512f -mavx512bw -mavx512vl -mpopcnt`) and give `-DLEHR_HAVE_AVX2
-DLEHR_HAVE_AVX512` to all files; the best one is chosen at run time. Threads each need memory of their own; the
model is constant and shared.

For a microcontroller export again, with `lehr export --to c --target cortex-m4` or another target."""


def _device(planned: Plan, images: int, device: Target) -> Iterator[str]:
    yield f"""| memory of a run (RAM) | {planned.memory_on(device.instruction_set):,} |
| stack of a run, at most (RAM) | {device.stack:,} |

It allocates nothing. model.h has these numbers, and names layers that could not take the fast way.

## Test it

    make    # builds test.elf for {device.name} and runs it in an emulator: {images} images against the reference scores

target.mk names the compiler, the emulator and their Debian packages.

{_IN_A_PROGRAM}
Compile all .c files but test.c, and startup.c if there is one, with the flags of the Makefile: `-DLEHR_DEVICE`,
`-ffp-contract=off`, and `-ffunction-sections -Wl,--gc-sections`, which leave out what the network does not use. The
tables are `const` and stay in flash, `memory` is the only RAM, nothing is prepared at start. The runtime needs memcpy
and memset of the C library, and floating point only for the last scale and shift (`lehr_score` does without)."""


def _sensor(net: IntegerNet, memory: int, *, program: bool) -> Iterator[str]:
    channels, _, columns = net.input.shape
    ring, window = 2 * net.input.size, 4 * net.input.size
    yield f"""
## From a sensor

stream.c keeps the newest {columns} samples of {channels} channels, int16_t, in a ring of {ring:,} bytes, and makes
windows of them, {window:,} bytes, every so many samples: in the sensor's units or z-normalised, the same numbers
as `lehr.data.windows` and `lehr.data.z_normalized`. RAM in all: {memory + ring + window:,} bytes and the stack."""
    if program:
        yield """listen.c is the loop:

    make listen
    ./listen 50 0.001 < samples.raw   # int16_t, sample after sample; a decision every 50, in thousandths of a unit
    ./listen 50 z < samples.raw       # each window with mean 0 and deviation 1"""
