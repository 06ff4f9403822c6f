"""The engine against onnxruntime on ResNet-8, ResNet-20 (32x32 images) and DS-CNN: batch 1, one thread.

    python benchmarks/residual.py [--networks resnet8 resnet20 ds-cnn] [--repetitions 150]
    python benchmarks/processor.py avx2 benchmarks/residual.py

Ternary weights and activations, sums of 8 bits; new weights, for the time of integer kernels does not depend on them.
All variants of a depth run one after the other in one process, as in benchmarks/deploy.py. onnxruntime runs the same
shapes with BatchNorm folded into Conv (fp32) and its static QDQ quantization per channel (int8).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

import lehr
from deploy import least_times
from lehr.deploy.cpu import available
from lehr.models import DSCNN
from lehr.models.resnet import Block, ResNet


def network_onnx(model: ResNet | DSCNN, shape: tuple[int, ...], path: Path) -> None:
    """The network's shapes in fp32, BatchNorm folded into Conv and Gemm."""
    nodes, initializers = [], []

    def add(kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{kind}{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def constants(*arrays: np.ndarray) -> list[str]:
        names = [f"constant{len(initializers) + number}" for number in range(len(arrays))]
        initializers.extend(map(numpy_helper.from_array, (a.astype(np.float32) for a in arrays), names))
        return names

    def conv(layer: nn.Conv2d, x: str) -> str:
        size = layer.kernel_size[0]
        weights = constants(layer.weight.detach().numpy(), np.zeros(layer.out_channels))
        pads = [4, 1, 5, 1] if layer.kernel_size == (10, 4) else [size // 2] * 4  # DS-CNN pads outside
        return add("Conv", [x, *weights], pads=pads, strides=list(layer.stride), group=layer.groups)

    def relu(x: str) -> str:
        return add("Relu", [x])

    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    x = relu(conv(convs[0], "image"))
    for layer in convs[1:] if isinstance(model, DSCNN) else ():
        x = relu(conv(layer, x))
    for block in (module for module in model.modules() if isinstance(module, Block)):
        short = conv(block.downsample[0], x) if isinstance(block.downsample, nn.Sequential) else x  # pyright: ignore[reportArgumentType]
        x = relu(add("Add", [conv(block.conv2, relu(conv(block.conv1, x))), short]))
    x = add("Flatten", [add("GlobalAveragePool", [x])])
    out = add("Gemm", [x, *constants(model.fc.weight.detach().numpy(), np.zeros(model.fc.out_features))], transB=1)
    image = helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, *shape])
    scores = helper.make_tensor_value_info(out, onnx.TensorProto.FLOAT, [1, model.fc.out_features])
    graph = helper.make_graph(nodes, "network", [image], [scores], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def onnxruntimes(model: ResNet | DSCNN, shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """onnxruntime in fp32 and int8, one thread, ready to run one image."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    image = {"image": np.random.default_rng(1).normal(size=(1, *shape)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        paths = {"fp32": Path(folder) / "fp32.onnx", "int8": Path(folder) / "int8.onnx"}
        network_onnx(model, shape, paths["fp32"])
        quantize_static(
            paths["fp32"],
            paths["int8"],
            Batches(shape),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        sessions = {name: onnxruntime.InferenceSession(path, options) for name, path in paths.items()}
    return {f"onnxruntime {name}": lambda s=s: s.run(None, image) for name, s in sessions.items()}


class Batches(CalibrationDataReader):
    """Random inputs, to calibrate onnxruntime's quantization with."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(0)
        self.batches = iter([{"image": rng.normal(size=(1, *shape)).astype(np.float32)} for _ in range(8)])

    def get_next(self) -> Any:
        """The next of them."""
        return next(self.batches, None)


def built(network: str) -> ResNet | DSCNN:
    """A new network."""
    return DSCNN(input_bits=8) if network == "ds-cnn" else ResNet(depth=int(network[6:]), input_bits=8)


def frozen(network: str, shape: tuple[int, ...]) -> tuple[ResNet | DSCNN, lehr.deploy.IntegerNet]:
    """The network in float, and ternary as integers."""
    torch.manual_seed(0)
    model, quantized = built(network), built(network)
    images = torch.randint(0, 256, (8, *shape), dtype=torch.uint8)
    model.train()(images)
    quantized.load_state_dict(model.state_dict())
    lehr.quantize_(quantized, weights="ternary", activations="ternary", data=[images])
    return model, lehr.freeze(quantized.eval(), images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--networks", nargs="+", default=["resnet8", "resnet20", "ds-cnn"])
    parser.add_argument("--repetitions", type=int, default=150)
    arguments = parser.parse_args()
    for network in arguments.networks:
        shape = (1, 49, 10) if network == "ds-cnn" else (3, 32, 32)
        image = np.random.default_rng(1).integers(0, 256, (1, *shape), dtype=np.uint8)
        model, net = frozen(network, shape)
        runs = onnxruntimes(model, shape)
        for name in available()[1:]:
            engine = lehr.deploy.compile(net, instruction_set=name)
            runs[f"lehr {name}"] = lambda engine=engine, image=image: engine(image)
        times = least_times(runs, arguments.repetitions)
        for name, seconds in times.items():
            ratios = [times[f"onnxruntime {other}"] / seconds for other in ("fp32", "int8")]
            row = f"{network:9} {name:18} {seconds * 1e3:8.3f} ms"
            print(f"{row}  {ratios[0]:6.2f} x fp32  {ratios[1]:6.2f} x int8")


if __name__ == "__main__":
    main()
