"""The engine against onnxruntime on the paper's VGG-like network: speed, threads, start-up; a table of goals.

    python benchmarks/deploy.py [--repetitions 150]

Random ternary weights (the time of integer kernels does not depend on them). All variants of a width run one
after the other in one process, `repetitions` rounds, one thread, batch 1; each time is the least thread CPU
time of a call that follows one of its own kind, as in use: after another's the caches hold that one's weights,
and after 512-bit float code the processor is slower for a while. onnxruntime runs the same shapes with BatchNorm
folded into Conv (fp32) and its static QDQ quantization per channel (int8).
"""

from __future__ import annotations

import argparse
import math
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from lehr.deploy import compile
from lehr.deploy.cpu import available
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Affine, Conv, Flatten, Linear, MaxPool, Operation, Table, Threshold, Weights

TRITS = (-1, 0, 1)
CHANNELS, FEATURES, CLASSES = (128, 128, 256, 256, 512, 512), 1024, 10


def vgg(width: float, seed: int = 0) -> IntegerNet:
    """The VGG-like network of the paper with random trits; pooling after every second convolution."""
    rng = np.random.default_rng(seed)

    def trits(*shape: int) -> Weights:
        return Weights(rng.integers(0, 3, shape, dtype=np.uint8), TRITS)

    def cut(name: str, source: str, channels: int, std: float) -> Threshold:
        t = np.sort(rng.normal(0, std, (channels, 2)).round().astype(np.int64), axis=1)
        return Threshold(name, source, t, rng.choice([-1, 1], channels), TRITS)

    operations: list[Operation] = [Table("pixels", np.tile(np.arange(-128, 128), (3, 1)))]
    source, inputs, std = "pixels", 3, 74 * math.sqrt(2 / 3)  # std of a product of a pixel and a trit
    for index, full in enumerate(CHANNELS, 1):
        out = int(full * width)
        operations.append(Conv(f"conv{index}", source, trits(out, inputs, 3, 3), padding=(1, 1)))
        source = f"conv{index}"
        if index % 2 == 0:
            operations.append(MaxPool(f"pool{index}", source, (2, 2), (2, 2)))
            source = f"pool{index}"
        operations.append(cut(f"act{index}", source, out, std * math.sqrt(9 * inputs)))
        source, inputs, std = f"act{index}", out, 2 / 3
    operations.append(Flatten("flat", source))
    source, inputs = "flat", inputs * 16
    for index, out in enumerate((int(FEATURES * width), int(FEATURES * width)), 1):
        operations.append(Linear(f"fc{index}", source, trits(out, inputs)))
        operations.append(cut(f"fc_act{index}", f"fc{index}", out, std * math.sqrt(inputs)))
        source, inputs = f"fc_act{index}", out
    operations.append(Linear("scores", source, trits(CLASSES, inputs)))
    operations.append(Affine("logits", "scores", np.full(CLASSES, 0.01), np.zeros(CLASSES)))
    return IntegerNet((3, 32, 32), tuple(operations))


def vgg_onnx(width: float, path: Path, seed: int = 0) -> None:
    """The same shapes in fp32, BatchNorm folded into Conv and Gemm."""
    rng = np.random.default_rng(seed)
    nodes, initializers = [], []

    def constant(name: str, *shape: int) -> str:
        values = rng.normal(0, 1 / math.sqrt(math.prod(shape[1:])), shape).astype(np.float32)
        initializers.append(numpy_helper.from_array(values, name))
        return name

    def add(kind: str, name: str, inputs: list[str], **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    x, channels = "image", 3
    for i, full in enumerate(CHANNELS, 1):
        out = int(full * width)
        parameters = [constant(f"w{i}", out, channels, 3, 3), constant(f"b{i}", out)]
        x, channels = add("Conv", f"conv{i}", [x, *parameters], pads=[1, 1, 1, 1]), out
        if i % 2 == 0:
            x = add("MaxPool", f"pool{i}", [x], kernel_shape=[2, 2], strides=[2, 2])
        x = add("Relu", f"relu{i}", [x])
    x, channels = add("Flatten", "flat", [x]), channels * 16
    for i, out in enumerate((int(FEATURES * width), int(FEATURES * width), CLASSES), 7):
        parameters = [constant(f"w{i}", out, channels), constant(f"b{i}", out)]
        x, channels = add("Gemm", f"fc{i}", [x, *parameters], transB=1), out
        if out != CLASSES:
            x = add("Relu", f"relu{i}", [x])
    graph = helper.make_graph(
        nodes,
        "vgg",
        [helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [1, CLASSES])],
        initializers,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


class Images(CalibrationDataReader):
    """A few random images to calibrate with."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._images = iter([rng.normal(size=(1, 3, 32, 32)).astype(np.float32) for _ in range(4)])

    def get_next(self) -> Any:
        """The next image, or None after the last."""
        image = next(self._images, None)
        return None if image is None else {"image": image}


def onnxruntimes(width: float) -> dict[str, Callable[[], object]]:
    """onnxruntime in fp32 and int8, one thread, ready to run one image."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    image = {"image": np.random.default_rng(1).normal(size=(1, 3, 32, 32)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        paths = {"fp32": Path(folder) / "fp32.onnx", "int8": Path(folder) / "int8.onnx"}
        vgg_onnx(width, paths["fp32"])
        quantize_static(
            paths["fp32"],
            paths["int8"],
            Images(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        sessions = {
            name: onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            for name, path in paths.items()
        }
    return {f"onnxruntime {name}": lambda s=s: s.run(None, image) for name, s in sessions.items()}


def least_times(
    runs: dict[str, Callable[[], object]], repetitions: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Seconds of each run, the least of `repetitions` interleaved rounds; each is called once before it is timed."""
    best = dict.fromkeys(runs, math.inf)
    for _ in range(repetitions):
        for name, run in runs.items():
            run()
            start = clock()
            run()
            best[name] = min(best[name], clock() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=150)
    repetitions = parser.parse_args().repetitions
    image = np.random.default_rng(1).integers(0, 256, (1, 3, 32, 32), dtype=np.uint8)
    batch = np.random.default_rng(1).integers(0, 256, (32, 3, 32, 32), dtype=np.uint8)
    goals: list[tuple[str, float, float]] = []  # (what, measured ratio, goal)
    print(f"{platform.machine()}, onnxruntime {onnxruntime.__version__}, {repetitions} repetitions")
    for width in (1.0, 0.25):
        net = vgg(width)
        runs = onnxruntimes(width)
        best = compile(net).instruction_set
        for name in available()[1:]:
            engine = compile(net, instruction_set=name)
            runs[f"lehr {name}"] = lambda engine=engine: engine(image)
        times = least_times(runs, repetitions)
        for name, seconds in times.items():
            ratios = [times[f"onnxruntime {other}"] / seconds for other in ("fp32", "int8")]
            row = f"width {width:4}  {name:18} {seconds * 1e3:8.3f} ms"
            print(f"{row}  {ratios[0]:6.2f} x fp32  {ratios[1]:6.2f} x int8")
        fp32, int8 = times["onnxruntime fp32"], times["onnxruntime int8"]
        if width == 1:
            goals.append(("width 1 against onnxruntime fp32", fp32 / times[f"lehr {best}"], 10))
            goals.append(("width 1 against onnxruntime int8", int8 / times[f"lehr {best}"], 5))
            goals.append(("portable scalar C against onnxruntime fp32", fp32 / times["lehr scalar"], 1.5))
            one, two = compile(net), compile(net, threads=2)
            threads = {"one": lambda one=one: one(batch), "two": lambda two=two: two(batch)}
            times = least_times(threads, max(20, repetitions // 5), time.perf_counter)
            goals.append(("2 threads, batch 32, against 1 thread", times["one"] / times["two"], 1.8))
            start = least_times({"start": lambda net=net: compile(net)}, 20, time.perf_counter)["start"]
            goals.append(("start-up from a compiled cache: 100 ms against it", 0.1 / start, 1))
        else:
            goals.append(("width 1/4 against onnxruntime int8", int8 / times[f"lehr {best}"], 3.5))
    print()
    for what, measured, goal in goals:
        print(f"{what:50} {measured:6.2f}  goal {goal:4}  {'met' if measured >= goal else 'missed'}")


if __name__ == "__main__":
    main()
