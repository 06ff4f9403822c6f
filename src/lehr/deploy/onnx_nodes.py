"""Operations of integer networks as nodes of an ONNX graph: what all dialects have in common.

A `Writer` appends the nodes of one operation after the other; a dialect (write_onnx.py) says how weights and thresholds
are written.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import (
    Add,
    Affine,
    Clip,
    Concat,
    Conv,
    Flatten,
    Floats,
    Linear,
    MaxPool,
    Multiply,
    Operation,
    Requantize,
    Round,
    SumPool,
    Table,
    Take,
    Threshold,
    Weights,
)

_EXACT = 2**24  # float32 holds every integer up to here, thresholds one past the largest sum too
_INPUT_TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "float32": TensorProto.FLOAT}


class Writer(ABC):
    """Writes the operations one after the other; a dialect says how weights and thresholds are written."""

    opsets: Sequence[tuple[str, int]]
    ir_version: int

    def __init__(self, net: IntegerNet, batch: int | str) -> None:
        for name, value in net.values.items():
            if value.kind == "integer" and max(-value.low, value.high) >= _EXACT:
                raise ValueError(
                    f"{name}: its sums reach {value.low}..{value.high}, and ONNX runtimes compute in float32, exact "
                    f"only below {_EXACT}: use the packed file or C, or smaller levels"
                )
        self.net = net
        self.batch = batch
        self.nodes: list[onnx.NodeProto] = []
        self.infos: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.names: set[str] = set()
        self.numbers: dict[str, int] = {}  # the last number that made a name free
        self.input = "pixels" if net.input_dtype == "uint8" else "input"
        self.reserved = {"logits", "scores"}.union(*({x.name, f"{x.name}.scores"} for x in net.outputs))
        self.tensors: dict[str, tuple[str, tuple[int, ...]]] = {}  # of a value: its tensor, and its shape for an image

    @abstractmethod
    def weights(self, name: str, weights: Weights) -> str:
        """Write quantized weights; the float32 tensor a convolution reads."""

    @abstractmethod
    def codes(self, threshold: Threshold, source: str, shape: tuple[int, ...]) -> str:
        """Write a multi-step function of direction * s, which is the tensor `source`; the tensor of its values."""

    def model(self) -> onnx.ModelProto:
        """The whole file."""
        shape = [self.batch, *self.net.input_shape]
        given = helper.make_tensor_value_info(self.input, _INPUT_TYPES[self.net.input_dtype], shape)
        self.names.add(self.input)
        for operation in self.net.operations:
            self.tensors[operation.name] = self._operation(operation)
        graph = helper.make_graph(
            self.nodes, "lehr", [given], self._outputs(), self.initializers, value_info=self.infos
        )
        imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets]
        model = helper.make_model(graph, opset_imports=imports, ir_version=self.ir_version, producer_name="lehr")
        if self.net.classes:
            helper.set_model_props(model, {"classes": json.dumps(self.net.classes)})
        onnx.checker.check_model(model)
        return model

    def _operation(self, operation: Operation) -> tuple[str, tuple[int, ...]]:
        value, name = self.net.values[operation.name], operation.name
        sources = [self.tensors[source] for source in operation.sources]
        shape: tuple[int, ...] = value.shape
        if not sources:
            sources = [self._input()]
        source, source_shape = sources[0]
        match operation:
            case Table():
                return self._table(operation, source, source_shape), source_shape
            case Floats():
                return source, source_shape
            case Round():
                return self._round(operation, source, source_shape), source_shape
            case Conv():
                source = self._shaped(source, source_shape, self.net.values[operation.source].shape)
                attributes = {"group": operation.groups, "dilations": operation.dilation}
                return self._windows("Conv", [source, self._weight(name, operation.weight)], operation, **attributes)
            case Linear():
                source = self._shaped(source, source_shape, (math.prod(source_shape),))
                weight = self._weight(name, operation.weight)
                return self.node("Gemm", [source, weight], shape[:1], name=name, transB=1), shape[:1]
            case MaxPool():
                source = self._shaped(source, source_shape, self.net.values[operation.source].shape)
                return self._windows("MaxPool", [source], operation, kernel_shape=operation.kernel)
            case SumPool():
                source = self._shaped(source, source_shape, self.net.values[operation.source].shape)
                ones = self.weights(name, Weights(np.zeros((shape[0], 1, *operation.kernel), np.uint8), (1,)))
                return self._windows("Conv", [source, ones], operation, group=shape[0])
            case Threshold() | Requantize():
                operation = operation.threshold() if isinstance(operation, Requantize) else operation
                shape = source_shape
                if (operation.directions < 0).any():
                    signs = self.per_channel(operation.directions.astype(np.float32), shape)
                    source = self.node("Mul", [source, signs], shape)
                return self.codes(operation, source, shape), shape
            case Affine():
                if self.net.values[operation.source].kind == "integer":
                    # Keeps runtimes from folding the scale into the weights before, where sums would be rounded.
                    source = self.node("Cast", [source], source_shape, TensorProto.INT32, to=TensorProto.INT32)
                    source = self.node("Cast", [source], source_shape, to=TensorProto.FLOAT)
                scale, shift = (self.per_channel(x, source_shape) for x in (operation.scale, operation.shift))
                product = self.node("Mul", [source, scale], source_shape)
                return self.node("Add", [product, shift], source_shape, name=name), source_shape
            case Clip():
                bounds = [
                    self.constant(np.array(bound, np.float32)) if math.isfinite(bound) else ""
                    for bound in (operation.low, operation.high)
                ]
                return self.node("Clip", [source, *bounds], source_shape, name=name), source_shape
            case Add():
                shaped = [self._shaped(*x, source_shape) for x in sources]
                for side, factor in enumerate((operation.first_factor, operation.second_factor)):
                    if factor != 1:
                        number = self.constant(np.array(factor, np.float32))
                        shaped[side] = self.node("Mul", [shaped[side], number], source_shape)
                return self.node("Add", shaped, source_shape, name=name), source_shape
            case Multiply():
                second, second_shape = sources[1]
                wanted = self.net.values[operation.second].shape if len(source_shape) == 3 else source_shape
                shaped = [source, self._shaped(second, second_shape, wanted)]
                return self.node("Mul", shaped, source_shape, name=name), source_shape
            case Concat():
                shaped = [
                    self._shaped(*x, self.net.values[part].shape)
                    for x, part in zip(sources, operation.parts, strict=True)
                ]
                return self.node("Concat", shaped, shape, name=name, axis=1), shape
            case Take():
                return self._take(operation, self._shaped(source, source_shape, (math.prod(source_shape),))), shape
            case Flatten():
                return self._shaped(source, source_shape, (value.size,)), (value.size,)
            case _:
                raise TypeError(f"{name}: no ONNX for a {type(operation).__name__}")

    def _take(self, operation: Take, flat: str) -> str:
        """Gather; what is filled is taken from one place more, behind the last."""
        shape, size = self.net.values[operation.name].shape, self.net.values[operation.source].size
        if operation.is_filled:
            pads, fill = self.constant(np.array([0, 0, 0, 1])), self.constant(np.array(operation.fill, np.float32))
            flat = self.node("Pad", [flat, pads, fill], (size + 1,))
        shapes = ((-1, 1, 1), (-1, 1), (-1,))
        offsets = [
            self.constant(np.where(x < 0, size, x.astype(np.int64)).reshape(wanted))
            for x, wanted in zip(operation.offsets, shapes, strict=True)
        ]
        # Added by the runtime, when it loads the file: as a constant the sum would have an entry for each place.
        places = self._constant_node("Add", offsets[:2], (*shape[:2], 1))
        places = self._constant_node("Add", [places, offsets[2]], shape)
        places = self._constant_node("Min", [places, self.constant(np.array(size))], shape)
        return self.node("Gather", [flat, places], shape, name=operation.name, axis=1)

    def _constant_node(self, operator: str, inputs: Sequence[str], shape: tuple[int, ...]) -> str:
        """Append a node whose int64 result is the same for all images."""
        output = self.free(operator)
        self.nodes.append(helper.make_node(operator, list(inputs), [output]))
        self.infos.append(helper.make_tensor_value_info(output, TensorProto.INT64, shape))
        return output

    def _windows(
        self, operator: str, inputs: Sequence[str], operation: Conv | MaxPool | SumPool, **attributes: Any
    ) -> tuple[str, tuple[int, ...]]:
        shape = self.net.values[operation.name].shape
        pads = [*operation.padding, *operation.padding]
        result = self.node(
            operator, inputs, shape, name=operation.name, strides=operation.stride, pads=pads, **attributes
        )
        return result, shape

    def _shaped(self, tensor: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
        """Reshape to flat or to (channel, 1, 1)."""
        if len(shape) == len(wanted):
            return tensor
        if len(wanted) == 1:
            return self.node("Flatten", [tensor], wanted, axis=1)
        return self.node("Unsqueeze", [tensor, self.constant(np.array([2, 3]))], wanted)

    def _input(self) -> tuple[str, tuple[int, ...]]:
        """The input, flat or with rows and columns."""
        shape = self.net.input_shape
        if len(shape) != 2:
            return self.input, shape
        wanted, dtype = self.net.input.shape, _INPUT_TYPES[self.net.input_dtype]
        return self.node("Unsqueeze", [self.input, self.constant(np.array([2]))], wanted, dtype), wanted

    def _round(self, operation: Round, source: str, shape: tuple[int, ...]) -> str:
        mean, factor = (self.per_channel(x, shape) for x in (operation.mean, operation.factor))
        half, low, high = (self.constant(np.array(x, np.float32)) for x in (0.5, -operation.limit, operation.limit))
        scaled = self.node("Mul", [self.node("Sub", [source, mean], shape), factor], shape)
        nearest = self.node("Floor", [self.node("Add", [scaled, half], shape)], shape)
        reached = self.node("GreaterOrEqual", [nearest, low], shape, TensorProto.BOOL)  # which NaN does not
        return self.node("Min", [self.node("Where", [reached, nearest, low], shape), high], shape, name=operation.name)

    def _table(self, operation: Table, source: str, shape: tuple[int, ...]) -> str:
        pixels = self.node("Cast", [source], shape, TensorProto.INT32, to=TensorProto.INT32)
        offsets = np.arange(len(operation.table), dtype=np.int32) * 256 - self.net.input.low
        if offsets.any():
            pixels = self.node("Add", [pixels, self.per_channel(offsets, shape)], shape, TensorProto.INT32)
        table = self.constant(operation.table.reshape(-1).astype(np.float32))
        return self.node("Gather", [table, pixels], shape, name=operation.name)

    def _weight(self, name: str, weight: Weights | np.ndarray) -> str:
        if isinstance(weight, Weights) and weight.is_integer:
            return self.weights(name, weight)
        return self.constant(weight.values if isinstance(weight, Weights) else weight)

    def _outputs(self) -> list[onnx.ValueInfoProto]:
        """Every output, and its scores if they are integers."""
        outputs = []
        for output in self.net.outputs:
            scores = "scores" if len(self.net.outputs) == 1 else f"{output.name}.scores"
            values = ((output.name, output.value, "float"), (scores, self.net.score_of(output), "integer"))
            for name, value, kind in values:
                if self.net.values[value].kind == kind:
                    outputs.append(self._output(name, value, output.shape))
        return outputs

    def _output(self, name: str, value: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        dtype = TensorProto.FLOAT if self.net.values[value].kind == "float" else TensorProto.INT32
        tensor, had = self.tensors[value]
        if had != shape:
            wanted = self.constant(np.array([self.batch if isinstance(self.batch, int) else -1, *shape]))
            tensor = self.node("Reshape", [tensor, wanted], shape)
        self.nodes.append(helper.make_node("Cast", [tensor], [name], to=int(dtype)))  # pyright: ignore[reportArgumentType]
        return helper.make_tensor_value_info(name, dtype, [self.batch, *shape])

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        shape: tuple[int, ...],  # for an image
        dtype: int = TensorProto.FLOAT,
        *,
        name: str = "",
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Append a node; the name of its one result."""
        output = self.free(name or f"{operator}")
        self.nodes.append(helper.make_node(operator, list(inputs), [output], domain=domain, **attributes))
        self.infos.append(helper.make_tensor_value_info(output, dtype, [self.batch, *shape]))
        return output

    def constant(self, array: np.ndarray, name: str = "constant") -> str:
        """Append a constant, unless an equal one is there; its name."""
        key = array.dtype.name, array.shape, array.tobytes()
        if key not in self.constants:
            self.constants[key] = self.free(name)
            self.initializers.append(numpy_helper.from_array(array, self.constants[key]))
        return self.constants[key]

    def per_channel(self, array: np.ndarray, shape: tuple[int, ...]) -> str:
        """A constant for each channel of a tensor that has `shape` for an image."""
        return self.constant(array.reshape(-1, *[1] * (len(shape) - 1)))

    def free(self, name: str) -> str:
        """A name nothing has yet."""
        free, number = name, self.numbers.get(name, 1)
        while free in self.names or free in self.reserved:
            number += 1
            free = f"{name}#{number}"
        self.numbers[name] = number
        self.names.add(free)
        return free
