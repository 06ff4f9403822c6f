"""The CPU engine: `compile` builds the C runtime once, with the system's compiler, and runs networks in it.

The runtime is one library that takes a network as data, so it is compiled once for a machine and kept in a
cache (`LEHR_CACHE`, else ~/.cache/lehr); after that a new network only has to be laid out. Calls release the
GIL, and several threads share the images of a batch.

>>> import numpy as np
>>> from lehr.deploy.integer_net import IntegerNet
>>> from lehr.deploy.operations import Flatten, Linear, Table, Weights
>>> net = IntegerNet((1, 1, 2), (
...     Table("pixels", np.arange(256)[None] // 128),
...     Flatten("flat", "pixels"),
...     Linear("sums", "flat", Weights.of([[1, -1], [0, 1]])),
... ))
>>> engine = compile(net, instruction_set="scalar")
>>> engine(np.array([[[[200, 7]]]], dtype=np.uint8))
array([[1, 0]])
>>> print(engine.describe())
layer   routine     instruction set  why
pixels  table       reference
sums    bit-planes  scalar
"""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lehr.deploy import limits
from lehr.deploy.build import CompilerError, build, built_before, cache_folder, find_compiler, prebuilt
from lehr.deploy.ctypes_structs import Net, net_struct
from lehr.deploy.inputs import Images, check_batch
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.plan import plan
from lehr.deploy.structs import INSTRUCTION_SETS, Routine
from lehr.table import Table, Tabular

# Python hears an interrupt only between calls: no call takes longer than some tenths of a second, or than one image.
STEPS_AT_ONCE = 2**29
_NAIVE = 64  # times as long as with tables
_ROUTINE_NAMES = {
    Routine.DIRECT: "direct",
    Routine.TERNARY: "tables",
    Routine.WIDE: "wide tables",
    Routine.SHORT: "products",
    Routine.MATRIX: "matrix tiles",
    Routine.TRITS: "matrix tiles",
    Routine.BITS: "bit-planes",
    Routine.COUNTERS: "counters",
}


@dataclass(frozen=True)
class RoutineRow:
    """What runs a layer: the routine, the instruction set it was built for, and why it is not a faster one."""

    layer: str
    routine: str
    instruction_set: str
    why: str = ""


@dataclass(frozen=True)
class Description(Tabular):
    """A row for each layer; prints as a table."""

    rows: tuple[RoutineRow, ...]

    def table(self) -> Table:
        """Return the rows as a table."""
        rows = [(row.layer, row.routine, row.instruction_set, row.why) for row in self.rows]
        return Table(("layer", "routine", "instruction set", "why"), rows)


class Memory:
    """What a thread works in, and where it is, since asking numpy for that takes longer than a small layer."""

    def __init__(self, size: int) -> None:
        self.bytes = np.empty(size, np.uint8)
        self.address = self.bytes.ctypes.data


def _address(array: np.ndarray) -> int:
    """Where the bytes of an array are; its own `ctypes.data` takes thrice as long, which small networks notice."""
    if array.flags.writeable and array.size:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data


class Engine:
    """A network in the compiled runtime; called on a batch of what it takes, it gives the outputs.

    `run`, `scores` and `predict` are those of `IntegerNet`, with the same results. Several threads may call.
    """

    def __init__(self, net: IntegerNet, threads: int, instruction_set: str, library: ctypes.CDLL) -> None:
        self.net = net
        self.threads = threads
        self.instruction_set = instruction_set
        self._number = INSTRUCTION_SETS.index(instruction_set)
        self._library = library
        self._plan = plan(net, instruction_set)
        # One for each output: they differ in where the result lies.
        self._structs = [net_struct(self._plan, result) for result in self._plan.results]
        self._memory_bytes = self._plan.memory_on(instruction_set)
        self._memories: list[Memory] = []
        self._lock = threading.Lock()
        steps = STEPS_AT_ONCE // (_NAIVE if instruction_set == "reference" else 1)
        self._at_once = max(1, steps // limits.steps(net))
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __repr__(self) -> str:
        taken = "x".join(map(str, self.net.input_shape))
        what = "images" if self.net.input_dtype == "uint8" else self.net.input_dtype
        return f"Engine({taken} {what}, {self.instruction_set}, {self.threads} thread{'s' * (self.threads != 1)})"

    def _repr_html_(self) -> str:
        return self.describe().table().html()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is built for that one."""
        return _compiled, (self.net, self.threads, self.instruction_set)

    def run(self, images: Images) -> Any:
        """The outputs, as `IntegerNet.run` gives them."""
        return self._run(images, scores=False)

    __call__ = run

    def scores(self, images: Images) -> Any:
        """The integer scores, as `IntegerNet.scores` gives them."""
        return self._run(images, scores=True)

    def predict(self, images: Images) -> Any:
        """The class of each image, as `IntegerNet.predict` gives it."""
        return self.net.classes_of(self.run(images))

    def describe(self) -> Description:
        """Which routine each layer uses; one without weights is named for its operation."""
        return Description(
            tuple(
                RoutineRow(
                    layer.name,
                    _ROUTINE_NAMES.get(layer.routine, layer.operation.name.lower().replace("_", " ")),
                    INSTRUCTION_SETS[layer.built_for[self._number]],
                    layer.why,
                )
                for layer in self._plan.layers
            )
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes of working memory each thread takes, besides the weights."""
        return self._memory_bytes

    def _run(self, images: Images, *, scores: bool) -> Any:
        check_batch(images, self.net.input_shape, self.net.input_dtype)
        batch = np.ascontiguousarray(images.detach().cpu().numpy() if isinstance(images, torch.Tensor) else images)
        found: dict[str, Any] = {}
        for output, struct in zip(self.net.outputs, self._structs, strict=True):
            name = self.net.score_of(output) if scores else output.value
            flat = self._output(batch, struct, integer=self.net.values[name].kind == "integer")
            shaped = flat.reshape(len(batch), *output.shape)
            found[output.name] = torch.from_numpy(shaped) if isinstance(images, torch.Tensor) else shaped
        return found if len(found) > 1 else found[self.net.outputs[0].name]

    def _output(self, images: np.ndarray, struct: Net, *, integer: bool) -> np.ndarray:
        out = np.empty((len(images), struct.outputs), np.int32 if integer else np.float32)
        together = self._at_once
        if self._pool is None or len(images) < 2:
            for at in range(0, len(images), together):
                self._run_part(images[at : at + together], out[at : at + together], struct, integer)
        else:
            together = min(together, -(-len(images) // self.threads))
            parts = []
            try:
                for at in range(0, len(images), together):
                    part = images[at : at + together], out[at : at + together]
                    parts.append(self._pool.submit(self._run_part, *part, struct, integer))
                for part in parts:
                    part.result()
            finally:  # after an interrupt no part begins any more
                for part in parts:
                    part.cancel()
        return out.astype(np.int64) if integer else out

    def _run_part(self, images: np.ndarray, out: np.ndarray, struct: Net, integer: bool) -> None:
        with self._lock:
            memory = self._memories.pop() if self._memories else Memory(self._memory_bytes)
        target = _address(out)
        scores, logits = (target, None) if integer else (None, target)
        net = ctypes.addressof(struct)
        self._library.lehr_run_batch(net, _address(images), len(images), memory.address, self._number, scores, logits)
        with self._lock:
            self._memories.append(memory)


def compile(net: IntegerNet, *, threads: int = 1, instruction_set: str = "auto") -> Engine:
    """Lay `net` out for this processor and return an `Engine` that runs it.

    Args:
        net: the network
        threads: how many threads share the images of a batch
        instruction_set: "auto", the best this processor has, or an earlier one of reference (plain loops, slow), small
            (what microcontrollers run), scalar (portable C), vector (16 bytes: SSE2, NEON), avx2, avx512, amx
    """
    if threads < 1:
        raise ValueError(f"threads is at least 1, got {threads}")
    if instruction_set != "auto" and instruction_set not in INSTRUCTION_SETS:
        raise ValueError(f"instruction_set is one of auto, {', '.join(INSTRUCTION_SETS)}, got {instruction_set!r}")
    library = _load()
    best = library.lehr_best_instruction_set()
    if instruction_set != "auto" and INSTRUCTION_SETS.index(instruction_set) > best:
        raise ValueError(
            f"this processor or compiler has no {instruction_set}: the best it has is {INSTRUCTION_SETS[best]}"
        )
    return Engine(net, threads, INSTRUCTION_SETS[best] if instruction_set == "auto" else instruction_set, library)


def available() -> tuple[str, ...]:
    """The instruction sets that `compile` takes here, slowest first; the first is the reference."""
    return INSTRUCTION_SETS[: _load().lehr_best_instruction_set() + 1]


def _compiled(net: IntegerNet, threads: int, instruction_set: str) -> Engine:
    return compile(net, threads=threads, instruction_set=instruction_set)


def _load() -> ctypes.CDLL:
    if not os.environ.get("CC") and prebuilt() is not None:
        return _library(None, None)
    folder = cache_folder()
    try:
        compiler = tuple(find_compiler())
    except CompilerError:
        if os.environ.get("CC") or built_before(folder) is None:
            raise
        compiler = None
    return _library(compiler, folder)


@cache
def _library(compiler: tuple[str, ...] | None, folder: Path | None) -> ctypes.CDLL:
    """The runtime, loaded once for each compiler and cache; without a compiler, one that was built before.

    Without a cache too, the one that came with the wheel.
    """
    if folder is None:
        path = prebuilt()
    else:
        path = built_before(folder) if compiler is None else build(compiler, folder=folder)
    try:
        library = ctypes.CDLL(str(path))
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        library.lehr_best_instruction_set.argtypes = []
        library.lehr_run_batch.argtypes = [pointer, pointer, size, pointer, ctypes.c_int, pointer, pointer]
        library.lehr_run_batch.restype = None
    except (OSError, AttributeError) as error:  # built for another machine, say, or in a folder that forbids programs
        raise CompilerError(
            f"the compiled runtime cannot be loaded: {error}. Set CC to a compiler for this Python, or LEHR_CACHE to a "
            "folder that programs may run from; IntegerNet.run works without, only slower."
        ) from error
    return library
