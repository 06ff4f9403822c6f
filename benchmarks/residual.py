"""The engine against onnxruntime on ResNet-8 and ResNet-20: 32x32 images, batch 1, one thread.

    python benchmarks/residual.py [--depths 8 20] [--repetitions 150]
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
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from torch import nn

import lehr
from deploy import Images, least_times
from lehr.deploy.cpu import available
from lehr.models.resnet import Block, ResNet


def resnet_onnx(model: ResNet, path: Path) -> None:
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
        pads = [size // 2] * 4
        return add("Conv", [x, *weights], pads=pads, strides=list(layer.stride), kernel_shape=[size, size])

    def relu(x: str) -> str:
        return add("Relu", [x])

    x = relu(conv(model.conv1, "image"))
    for block in (module for module in model.modules() if isinstance(module, Block)):
        short = conv(block.downsample[0], x) if isinstance(block.downsample, nn.Sequential) else x  # pyright: ignore[reportArgumentType]
        x = relu(add("Add", [conv(block.conv2, relu(conv(block.conv1, x))), short]))
    x = add("Flatten", [add("GlobalAveragePool", [x])])
    out = add("Gemm", [x, *constants(model.fc.weight.detach().numpy(), np.zeros(10))], transB=1)
    image = helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 3, 32, 32])
    scores = helper.make_tensor_value_info(out, onnx.TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "resnet", [image], [scores], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def onnxruntimes(model: ResNet) -> dict[str, Callable[[], object]]:
    """onnxruntime in fp32 and int8, one thread, ready to run one image."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    image = {"image": np.random.default_rng(1).normal(size=(1, 3, 32, 32)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        paths = {"fp32": Path(folder) / "fp32.onnx", "int8": Path(folder) / "int8.onnx"}
        resnet_onnx(model, paths["fp32"])
        quantize_static(
            paths["fp32"],
            paths["int8"],
            Images(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        sessions = {name: onnxruntime.InferenceSession(path, options) for name, path in paths.items()}
    return {f"onnxruntime {name}": lambda s=s: s.run(None, image) for name, s in sessions.items()}


def frozen(depth: int) -> tuple[ResNet, lehr.deploy.IntegerNet]:
    """The network in float, and ternary as integers."""
    torch.manual_seed(0)
    model = ResNet(depth=depth, input_bits=8)
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    model.train()(images)
    quantized = ResNet(depth=depth, input_bits=8)
    quantized.load_state_dict(model.state_dict())
    lehr.quantize_(quantized, weights="ternary", activations="ternary", data=[images])
    return model, lehr.freeze(quantized.eval(), images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--depths", type=int, nargs="+", default=[8, 20])
    parser.add_argument("--repetitions", type=int, default=150)
    arguments = parser.parse_args()
    image = np.random.default_rng(1).integers(0, 256, (1, 3, 32, 32), dtype=np.uint8)
    for depth in arguments.depths:
        model, net = frozen(depth)
        runs = onnxruntimes(model)
        for name in available()[1:]:
            engine = lehr.deploy.compile(net, instruction_set=name)
            runs[f"lehr {name}"] = lambda engine=engine: engine(image)
        times = least_times(runs, arguments.repetitions)
        for name, seconds in times.items():
            ratios = [times[f"onnxruntime {other}"] / seconds for other in ("fp32", "int8")]
            row = f"ResNet-{depth:<3} {name:18} {seconds * 1e3:8.3f} ms"
            print(f"{row}  {ratios[0]:6.2f} x fp32  {ratios[1]:6.2f} x int8")


if __name__ == "__main__":
    main()
