"""A network in every form that this machine can run, in one table: time of an image, size, equal to the reference run.

The forms are the reference run, the engine on every instruction set of this processor, the exported C, ONNX in
onnxruntime, QONNX in qonnx and WebAssembly in node; behind them stand the float32 and 8-bit networks that one would run
instead (bench.py). Times are those of one image on one thread, the best of several.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lehr.deploy.bench import sessions
from lehr.deploy.build import FLAGS, CompilerError, find_compiler, run_compiler
from lehr.deploy.cpu import available, compile
from lehr.deploy.integer_net import IntegerNet, random_batch
from lehr.deploy.run_onnx import onnx_session, run_qonnx
from lehr.deploy.structs import INSTRUCTION_SETS
from lehr.deploy.write_c import to_c
from lehr.deploy.write_onnx import to_qonnx
from lehr.deploy.write_wasm import to_wasm
from lehr.table import Table, Tabular

_SECONDS = 2.0  # that each form is timed for at most: qonnx takes a second an image
_COMPARED = 4  # images

_NODE = """
import { readFileSync } from "fs";
import { load } from "./model.mjs";
const net = await load(readFileSync("model.wasm"));
const { images, repetitions, milliseconds } = JSON.parse(readFileSync(0, "utf8"));
const results = images.map((image) => net.run(image));
const began = performance.now();
let best = Infinity;
for (let i = 0; i < repetitions && performance.now() - began < milliseconds; i++) {
  const start = performance.now();
  net.run(images[i % images.length]);
  best = Math.min(best, performance.now() - start);
}
const numbers = (name) => results.map((x) => x[name] && [...x[name]]);
console.log(JSON.stringify({ best, logits: numbers("logits"), scores: numbers("scores") }));
"""

Run = Callable[[np.ndarray], Any]  # of a batch of one image


@dataclass(frozen=True)
class Form:
    """One row: the best time of an image, the size of its file, and whether it equals the reference run.

    `equal` is None for a network that is another one; `why` says why a form could not be run.
    """

    name: str
    milliseconds: float | None = None
    bytes: int | None = None
    equal: bool | None = None
    why: str = ""


@dataclass(frozen=True)
class Forms(Tabular):
    """All forms of a network; prints as a table."""

    rows: tuple[Form, ...]

    def table(self) -> Table:
        """Return a row for each form."""
        rows = []
        for row in self.rows:
            equal = row.why or {True: "equal", False: "DIFFERS", None: "another network"}[row.equal]
            time = None if row.milliseconds is None else f"{row.milliseconds:.3f}"
            rows.append((row.name, time, None if row.bytes is None else f"{row.bytes:,}", equal))
        return Table(("one image, one thread", "best ms", "bytes", "scores"), rows)

    @property
    def all_equal(self) -> bool:
        """Whether no form of the network differs."""
        return all(row.equal is not False for row in self.rows)


def run_all_forms(net: IntegerNet, *, repetitions: int = 100) -> Forms:
    """Run a network in every form that can be run here.

    Args:
        net: the network, with one output.
        repetitions: how often each form is timed, or for two seconds.
    """
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, got {repetitions}")
    if len(net.outputs) > 1:
        names = ", ".join(output.name for output in net.outputs)
        raise ValueError(f"networks of one output are timed, and this one has {names}: freeze a network for each")
    images = random_batch(net, 16)
    with tempfile.TemporaryDirectory() as name:
        return Forms(tuple(_rows(net, images, Path(name), repetitions)))


def _rows(net: IntegerNet, images: np.ndarray, folder: Path, repetitions: int) -> Iterator[Form]:
    net.save(folder / "model.lehr")
    packed = (folder / "model.lehr").stat().st_size
    expected = net.run(images[:_COMPARED])

    def row(name: str, run: Run, size: int | None) -> Form:
        found = np.concatenate([run(image[None]) for image in images[:_COMPARED]])
        return Form(name, _best(run, images, repetitions), size, np.array_equal(found, expected))

    yield row("reference run", net.run, packed)
    try:
        for name in available():
            yield row(f"engine, {name}", compile(net, instruction_set=name).run, packed)
        yield row("C, exported", *_exported(net, folder))
    except CompilerError as error:
        yield Form("C", why=str(error).splitlines()[0])
    session = onnx_session(net, folder / "model.onnx")
    output = session.get_outputs()[0].name
    given = session.get_inputs()[0].name
    size = (folder / "model.onnx").stat().st_size
    yield row("ONNX, onnxruntime", lambda x: session.run([output], {given: x})[0], size)
    if importlib.util.find_spec("qonnx"):
        to_qonnx(net, folder / "model.qonnx.onnx")
        size = (folder / "model.qonnx.onnx").stat().st_size
        yield row("QONNX, qonnx", lambda x: run_qonnx(net, x), size)
    else:
        yield Form("QONNX, qonnx", why="not installed: pip install qonnx")
    yield _wasm(net, images, expected, folder, repetitions)
    for name, twin in zip(("fp32", "int8"), sessions(net, images, folder), strict=True):
        taken = twin.get_inputs()[0].name
        run: Run = lambda x, s=twin, taken=taken: s.run(None, {taken: x})[0]  # noqa: E731
        yield Form(f"onnxruntime {name}", _best(run, images, repetitions), (folder / f"{name}.onnx").stat().st_size)


def _wasm(net: IntegerNet, images: np.ndarray, expected: np.ndarray, folder: Path, repetitions: int) -> Form:
    """WebAssembly in node, timed there."""
    name = "WebAssembly, node"
    if shutil.which("node") is None:
        return Form(name, why="there is no node")
    try:
        to_wasm(net, folder / "model.wasm")
    except CompilerError as error:
        return Form(name, why=str(error).splitlines()[0])
    (folder / "run.mjs").write_text(_NODE)
    flat = images.reshape(len(images), -1).tolist()
    given = json.dumps({"images": flat, "repetitions": repetitions, "milliseconds": 1e3 * _SECONDS})
    ran = subprocess.run(["node", "run.mjs"], cwd=folder, input=given, capture_output=True, text=True, check=False)
    if ran.returncode:
        return Form(name, why=(ran.stderr.strip().splitlines() or ["node failed"])[-1])
    told = json.loads(ran.stdout)
    found = np.array(told["scores" if net.output.kind == "integer" else "logits"], expected.dtype)
    equal = np.array_equal(found[:_COMPARED].reshape(expected.shape), expected)
    return Form(name, told["best"], (folder / "model.wasm").stat().st_size, equal)


def _best(run: Run, images: np.ndarray, repetitions: int) -> float:
    """Milliseconds of the quickest call, which follows one of its own kind."""
    run(images[:1])
    began, times = time.monotonic(), []
    for repetition in range(repetitions):
        image = images[repetition % len(images)][None]
        start = time.thread_time()
        run(image)
        times.append((time.thread_time() - start) * 1e3)
        if time.monotonic() - began > _SECONDS:
            break
    return min(times)


def _exported(net: IntegerNet, folder: Path) -> tuple[Run, int]:
    """The C that `to_c` writes, compiled for any processor of this kind; how to run it, and the size of its library."""
    to_c(net, folder / "c")
    library = folder / "model.so"
    sources = [
        str(path) for path in sorted((folder / "c").glob("*.c")) if path.name not in ("main.c", "test.c", "listen.c")
    ]
    run_compiler([*find_compiler(), *FLAGS, "-fPIC", "-shared", "-o", str(library), *sources, "-lm"])
    loaded = ctypes.CDLL(str(library))
    model = ctypes.c_char.in_dll(loaded, "model")
    loaded.lehr_memory.restype = ctypes.c_size_t
    scalar = INSTRUCTION_SETS.index("scalar")  # compiled without flags of an instruction set, it has no other
    memory = np.empty(loaded.lehr_memory(ctypes.byref(model), scalar), np.uint8)
    integer = net.output.kind == "integer"
    pointer = ctypes.c_void_p

    def run(x: np.ndarray) -> np.ndarray:
        out = np.empty((1, *net.outputs[0].shape), np.int32 if integer else np.float32)
        results = (pointer(out.ctypes.data), None) if integer else (None, pointer(out.ctypes.data))
        image, area = pointer(np.ascontiguousarray(x).ctypes.data), pointer(memory.ctypes.data)
        loaded.lehr_run_batch(ctypes.byref(model), image, ctypes.c_size_t(1), area, scalar, *results)
        return out

    return run, library.stat().st_size
