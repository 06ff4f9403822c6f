"""Integer networks as ONNX files: `to_onnx` in standard operators, `to_qonnx` in the dialect of the qonnx package.

Both take uint8 `pixels`, or an int8 or float32 `input`, and give the float32 `logits` and the int32 `scores` they come
from; of several outputs each under its name, and its integers under name.scores. Shapes are those torch gives. Between
them integers ride in float32, which holds them exactly up to 2^24; a network whose sums could go beyond is refused, so
the scores equal those of `IntegerNet.run` bit for bit in any runtime that computes float32 convolutions by multiplying
and adding. onnx_nodes.py writes what both have in common.

    operation      to_onnx                                           to_qonnx
    Table          Gather at pixel + 256 * channel                   the same
    Floats         the input itself                                  the same
    Round          Sub, Mul, Add, Floor, Where, Min                  the same
    Conv, Linear   INT2, INT4 or INT8 weights, DequantizeLinear      float weights, Quant
    Threshold      GreaterOrEqual and Where, or a binary search      MultiThreshold
    Requantize     the same as a Threshold                           the same
    MaxPool        MaxPool                                           the same
    SumPool        a convolution with ones                           the same
    Affine         Mul, Add                                          the same
    Clip           Clip                                              the same
    Add            Add, after Mul where a factor is not 1            the same
    Multiply       Mul                                               the same
    Flatten        Flatten                                           the same
    Concat         Concat                                            the same
    Take           Gather from the flat source                       the same

Float operations are float32 operations there; a runtime may round them in its own order.

>>> import numpy as np, onnxruntime, tempfile
>>> from lehr.deploy.integer_net import IntegerNet
>>> from lehr.deploy.operations import Flatten, Linear, Table, Weights
>>> net = IntegerNet((1, 1, 2), (
...     Table("pixels", np.arange(256)[None] // 128),
...     Flatten("flat", "pixels"),
...     Linear("sums", "flat", Weights.of([[1, -1], [0, 1]])),
... ))
>>> with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
...     to_onnx(net, file.name)
...     session = onnxruntime.InferenceSession(file.name)
>>> session.run(["scores"], {"pixels": np.array([[[[200, 7]]]], dtype=np.uint8)})
[array([[1, 0]], dtype=int32)]
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper
from typing_extensions import override

from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.onnx_nodes import Writer
from lehr.deploy.operations import Threshold, Weights

_MOST_CUTS = 2**26  # thresholds of one QONNX node
OLDEST_OPSET, NEWEST_OPSET = 13, 25
# From which opset on there are constants of this width, and what holds them.
_WEIGHT_TYPES = ((25, 2, ml_dtypes.int2), (21, 4, ml_dtypes.int4), (OLDEST_OPSET, 8, np.int8))
_IR_VERSIONS = ((25, 13), (21, 10), (OLDEST_OPSET, 7))  # of the file format, by the opset that needs it
_COMPARED = 4  # up to this many thresholds, comparing with each takes fewer passes than a binary search


def to_onnx(net: IntegerNet, path: str | Path, *, opset: int = NEWEST_OPSET) -> None:
    """Write the network as an ONNX file for stock runtimes.

    Args:
        net: the network.
        path: the file to write.
        opset: the version of ONNX's operators, 13 to 25: an older runtime reads an older one. Weights take 2 bits each
            from 25 on, 4 from 21 on and 8 before that, or as many as their levels need.
    """
    Path(path).write_bytes(_Standard(net, "image", opset).model().SerializeToString())


def to_qonnx(net: IntegerNet, path: str | Path, *, batch: int = 1) -> None:
    """Write the network as a QONNX file for `batch` images at a time: that dialect's tools want every shape fixed."""
    Path(path).write_bytes(_Qonnx(net, batch).model().SerializeToString())


class _Standard(Writer):
    """Standard operators; weights in the narrowest integers that the opset has."""

    def __init__(self, net: IntegerNet, batch: int | str, opset: int) -> None:
        if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
            raise ValueError(f"opset is {OLDEST_OPSET} to {NEWEST_OPSET}, got {opset}")
        super().__init__(net, batch)
        self.opset = opset
        self.opsets = (("", opset),)
        self.ir_version = next(version for since, version in _IR_VERSIONS if opset >= since)

    @override
    def weights(self, name: str, weights: Weights) -> str:
        bits = _signed_bits(weights)
        dtype = next(dtype for since, width, dtype in _WEIGHT_TYPES if self.opset >= since and bits <= width)
        packed = self.constant(weights.values.astype(dtype), f"{name}.weight")
        result = self.free(f"{name}.dequantized")
        one = self.constant(np.array(1, np.float32))
        self.nodes.append(helper.make_node("DequantizeLinear", [packed, one], [result]))
        return result

    @override
    def codes(self, threshold: Threshold, source: str, shape: tuple[int, ...]) -> str:
        columns = threshold.thresholds.astype(np.float32).T  # (K, channel)
        levels = np.array(threshold.levels, np.float32)
        if len(columns) > _COMPARED:
            return self._searched(threshold, source, shape)
        result = self.constant(levels[0])
        for k, (column, level) in enumerate(zip(columns, levels[1:], strict=True)):
            reached = self.node("GreaterOrEqual", [source, self.per_channel(column, shape)], shape, TensorProto.BOOL)
            name = threshold.name if k == len(columns) - 1 else ""
            result = self.node("Where", [reached, self.constant(level), result], shape, name=name)
        return result

    def _searched(self, threshold: Threshold, source: str, shape: tuple[int, ...]) -> str:
        """The number of thresholds reached, bit by bit from the highest: each step looks one threshold up."""
        channels, count = threshold.thresholds.shape
        bits = count.bit_length()
        padded = np.full((channels, 2**bits), np.inf, np.float32)  # column k is reached by code k; no value reaches inf
        padded[:, 1 : count + 1] = threshold.thresholds
        rows = self.per_channel(np.arange(channels, dtype=np.int32) * 2**bits, shape)
        table = self.constant(padded.reshape(-1))
        code, candidate = (self.constant(np.array(x, np.int32)) for x in (0, 2 ** (bits - 1)))
        cut = self.per_channel(padded[:, 2 ** (bits - 1)], shape)
        for bit in reversed(range(bits)):
            if bit < bits - 1:
                step = self.constant(np.array(2**bit, np.int32))
                candidate = self.node("Add", [code, step], shape, TensorProto.INT32)
                place = self.node("Add", [candidate, rows], shape, TensorProto.INT32)
                cut = self.node("Gather", [table, place], shape)
            reached = self.node("GreaterOrEqual", [source, cut], shape, TensorProto.BOOL)
            code = self.node("Where", [reached, candidate, code], shape, TensorProto.INT32)
        levels = self.constant(np.array(threshold.levels, np.float32))
        return self.node("Gather", [levels, code], shape, name=threshold.name)


class _Qonnx(Writer):
    """Quant and MultiThreshold, the operators of the qonnx package."""

    opsets = (("", 13), ("qonnx.custom_op.general", 1))
    ir_version = 8
    _DOMAIN = "qonnx.custom_op.general"

    @override
    def weights(self, name: str, weights: Weights) -> str:
        bits = max(2, _signed_bits(weights))
        values = self.constant(weights.values.astype(np.float32), f"{name}.weight")
        one, zero, width = (self.constant(np.array(x, np.float32)) for x in (1, 0, bits))
        narrow = int(weights.levels[0] > -(2 ** (bits - 1)))
        result = self.free(f"{name}.quantized")
        attributes = {"signed": 1, "narrow": narrow, "rounding_mode": "ROUND"}
        node = helper.make_node("Quant", [values, one, zero, width], [result], domain=self._DOMAIN, **attributes)
        self.nodes.append(node)
        self.infos.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, weights.codes.shape))
        return result

    @override
    def codes(self, threshold: Threshold, source: str, shape: tuple[int, ...]) -> str:
        """A jump of several units is as many equal thresholds: MultiThreshold counts by one unit."""
        jumps = np.diff(np.array(threshold.levels))
        if (jumps <= 0).any():
            raise ValueError(f"{threshold.name}: QONNX needs levels that rise, got {threshold.levels}")
        unit = int(np.gcd.reduce(jumps))
        count = int(jumps.sum()) // unit * len(threshold.thresholds)
        if count > _MOST_CUTS:
            raise ValueError(
                f"{threshold.name}: QONNX would need {count:,} thresholds for it, more than {_MOST_CUTS:,}"
            )
        cuts = np.repeat(threshold.thresholds.astype(np.float32), jumps // unit, axis=1)
        low, high = min(threshold.levels), max(threshold.levels)
        bits = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)
        return self.node(
            "MultiThreshold",
            [source, self.constant(cuts)],
            shape,
            name=threshold.name,
            domain=self._DOMAIN,
            out_scale=float(unit),
            out_bias=float(low),
            out_dtype=f"INT{bits + 1}" if low < 0 else f"UINT{max(1, bits)}",
            data_layout="NCHW" if len(shape) == 3 else "NC",
        )


def _signed_bits(weights: Weights) -> int:
    """Width of the narrowest signed integer that holds all levels."""
    low, high = int(weights.levels[0]), int(weights.levels[-1])
    return 1 + max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)
