"""How fast a network runs here: lehr's engine beside onnxruntime, in one process, one thread, interleaved.

onnxruntime gets the network a user would run instead: the same layers with float32 weights and ReLU (BatchNorm folded
away), and that network statically quantized to 8 bits, per channel. Times are thread CPU time of one image, the
minimum over many repetitions: on a busy machine the minimum is what a quiet one would show. Each timed call follows one
of its own kind, as in use: after another's, the caches hold that one's weights.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from typing_extensions import override

from lehr.deploy.cpu import compile
from lehr.deploy.integer_net import IntegerNet, random_batch
from lehr.deploy.onnx_nodes import Writer
from lehr.deploy.operations import Threshold, Weights
from lehr.table import Table, Tabular


@dataclass(frozen=True)
class Timing:
    """Milliseconds an image takes."""

    name: str
    best: float
    median: float


@dataclass(frozen=True)
class Timings(Tabular):
    """All candidates of one comparison, lehr's own first; prints as a table."""

    rows: tuple[Timing, ...]

    def speedup(self, name: str) -> float:
        """How many times faster than `name` lehr's engine is."""
        return next(row.best for row in self.rows if row.name == name) / self.rows[0].best

    def table(self) -> Table:
        """Return a row for each candidate."""
        rows = [(r.name, f"{r.best:.3f}", f"{r.median:.3f}", f"{r.best / self.rows[0].best:.2f}x") for r in self.rows]
        return Table(("one image, one thread", "best ms", "median ms", "time against lehr"), rows)


def bench(net: IntegerNet, *, repetitions: int = 100, images: np.ndarray | None = None) -> Timings:
    """Time `net` in the engine (best and scalar kernels) and its float and 8-bit twins in onnxruntime."""
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, got {repetitions}")
    if images is None:
        images = random_batch(net, 16)
    engine, scalar = compile(net), compile(net, instruction_set="scalar")
    with tempfile.TemporaryDirectory() as folder:
        fp32, int8 = sessions(net, images, Path(folder))
    given = fp32.get_inputs()[0].name
    candidates: dict[str, Callable[[np.ndarray], object]] = {
        f"lehr, {engine.instruction_set}": engine,
        "lehr, scalar C": scalar,
        "onnxruntime fp32": lambda x: fp32.run(None, {given: x}),
        "onnxruntime int8": lambda x: int8.run(None, {given: x}),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for repetition in range(repetitions + 3):
        image = images[repetition % len(images)][None]
        for name, run in candidates.items():
            run(image)
            start = time.thread_time()
            run(image)
            if repetition >= 3:  # the first calls warm caches and tables
                times[name].append((time.thread_time() - start) * 1e3)
    return Timings(tuple(Timing(name, min(t), float(np.median(t))) for name, t in times.items()))


class _FloatTwin(Writer):
    """The network in float32: float weights, ReLU where it has thresholds."""

    opsets = (("", 21),)
    ir_version = 10

    @override
    def weights(self, name: str, weights: Weights) -> str:
        return self.constant(weights.values.astype(np.float32) / weights.codes[0].size, f"{name}.weight")

    @override
    def codes(self, threshold: Threshold, source: str, shape: tuple[int, ...]) -> str:
        return self.node("Relu", [source], shape, name=threshold.name)


class _Images(CalibrationDataReader):
    def __init__(self, images: np.ndarray, name: str) -> None:
        self._images: Iterator[np.ndarray] = iter(images[:, None])
        self._name = name

    def get_next(self) -> dict[str, np.ndarray] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        image = next(self._images, None)
        return None if image is None else {self._name: image}


def twins(net: IntegerNet, images: np.ndarray, folder: Path) -> tuple[Path, Path]:
    """Write the network in float32, and quantized to 8 bits by onnxruntime, as ONNX; return the two files.

    Args:
        net: the network
        images: what the 8-bit one is calibrated on
        folder: where to write
    """
    upward = [
        dataclasses.replace(operation, directions=np.ones_like(operation.directions))
        if isinstance(operation, Threshold)
        else operation
        for operation in net.operations
    ]
    twin = dataclasses.replace(net, operations=tuple(upward))
    fp32, prepared, int8 = (folder / name for name in ("fp32.onnx", "prepared.onnx", "int8.onnx"))
    fp32.write_bytes(_FloatTwin(twin, 1).model().SerializeToString())
    quant_pre_process(str(fp32), str(prepared))
    quantize_static(
        str(prepared),
        str(int8),
        _Images(images, "pixels" if net.input_dtype == "uint8" else "input"),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return fp32, int8


def sessions(
    net: IntegerNet, images: np.ndarray, folder: Path
) -> tuple[onnxruntime.InferenceSession, onnxruntime.InferenceSession]:
    """The twins in onnxruntime, on one thread each."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return tuple(
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        for path in twins(net, images, folder)
    )  # pyright: ignore[reportReturnType]
