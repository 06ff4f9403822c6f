"""Check that the same network gives the same answers everywhere: torch, the reference run, C, ONNX.

for check in verify(model, net, images):
    print(check)        # "reference run: 364 images, 0 classes differ from torch, logits are equal"

The backends must equal the reference run bit for bit. The reference run must give torch's classes; an image that gets
another one is a tie, and no failure, where rounding decides in torch too: two logits that are equal to the last bits
or, if the network is not `exact`, a value that is that close to a threshold.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lehr.composed import taken_apart
from lehr.deploy.build import CompilerError
from lehr.deploy.cpu import available, compile
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Affine, Floats, Requantize, Threshold
from lehr.deploy.run_onnx import onnx_runner, run_qonnx
from lehr.quantizer import AbstractQuantizer

_BATCH = 500
_ROUNDING = 2.0**-18  # of the largest value: the last bits of a sum of thousands of float32


@dataclass(frozen=True)
class Check:
    """How many of `images` got another class than `reference` gave, and the largest difference of a logit.

    A class for each pixel must be the same at all of them. A network of one number, or of several outputs, has no
    classes: there another one is an output that differs by more than a hundredth of the largest. `ties` of them are
    decided by rounding. `exact`: logits must be equal too.
    """

    backend: str
    reference: str
    images: int
    classes: int
    logits: float
    exact: bool = False
    ties: int = 0

    @property
    def passed(self) -> bool:
        """Whether every image got the same class, but for ties, and the same logits if they must be."""
        return self.classes == self.ties and not (self.exact and self.logits != 0)

    def __str__(self) -> str:
        logits = "are equal" if self.logits == 0 else f"differ by at most {self.logits:.2g}"
        found = f"{self.images} images, {self.classes} classes differ from {self.reference}"
        if self.ties:
            found += f" ({self.ties} of them ties that rounding decides)"
        return f"{self.backend}: {found}, logits {logits}"


@torch.inference_mode()
def verify(model: nn.Module | None, net: IntegerNet, images: Tensor, *, qonnx: bool = False) -> Iterator[Check]:
    """The reference run against the trained `model` (in eval mode) if there is one, then every backend against it.

    `qonnx` has QONNX executed too where that package is installed, node by node and slowly.

    The model's logits are floats, so the reference run may differ from them in the last bits; the backends must equal
    the reference run bit for bit, but for layers that are left in floats.
    """
    ends = {output.value for output in net.outputs}
    computed = [operation for operation in net.operations if not isinstance(operation, Floats)]
    floats = [operation for operation in computed if net.values[operation.name].kind == "float"]
    exact = all(operation.name in ends and isinstance(operation, Affine) for operation in floats)
    reference = _over(lambda x: net.run(x.numpy()), images)
    if model is not None:
        expected = _over(lambda x: _numbers(model(x)), images)
        check = _compared("reference run", "torch", reference, expected)
        if check.classes:
            other = images[torch.from_numpy(_other_class(reference, expected))]
            check = replace(check, ties=sum(is_tie(model, net, image[None]) for image in other))
        yield check
    try:
        instruction_sets = available()[1:]  # without the plain loops, which take a second an image
    except CompilerError as error:
        warnings.warn(f"C is not checked: {error}", stacklevel=2)
        instruction_sets = ()
    for name in instruction_sets:
        engine = compile(net, instruction_set=name)
        found = _over(lambda x, e=engine: e(x.numpy()), images)
        yield _compared(f"C, {name}", "the reference run", found, reference, exact=exact)
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"):
        yield _compared(
            "ONNX, onnxruntime", "the reference run", _over(onnx_runner(net), images), reference, exact=exact
        )
        if qonnx and importlib.util.find_spec("qonnx"):
            found = _over(lambda x: run_qonnx(net, x.numpy()), images)
            yield _compared("QONNX, qonnx", "the reference run", found, reference, exact=exact)


def _over(run: Callable[[Tensor], Any], images: Tensor) -> np.ndarray:
    return np.concatenate([_joined(run(batch)) for batch in images.split(_BATCH)])


def _numbers(result: Any) -> Any:
    """What the trained network gives, as numpy: a tensor, or several in a dictionary or a tuple."""
    if isinstance(result, Tensor):
        return result.float().cpu().numpy()
    named = result.items() if isinstance(result, Mapping) else enumerate(result)
    return {name: _numbers(value) for name, value in named}


def _joined(result: Any) -> np.ndarray:
    """One output as it is; several as (image, all numbers, 1), which have no classes."""
    if not isinstance(result, dict):
        return np.asarray(result)
    flat = [np.asarray(output).reshape(len(output), -1) for output in result.values()]
    return np.concatenate(flat, axis=1)[:, None]


def _compared(backend: str, reference: str, found: np.ndarray, expected: np.ndarray, *, exact: bool = False) -> Check:
    other = _other_class(found, expected)
    return Check(backend, reference, len(found), int(other.sum()), float(np.abs(found - expected).max()), exact)


def _other_class(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    images = len(expected)
    if expected.ndim == 1 or expected.shape[1] == 1:
        close = np.abs(found - expected) <= 0.01 * np.abs(expected).max()
        return ~close.reshape(images, -1).all(1)
    return (found.argmax(1) != expected.argmax(1)).reshape(images, -1).any(1)


@torch.no_grad()
def is_tie(model: nn.Module, net: IntegerNet, image: Tensor) -> bool:
    """Whether the first place at which `net` and the `model` it was frozen from differ is decided by rounding.

    That place is a quantizer with an input within rounding of a threshold; if all quantizers agree, it is the logits,
    two of which lie within rounding of each other.

    Args:
        model: The trained network, in eval mode.
        net: What `freeze` made of it.
        image: A batch of one image.
    """
    inputs: dict[str, tuple[AbstractQuantizer, Tensor]] = {}
    model = taken_apart(model).eval()

    def note(path: str, module: AbstractQuantizer, args: tuple[Tensor, ...]) -> None:
        name, number = path, 1
        while name in inputs:  # it runs again: its next operation has the next number
            number += 1
            name = f"{path}#{number}"
        inputs[name] = module, args[0]

    for path, module in model.named_modules():
        if isinstance(module, AbstractQuantizer):
            module.register_forward_pre_hook(functools.partial(note, path))
    logits = torch.from_numpy(_joined(_numbers(model(image)))).flatten().double()
    values = net.trace(image)
    for operation in net.operations:
        if not isinstance(operation, Threshold | Requantize) or operation.name not in inputs:
            continue
        quantizer, x = inputs[operation.name]
        is_even = isinstance(operation, Requantize)
        levels = range(operation.low, operation.high + 1) if is_even else operation.levels
        code = torch.searchsorted(torch.tensor(levels), values[operation.name].contiguous()).reshape(x.shape)
        differs = quantizer.codes(x) != code
        if bool(differs.any()):
            reach = _ROUNDING * x.abs().max()
            return bool(((quantizer.codes(x - reach) == code) | (quantizer.codes(x + reach) == code))[differs].all())
    found = torch.from_numpy(_joined(net.run(image.numpy()))).flatten()
    apart = torch.maximum((found - logits).abs().max(), logits.max() - logits[found.argmax()])
    return bool(apart <= _ROUNDING * logits.abs().max())
