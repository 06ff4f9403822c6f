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
>>> engine = compile(net, kernels="scalar")
>>> engine(np.array([[[[200, 7]]]], dtype=np.uint8))
array([[1, 0]])
>>> print(engine.describe())
layer   kernel      built for  why
pixels  table       scalar
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
from typing import Any, Literal

import numpy as np
import torch

from lehr.deploy import limits
from lehr.deploy.build import CompilerError, build, built_before, cache_folder, find_compiler
from lehr.deploy.integer_net import Images, IntegerNet, check_images
from lehr.deploy.kernels import FIELDS, KERNELS, LEVELS, OPERATIONS, TYPE_OF_FIELD
from lehr.deploy.plan import Plan, plan
from lehr.table import Table, Tabular

Kernels = Literal["auto", "scalar", "avx2", "avx512", "amx"]

# Python hears an interrupt only between calls: no call takes longer than some tenths of a second, or than one image.
_STEPS_AT_ONCE = 2**29
_KERNEL_NAMES = {
    "DIRECT": "direct",
    "TERNARY": "tables",
    "WIDE": "wide tables",
    "MATRIX": "matrix tiles",
    "TRITS": "matrix tiles",
    "BITS": "bit-planes",
}


class _Layer(ctypes.Structure):
    _fields_ = [
        (name, {"int": ctypes.c_int32, "float": ctypes.c_float}.get(TYPE_OF_FIELD[name], ctypes.c_void_p))
        for name in FIELDS
    ]


class _Net(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)),
        ("count", ctypes.c_int32),
        ("image_bytes", ctypes.c_uint32),
        ("value_bytes", ctypes.c_uint32),
        ("outputs", ctypes.c_int32),
        ("scores", ctypes.c_uint32),
        ("logits", ctypes.c_uint32),
        ("scores_type", ctypes.c_int32),
        ("logits_type", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class KernelRow:
    """What runs a layer: the kernel, the instruction set it was built for, and why it is not a faster one."""

    layer: str
    kernel: str
    built_for: str
    why: str = ""


@dataclass(frozen=True)
class Description(Tabular):
    """A row for each layer; prints as a table."""

    rows: tuple[KernelRow, ...]

    def table(self) -> Table:
        """Return the rows as a table."""
        rows = [(row.layer, row.kernel, row.built_for, row.why) for row in self.rows]
        return Table(("layer", "kernel", "built for", "why"), rows)


class _Memory:
    """What a thread works in, and where it is, since asking numpy for that takes longer than a small layer."""

    def __init__(self, size: int) -> None:
        self._bytes = np.empty(size, np.uint8)
        self.address = self._bytes.ctypes.data


def _address(array: np.ndarray) -> int:
    """Where the bytes of an array are; its own `ctypes.data` takes thrice as long, which small networks notice."""
    if array.flags.writeable and array.size:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data


class Engine:
    """A network in the compiled runtime; called on uint8 images, it gives their logits.

    `run`, `scores` and `predict` are those of `IntegerNet`, with the same results. Several threads may call.
    """

    def __init__(self, net: IntegerNet, threads: int, level: int, library: ctypes.CDLL) -> None:
        self.net = net
        self.threads = threads
        self.level = LEVELS[level]
        self._level = level
        self._library = library
        self._plan = plan(net, matrix=self.level == "amx")
        self._struct = _net_struct(self._plan)
        self._pointer = ctypes.addressof(self._struct)
        self._memory_bytes = library.lehr_memory(self._pointer, level)
        self._memories: list[_Memory] = []
        self._lock = threading.Lock()
        self._at_once = max(1, _STEPS_AT_ONCE // limits.steps(net))
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __repr__(self) -> str:
        images = "x".join(map(str, self.net.input_shape))
        return f"Engine({images} images, {self.level}, {self.threads} thread{'s' * (self.threads != 1)})"

    def _repr_html_(self) -> str:
        return self.describe().table().html()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is built for that one."""
        return _compiled, (self.net, self.threads, self.level)

    def __call__(self, images: Images) -> Images:
        """The logits, as `IntegerNet.run` gives them."""
        return self._run(images, scores=False)

    def run(self, images: Images) -> Images:
        """The logits, as `IntegerNet.run` gives them."""
        return self._run(images, scores=False)

    def scores(self, images: Images) -> Images:
        """The integer scores, as `IntegerNet.scores` gives them."""
        return self._run(images, scores=True)

    def predict(self, images: Images) -> Images:
        """The class of each image: the first of the largest logits."""
        logits = self.run(images)
        return logits.argmax(1)  # pyright: ignore[reportReturnType]

    def describe(self) -> Description:
        """Which kernel each layer uses."""
        rows = []
        for layer in self._plan.layers:
            operation = OPERATIONS[layer.operation]
            if operation in ("CONV", "LINEAR"):
                kernel = _KERNEL_NAMES[KERNELS[layer.kernel]]
                rows.append(KernelRow(layer.name, kernel, layer.built_for(self.level), layer.why))
            else:
                rows.append(KernelRow(layer.name, operation.lower().replace("_", " "), "scalar"))
        return Description(tuple(rows))

    @property
    def memory_bytes(self) -> int:
        """Bytes of working memory each thread takes, besides the weights."""
        return self._memory_bytes

    def _run(self, images: Images, *, scores: bool) -> Images:
        check_images(images, self.net.input_shape)
        if isinstance(images, torch.Tensor):
            return torch.from_numpy(self._run(images.detach().cpu().numpy(), scores=scores))
        images = np.ascontiguousarray(images)
        name = self.net.score_name if scores else self.net.operations[-1].name
        integer = self.net.values[name].kind == "integer"
        out = np.empty((len(images), self._plan.outputs), np.int32 if integer else np.float32)
        together = self._at_once
        if self._pool is None or len(images) < 2:
            for at in range(0, len(images), together):
                self._run_part(images[at : at + together], out[at : at + together], integer)
        else:
            together = min(together, -(-len(images) // self.threads))
            parts = []
            try:
                for at in range(0, len(images), together):
                    part = images[at : at + together], out[at : at + together]
                    parts.append(self._pool.submit(self._run_part, *part, integer))
                for part in parts:
                    part.result()
            finally:  # after an interrupt no part begins any more
                for part in parts:
                    part.cancel()
        return out.astype(np.int64) if integer else out  # pyright: ignore[reportReturnType]

    def _run_part(self, images: np.ndarray, out: np.ndarray, integer: bool) -> None:
        with self._lock:
            memory = self._memories.pop() if self._memories else _Memory(self._memory_bytes)
        target = _address(out)
        scores, logits = (target, None) if integer else (None, target)
        self._library.lehr_run_batch(
            self._pointer, _address(images), len(images), memory.address, self._level, scores, logits
        )
        with self._lock:
            self._memories.append(memory)


def compile(net: IntegerNet, *, threads: int = 1, kernels: Kernels = "auto") -> Engine:
    """An `Engine` for `net`: `threads` share the images of a batch; `kernels` limits the instruction set."""
    if threads < 1:
        raise ValueError(f"threads is at least 1, got {threads}")
    if kernels != "auto" and kernels not in LEVELS:
        raise ValueError(f"kernels is one of auto, {', '.join(LEVELS)}, got {kernels!r}")
    library = _load()
    best = library.lehr_best_level()
    level = best if kernels == "auto" else LEVELS.index(kernels)
    if level > best:
        raise ValueError(f"this processor or compiler has no {kernels}: the best it has is {LEVELS[best]}")
    return Engine(net, threads, level, library)


def _compiled(net: IntegerNet, threads: int, kernels: Kernels) -> Engine:
    return compile(net, threads=threads, kernels=kernels)


def _load() -> ctypes.CDLL:
    folder = cache_folder()
    try:
        compiler = tuple(find_compiler())
    except CompilerError:
        if os.environ.get("CC") or built_before(folder) is None:
            raise
        compiler = None
    return _library(compiler, folder)


@cache
def _library(compiler: tuple[str, ...] | None, folder: Path) -> ctypes.CDLL:
    """The runtime, loaded once for each compiler and cache; without a compiler, one that was built before."""
    path = built_before(folder) if compiler is None else build(compiler, folder=folder)
    try:
        library = ctypes.CDLL(str(path))
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        library.lehr_best_level.argtypes = []
        library.lehr_memory.argtypes = [pointer, ctypes.c_int]
        library.lehr_memory.restype = size
        library.lehr_run_batch.argtypes = [pointer, pointer, size, pointer, ctypes.c_int, pointer, pointer]
        library.lehr_run_batch.restype = None
    except (OSError, AttributeError) as error:  # built for another machine, say, or in a folder that forbids programs
        raise CompilerError(
            f"the compiled runtime cannot be loaded: {error}. Set CC to a compiler for this Python, or LEHR_CACHE to a "
            "folder that programs may run from; IntegerNet.run works without, only slower."
        ) from error
    return library


def _net_struct(plan: Plan) -> _Net:
    """The network as C structs. They point into the plan's arrays, which the engine keeps alive."""
    layers = (_Layer * len(plan.layers))()
    for struct, layer in zip(layers, plan.layers, strict=True):
        for name in FIELDS:
            value = getattr(layer, name)
            setattr(struct, name, value.ctypes.data if isinstance(value, np.ndarray) else value)
    net = _Net()
    net.layers = ctypes.cast(layers, ctypes.POINTER(_Layer))
    net.count = len(plan.layers)
    for name in ("image_bytes", "value_bytes", "outputs", "scores", "logits", "scores_type", "logits_type"):
        setattr(net, name, getattr(plan, name))
    return net
