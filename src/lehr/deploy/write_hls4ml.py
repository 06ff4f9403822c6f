"""Integer networks as the QONNX that hls4ml reads: Quant, MatMul and BatchNormalization, no casts, no MultiThreshold.

The input is what the network's first table makes of the pixels, integers in float32 (`integer_input`): on an FPGA that
table is outside of the network. A step function of ternary or binary levels becomes a BatchNormalization and a Quant:
with thresholds t1 <= t2 of an integer s,

    round((s - (t1 + t2 - 1) / 2) / (t2 - t1))  within -1..1

is -1 below t1, 0 from t1 on and 1 from t2 on, and no integer lies within half a unit of where it rounds up, so it stays
right in fixed point of enough bits. Thresholds that are equal take the slope 2 instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Affine, Flatten, Linear, Operation, Table, Threshold, Weights

_DOMAIN = "qonnx.custom_op.general"
_LEVELS = ((-1, 0, 1), (0, 1))


def to_hls4ml(net: IntegerNet, path: str | Path, *, batch: int = 1) -> None:
    """Write a network of linear layers with ternary or binary activations as QONNX for hls4ml.

    Raises ValueError if it has anything else: convolutions go to FPGAs by `to_qonnx` and FINN.

    Args:
        net: the network.
        path: the file to write.
        batch: images at a time; hls4ml wants one.
    """
    for operation in net.operations:
        _check(net, operation)
    Path(path).write_bytes(_Graph(net, batch).model().SerializeToString())


def integer_input(net: IntegerNet, images: np.ndarray | torch.Tensor) -> np.ndarray:
    """Return what goes into the file that `to_hls4ml` writes: (image, input) integers in float32."""
    pixels = torch.as_tensor(np.ascontiguousarray(images))
    table = net.operations[0].name
    return net.trace(pixels)[table].reshape(len(pixels), -1).numpy().astype(np.float32)


def _check(net: IntegerNet, operation: Operation) -> None:
    name, kind = operation.name, type(operation).__name__
    if not isinstance(operation, Table | Flatten | Linear | Threshold | Affine):
        raise ValueError(f"{name}: the form for hls4ml has linear layers and step functions, and no {kind}")
    if isinstance(operation, Threshold) and tuple(operation.levels) not in _LEVELS:
        raise ValueError(f"{name}: the form for hls4ml has the levels -1, 0, 1 or 0, 1, got {operation.levels}")
    if isinstance(operation, Linear) and not (isinstance(operation.weight, Weights) and operation.weight.is_integer):
        raise ValueError(f"{name}: the form for hls4ml has integer weights")
    sources = [source for other in net.operations for source in other.sources]
    if sources.count(name) > 1:
        raise ValueError(f"{name}: the form for hls4ml is a sequence, and {sources.count(name)} operations read it")


class _Graph:
    """Appends a node for each operation to what came before."""

    def __init__(self, net: IntegerNet, batch: int) -> None:
        self.net = net
        self.batch = batch
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.features = net.values[net.operations[0].name].size

    def model(self) -> onnx.ModelProto:
        """The whole file."""
        self.shapes["input"] = (self.batch, self.features)
        given = helper.make_tensor_value_info("input", TensorProto.FLOAT, [self.batch, self.features])
        tensor = "input"
        for operation in self.net.operations:
            tensor = self._operation(operation, tensor)
        self.nodes[-1].output[0] = "logits"
        del self.shapes["input"], self.shapes[tensor]
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self.shapes.items()]
        outputs = self.net.output.size
        made = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [self.batch, outputs])
        graph = helper.make_graph(self.nodes, "lehr", [given], [made], self.constants, value_info=infos)
        imports = [helper.make_opsetid("", 13), helper.make_opsetid(_DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="lehr")
        onnx.checker.check_model(model)
        return model

    def _operation(self, operation: Operation, source: str) -> str:
        value = self.net.values[operation.name]
        match operation:
            case Table():
                bits = 1 + max(int(value.high).bit_length(), int(-value.low - 1).bit_length() if value.low < 0 else 0)
                return self._quant(source, bits, narrow=False)
            case Linear(weight=Weights() as weight):
                low, high = int(weight.levels[0]), int(weight.levels[-1])
                bits = max(2, 1 + max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0))
                matrix = self._constant(weight.values.reshape(weight.codes.shape[0], -1).T.astype(np.float32))
                return self._node("MatMul", source, self._quant(matrix, bits, narrow=low > -(2 ** (bits - 1))))
            case Threshold():
                return self._step(operation, source)
            case Affine():
                return self._scaled(source, operation.scale, operation.shift)
            case _:
                return source  # what is flat already

    def _step(self, operation: Threshold, source: str) -> str:
        """The affine map of each channel that puts its thresholds half-way between levels, then rounding."""
        cuts = operation.thresholds.astype(np.float64) - 0.5  # (channel, K): no integer is there
        slope = np.full(len(cuts), 2.0)
        middle = cuts.mean(1)
        if cuts.shape[1] == 2:
            width = cuts[:, 1] - cuts[:, 0]
            slope = np.where(width > 0, 1 / np.maximum(width, 1), 2.0)
        shift = (0.5 if operation.levels[0] == 0 else 0.0) - slope * middle
        mapped = self._scaled(source, slope * operation.directions, shift)
        signed = operation.levels[0] < 0
        return self._quant(mapped, 2 if signed else 1, narrow=signed, signed=signed)

    def _scaled(self, source: str, scale: np.ndarray, shift: np.ndarray) -> str:
        channels = max(np.size(scale), np.size(shift))
        full = [np.broadcast_to(np.asarray(x, np.float32), channels).copy() for x in (scale, shift, 0.0, 1.0)]
        return self._node("BatchNormalization", source, *map(self._constant, full), epsilon=0.0)

    def _quant(self, source: str, bits: int, *, narrow: bool, signed: bool = True) -> str:
        one, zero, width = (self._constant(np.array(x, np.float32)) for x in (1, 0, bits))
        attributes = {"signed": int(signed), "narrow": int(narrow), "rounding_mode": "ROUND", "domain": _DOMAIN}
        return self._node("Quant", source, one, zero, width, **attributes)

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=output, **attributes))
        shape = self.shapes[inputs[0]]
        self.shapes[output] = (*shape[:-1], self.shapes[inputs[1]][-1]) if operator == "MatMul" else shape
        return output

    def _constant(self, array: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        self.shapes[name] = array.shape
        return name
