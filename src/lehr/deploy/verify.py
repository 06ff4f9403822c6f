"""Check that the same network gives the same answers everywhere: torch, the reference run, C, ONNX.

for check in verify(model, net, images):
    print(check)        # "reference run: 364 images, 0 classes and 0 logits differ from torch"
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from lehr.deploy.engine import CompilerError, compile
from lehr.deploy.integer_net import Affine, IntegerNet
from lehr.deploy.plan import LEVELS

_BATCH = 500


@dataclass(frozen=True)
class Check:
    """How many of `images` got another class than `reference` gave, and the largest difference of a logit.

    A network of one output has no classes: there another one is an output that differs by more than a hundredth of the
    largest. `exact`: logits must be equal too.
    """

    backend: str
    reference: str
    images: int
    classes: int
    logits: float
    exact: bool = False

    @property
    def passed(self) -> bool:
        """Whether every image got the same class, and the same logits if they must be."""
        return self.classes == 0 and not (self.exact and self.logits != 0)

    def __str__(self) -> str:
        logits = "are equal" if self.logits == 0 else f"differ by at most {self.logits:.2g}"
        found = f"{self.images} images, {self.classes} classes differ from {self.reference}"
        return f"{self.backend}: {found}, logits {logits}"


@torch.inference_mode()
def verify(model: nn.Module | None, net: IntegerNet, images: Tensor, *, qonnx: bool = False) -> Iterator[Check]:
    """The reference run against the trained `model` (in eval mode) if there is one, then every backend against it.

    `qonnx` has QONNX executed too where that package is installed, node by node and slowly.

    The model's logits are floats, so the reference run may differ from them in the last bits, never in the class;
    the backends must equal the reference run bit for bit, but for layers that are left in floats.
    """
    last = net.operations[-1]
    floats = {name for name, value in net.values.items() if value.kind == "float"}
    exact = not floats or (floats == {last.name} and isinstance(last, Affine))
    reference = _over(lambda x: net.run(x.numpy()), images)
    if model is not None:
        yield _compared(
            "reference run", "torch", reference, _over(lambda x: model(x).flatten(1).float().numpy(), images)
        )
    try:
        levels = LEVELS[: LEVELS.index(compile(net).level) + 1]
    except CompilerError as error:
        warnings.warn(f"C is not checked: {error}", stacklevel=2)
        levels = ()
    for level in levels:
        engine = compile(net, kernels=level)
        found = _over(lambda x, e=engine: e(x.numpy()), images)
        yield _compared(f"C, {level}", "the reference run", found, reference, exact=exact)
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"):
        yield _compared("ONNX, onnxruntime", "the reference run", _over(_onnx(net), images), reference, exact=exact)
        if qonnx and importlib.util.find_spec("qonnx"):
            found = _over(lambda x: _run_qonnx(net, x.numpy()), images)
            yield _compared("QONNX, qonnx", "the reference run", found, reference, exact=exact)


def _over(run: Callable[[Tensor], np.ndarray], images: Tensor) -> np.ndarray:
    return np.concatenate([run(batch) for batch in images.split(_BATCH)])


def _compared(backend: str, reference: str, found: np.ndarray, expected: np.ndarray, *, exact: bool = False) -> Check:
    apart = np.abs(found - expected)
    if expected.shape[1] == 1:
        other = ~(apart[:, 0] <= 0.01 * np.abs(expected).max())
    else:
        other = found.argmax(1) != expected.argmax(1)
    return Check(backend, reference, len(found), int(other.sum()), float(apart.max()), exact)


def _onnx(net: IntegerNet) -> Callable[[Tensor], np.ndarray]:
    import onnxruntime

    from lehr.deploy.to_onnx import to_onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        to_onnx(net, path)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: np.asarray(session.run(None, {name: x.numpy()})[0])


def _run_qonnx(net: IntegerNet, images: np.ndarray) -> np.ndarray:
    import onnx
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    from lehr.deploy.to_onnx import to_qonnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        to_qonnx(net, path, batch=len(images))
        model = ModelWrapper(str(path))
        # It runs each node as a model of the newest IR version its onnx knows; onnxruntime reads up to 13.
        with patch.object(onnx, "IR_VERSION", 13):
            return np.asarray(execute_onnx(model, {"pixels": images})["logits"])
