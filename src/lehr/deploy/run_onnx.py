"""Run the ONNX and the QONNX file of a network, as others would: to compare and to time them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from lehr.deploy.integer_net import IntegerNet

if TYPE_CHECKING:
    from torch import Tensor

_OPSETS = (25, 21, 13)  # the newest that the installed onnxruntime reads is taken


def onnx_session(net: IntegerNet, path: Path) -> Any:
    """Write a network to `path` and return onnxruntime's session of it, on one thread."""
    import onnxruntime

    from lehr.deploy.write_onnx import to_onnx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3

    def session(opset: int) -> Any:
        to_onnx(net, path, opset=opset)
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    *newer, oldest = _OPSETS
    for opset in newer:
        with contextlib.suppress(Exception):  # onnxruntime's own classes of errors are not public
            return session(opset)
    return session(oldest)


def onnx_runner(net: IntegerNet) -> Callable[[Tensor], Any]:
    """Return what runs a batch in onnxruntime: the output, or several in a dictionary by their names."""
    with tempfile.TemporaryDirectory() as folder:
        session = onnx_session(net, Path(folder) / "model.onnx")
    name = session.get_inputs()[0].name
    available = [output.name for output in session.get_outputs()]
    scores = {x.name: "scores" if len(net.outputs) == 1 else f"{x.name}.scores" for x in net.outputs}
    wanted = [x.name if x.name in available else scores[x.name] for x in net.outputs]  # integers are scores alone

    def run(x: Tensor) -> Any:
        found = session.run(wanted, {name: x.numpy()})
        return dict(zip(wanted, found, strict=True)) if len(wanted) > 1 else found[0]

    return run


def run_qonnx(net: IntegerNet, images: np.ndarray) -> Any:
    """What the QONNX file of a network gives for a batch, executed by the package qonnx."""
    import onnx
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    from lehr.deploy.write_onnx import to_qonnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        to_qonnx(net, path, batch=len(images))
        model = ModelWrapper(str(path))
        # It runs each node as a model of the newest IR version its onnx knows; onnxruntime reads up to 13.
        with patch.object(onnx, "IR_VERSION", 13):
            found = execute_onnx(model, {model.graph.input[0].name: images})
        outputs = {output.name: found[output.name] for output in net.outputs}
        return outputs if len(outputs) > 1 else outputs[net.outputs[0].name]
