"""Integer networks as ONNX files: `to_onnx` in standard operators, `to_qonnx` in the dialect of the qonnx package.

Both take uint8 pixels and give the float32 `logits` and the int32 `scores` they come from. Between them integers ride
in float32, which holds them exactly up to 2^24; a network whose sums could go beyond is refused, so the scores equal
those of `IntegerNet.run` bit for bit in any runtime that computes float32 convolutions by multiplying and adding.

    operation      to_onnx                                           to_qonnx
    Table          Gather at pixel + 256 * channel                   the same
    Conv, Linear   INT2, INT4 or INT8 weights, DequantizeLinear      float weights, Quant
    Threshold      GreaterOrEqual and Where, or a binary search      MultiThreshold
    SumPool        a convolution with ones                           the same
    Affine         Mul, Add                                          the same

Float operations are float32 operations there; a runtime may round them in its own order.

>>> import numpy as np, onnxruntime, tempfile
>>> from lehr.deploy.integer_net import Flatten, IntegerNet, Linear, Table, Weights
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

from lehr.deploy.integer_net import IntegerNet

# onnx is imported when a file is written: lehr.deploy imports this module at once, see there.


def to_onnx(net: IntegerNet, path: str | Path) -> None:
    """Write the network as an ONNX file for stock runtimes (opset 25, which brought 2-bit weights)."""
    from lehr.deploy.onnx_writer import Standard

    Path(path).write_bytes(Standard(net, "image").model().SerializeToString())


def to_qonnx(net: IntegerNet, path: str | Path, *, batch: int = 1) -> None:
    """Write the network as a QONNX file for `batch` images at a time: that dialect's tools want every shape fixed."""
    from lehr.deploy.onnx_writer import Qonnx

    Path(path).write_bytes(Qonnx(net, batch).model().SerializeToString())
