"""The bridge from layers to integers: `freeze` turns a trained network into an `IntegerNet`.

The network is traced with torch.fx (trace.py) and walked once (walk.py); a table (converters.py) says what becomes of
each module and function, and `freeze(..., converters=...)` adds to it.

Every integer of the result is the one that the trained network (float32, in eval mode) computes, if the walk can prove
it: `IntegerNet.exact`. The proof is that each of torch's sums adds integers times a power of two and stays below 2^24
of them, where float32 does not round, so that no order of adding and no processor can change it; and that no rounding
of BatchNorm can carry such a sum across a threshold. Where the proof fails (an average over 9 or a scale of 0.3 in
front of another layer, a part in float), `IntegerNet.inexact` names the place: both agree to the last bits there, and
only a value within those of a threshold can differ.

Layers that were not quantized stay float operations, and so does an addition without a common unit, which `quantize_`
gives both sides unless it is told not to. A quantized layer that reads floats is warned about: it works, but not as
integers; so is a network without any integer layer, and `IntegerNet.summary` lists what is float.

>>> import torch, lehr
>>> class Pixels(torch.nn.Module):
...     def forward(self, x):
...         return x.float() / 255
>>> step = lehr.Quantizer(forward=lehr.Dirac())
>>> layer = lehr.Linear(4, 2, bias=False, quantizer=lehr.Quantizer(forward=lehr.Dirac()))
>>> model = torch.nn.Sequential(Pixels(), step, torch.nn.Flatten(), layer).eval()
>>> images = torch.randint(0, 256, (5, 1, 2, 2), dtype=torch.uint8)
>>> net = freeze(model, images)
>>> [type(operation).__name__ for operation in net.operations]
['Table', 'Flatten', 'Linear', 'Affine']
>>> torch.equal(net.run(images), model(images))
True
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lehr.composed import Composed, taken_apart
from lehr.deploy.conversion import Converter
from lehr.deploy.converters import CONVERTERS
from lehr.deploy.freeze_errors import FloatWarning, FreezeError
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.trace import LAYERS, Graph
from lehr.deploy.walk import Walk, kind_of
from lehr.noise import Dirac
from lehr.quantizer import Quantizer
from lehr.tracing import inside


def freeze(
    model: nn.Module,
    example_input: Tensor | np.ndarray,
    *,
    classes: Sequence[str] = (),
    converters: Mapping[type[nn.Module] | Callable[..., Any], Converter] | None = None,
) -> IntegerNet:
    """The trained `model` as a network of integers.

    BatchNorm must be in eval mode: call model.eval() first. No noise may be left. The model is not changed. FreezeError
    says what cannot be converted: the module's path, why, and what to do.

    Args:
        model: A network that begins with what makes integers of pixels or signals, such as `lehr.models.Input`.
        example_input: A batch as the model takes it, of uint8 (pixels), int8 or float32 (signals), of one to three
            dimensions behind the first; torch or numpy.
        classes: Names for the classes.
        converters: For module classes or functions, what becomes of them: entries that are added to
            `lehr.deploy.converters.CONVERTERS`, or replace its own.
    """
    model = inside(model)
    _check_ready(model)
    example = checked_example(example_input)
    composed = [
        f"{path or type(module).__name__}: it is deployed as several layers, which add in another order than torch"
        for path, module in model.named_modules()
        if isinstance(module, Composed)
    ]
    model = taken_apart(model).cpu().float().eval()
    table = {**CONVERTERS, **(converters or {})}
    if kind_of(model, table) is not None:
        model = nn.Sequential(model)
    with torch.no_grad():
        graph = Graph(model, example, lambda module: kind_of(module, table) is not None)
        net = Walk(graph, example, table).net(tuple(classes), composed)
    summary = net.summary()
    if summary.macs and summary.float_share == 1:
        warnings.warn(
            "all of this network runs in float: convert it with lehr.quantize_, and let it begin with what makes "
            "integers of its input, such as lehr.models.Input(..., bits=8)",
            FloatWarning,
            stacklevel=2,
        )
    return net


def checked_example(example: Tensor | np.ndarray) -> Tensor:
    """The first image twice: what mixes the images of a batch shows in the shapes."""
    if isinstance(example, np.ndarray):
        example = torch.from_numpy(np.ascontiguousarray(example))
    if not isinstance(example, Tensor):
        raise TypeError(f"example_input is a torch tensor or a numpy array, got {type(example).__name__}")
    if example.dtype not in (torch.uint8, torch.int8, torch.float32):
        raise FreezeError(
            "example of another type",
            f"example_input is a batch of uint8 (pixels), int8 or float32 (signals), got {example.dtype}: convert it, "
            "and let the model begin with lehr.models.Input or lehr.models.SignalInput",
        )
    if example.ndim == 5:
        raise FreezeError(
            "three dimensions",
            f"example_input has three dimensions behind its channels, shape {tuple(example.shape)}, and integer "
            "networks have rows and columns; use two dimensions",
        )
    if not 2 <= example.ndim <= 4 or not len(example):
        raise FreezeError(
            "example is not a batch",
            "example_input is a batch of one example or more, (batch, features), (batch, channel, time) or (batch, "
            f"channel, row, column), got shape {tuple(example.shape)}",
        )
    return torch.cat([example[:1], example[:1]]).cpu()


def check_weights(model: nn.Module) -> None:
    """Raise FreezeError if a weight is no parameter: torch computes it anew in each forward, and cannot copy it."""
    for path, module in model.named_modules():
        weight = vars(module).get("weight")
        if isinstance(weight, Tensor) and weight.grad_fn is not None:
            raise FreezeError(
                "weight of a hook",
                f"{path or type(module).__name__}: its weight is computed by a hook, as torch.nn.utils.weight_norm "
                "does; remove it, torch.nn.utils.remove_weight_norm(module), before lehr.quantize_",
            )


def _check_ready(model: nn.Module) -> None:
    check_weights(model)
    for path, module in model.named_modules():
        path = path or type(module).__name__
        if isinstance(module, (*LAYERS, nn.modules.batchnorm._BatchNorm)):
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if bool(tensor.isnan().any()):
                    raise FreezeError(
                        "values that are no numbers",
                        f"{path}: its {name} holds NaN: train with a smaller learning rate",
                    )
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.training:
                raise FreezeError(
                    "BatchNorm in training mode",
                    f"{path}: this {type(module).__name__} is in training mode, where its output depends on the batch: "
                    "call model.eval() first",
                )
            if module.running_mean is None:
                raise FreezeError(
                    "BatchNorm without statistics",
                    f"{path}: this {type(module).__name__} keeps no running statistics, so its output depends on the "
                    "batch: train with track_running_stats=True",
                )
        if isinstance(module, Quantizer):
            std, mean = module.forward_std, module.forward_mean
            noisy = module.forward_kind is not Dirac and bool((std > 0).any())
            if noisy or (mean is not None and bool((mean != 0).any())):
                raise FreezeError(
                    "noise is left",
                    f"{path}: its forward noise is still {module.forward_noise}: train until a lehr.Annealer has "
                    "removed it, or remove it yourself (forward_std.zero_()) if the hard network is as good (a copy "
                    "that averages buffers, as AveragedModel(use_buffers=True) does, averages the noise too)",
                )
