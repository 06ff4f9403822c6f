"""What layers become: integer sums of levels.

The weights of a quantized layer are scale * levels, so its sums are of integers; scale and bias are functions of them,
which wait for the quantizer that follows (quantizer_converter.py).
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lehr.deploy import fold
from lehr.deploy.conversion import Call
from lehr.deploy.freeze_errors import FloatWarning
from lehr.deploy.interlace import between, interlaced
from lehr.deploy.moves import moved, separated
from lehr.deploy.moves import padding as zeros_around
from lehr.deploy.net_builder import Traced
from lehr.deploy.operations import Conv, Floats, Linear, Pair, Take, Weights, as_shape
from lehr.deploy.quantizer_converter import quantized
from lehr.deploy.trace import pair
from lehr.layers import QuantizedWeight
from lehr.quantizer import AbstractQuantizer

READS_INPUT = "input is that of the network, in float"  # why a quantized layer at the beginning is not integer


def layer(call: Call) -> Traced:
    """A convolution or matrix product, of integers if it can be."""
    module = call.module
    assert isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)
    is_conv = isinstance(module, nn.Conv1d | nn.Conv2d)
    groups = module.groups if is_conv else 1
    x, weight, functions = _product(call, module, groups)
    name = call.name()
    if is_conv:
        x, padding = _padded(call, x, module)
        call.emit(Conv(name, x.name, weight, pair(module.stride, 1), padding, pair(module.dilation, 1), groups))
    else:
        call.emit(Linear(name, x.name, weight))
    return Traced(name, x.rank, functions)


def transposed(call: Call) -> Traced:
    """A transposed convolution: a convolution with an output for each place between two inputs, put between them."""
    module = call.module
    assert isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d)
    x, weight, functions = _product(call, module, module.groups)
    values = weight.values if isinstance(weight, Weights) else weight
    geometry = pair(module.stride, 1), pair(module.padding, 0), pair(module.dilation, 1)  # pyright: ignore[reportArgumentType]
    phases = between(values, geometry[0], geometry[2])
    weight = Weights.of(phases) if isinstance(weight, Weights) else phases
    name = call.name()
    around = phases.shape[2] - 1, phases.shape[3] - 1
    call.emit(Conv(name, x.name, weight, padding=around, groups=module.groups), is_last=False)
    found = call.net.values[name].shape
    offsets = interlaced(found, as_shape(call.shape[1:]), geometry[0], geometry[1])
    call.emit(Take(call.name("placed"), name, *offsets))
    return Traced(call.net.operations[-1].name, x.rank, functions)


def _product(
    call: Call, module: nn.Module, groups: int
) -> tuple[Traced, Weights | np.ndarray, tuple[fold.Function, ...]]:
    """What the layer reads, integers if it can; its weights, (out, in / groups, ...); and the functions of its sums."""
    (x,) = call.inputs
    if isinstance(module, nn.Linear) and x.rank != 2:
        raise call.error(
            "linear layer of images",
            f"its input has {x.rank} dimensions: it is applied at each place",
            "use a convolution of size 1 with "
            "the channels in dimension 1, or flatten it first if it shall read all places",
        )
    if isinstance(module, QuantizedWeight) and "input_quantizer" in module._modules:
        of_input = module.get_submodule("input_quantizer")
        assert isinstance(of_input, AbstractQuantizer)
        x = quantized(call, x, of_input, call.name("input_quantizer"))
    weight, scale = _weights(call, module)
    x, linear = _one_unit(call, x, groups)
    is_integer = isinstance(weight, Weights) and weight.is_integer and call.value(x).kind == "integer"
    if isinstance(weight, Weights) and not is_integer:
        what = f"levels {weight.levels[:4]} have no common unit" if not weight.is_integer else "input is float"
        advice = "quantize its input with one lehr.Quantizer, with one scale, and choose levels of one unit"
        if weight.is_integer and isinstance(call.net.made_by(x.name), Floats):
            what, advice = READS_INPUT, "let the network begin with lehr.models.Input.of(data), which rounds its floats"
        warnings.warn(
            f"{call.path}: its {what}, so this quantized layer runs in float; to run it as integers, {advice}",
            FloatWarning,
            stacklevel=3,
        )
    if is_integer and x.why_inexact:
        call.note(f"it sums {x.why_inexact}")
    bias = torch.zeros(len(scale)) if module.bias is None else module.bias
    assert isinstance(bias, Tensor)
    return x, weight, fold.scaled(linear.repeat_interleave(len(scale) // groups) * scale, bias.double())


def _padded(call: Call, x: Traced, module: nn.Conv1d | nn.Conv2d) -> tuple[Traced, Pair]:
    """What a convolution reads, and the zeros around it.

    Padding before it, if it is of zeros, is the convolution's own; any that is not even on both sides, or not of zeros,
    is an operation of its own.
    """
    last, first = (module._reversed_padding_repeated_twice[i::2] for i in (0, 1))
    mode = module.padding_mode
    if last != first or (mode != "zeros" and any(last)):
        shape = as_shape(call.graph.shape(call.sources[0])[1:])
        around: list[int] = module._reversed_padding_repeated_twice
        around = around if len(around) == 4 else [*around, 0, 0]
        found = moved(lambda y: F.pad(y, around, "constant" if mode == "zeros" else mode), shape)
        name = call.name("padded")
        offsets = separated(found.places)
        assert offsets is not None
        call.emit(Take(name, x.name, *offsets), is_last=False)
        return replace(x, name=name), (0, 0)
    padding = pair(first[::-1], 0)
    before = call.net.made_by(x.name)
    found = zeros_around(before, call.net.values[before.source]) if isinstance(before, Take) else None
    if isinstance(before, Take) and found is not None and all(a == b for a, b in found):
        return replace(x, name=before.source), (padding[0] + found[0][0], padding[1] + found[1][0])
    return x, padding


def _weights(call: Call, module: nn.Module) -> tuple[Weights | np.ndarray, Tensor]:
    """Weights without their scale, (out, in / groups, ...), and the scale of each output channel, float64."""
    weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
    if not isinstance(module, QuantizedWeight):
        values = _outputs_first(module, weight)
        return values.numpy(), torch.ones(len(values), dtype=torch.float64)
    quantizer = module.quantizer
    scale = torch.ones(()) if quantizer.scale is None else quantizer.scale
    one_each = [1] * weight.ndim
    one_each[module.outputs_at] = weight.shape[module.outputs_at]
    if scale.numel() > 1 and list(scale.shape) != one_each:
        raise call.error(
            "scale of another shape",
            f"its weights have scales of shape {tuple(scale.shape)}",
            "use one, or one for each output channel",
        )
    levels = torch.tensor(quantizer.levels, dtype=torch.float32)
    values = module.quantized_weight
    codes = torch.bucketize((values / scale).contiguous(), (levels[1:] + levels[:-1]) / 2)
    wrong = values != levels[codes] * scale
    if bool(wrong.any()):
        raise call.error(
            "weight at no level",
            f"its weight {values[wrong][0].item():g} is at none of its levels, {quantizer.levels} times the scale",
            "see that its weights are finite, and that its quantizer gives its scale times its levels in eval mode",
        )
    codes = _outputs_first(module, codes).numpy()
    scale = scale.double().reshape(-1).repeat(len(codes) // scale.numel())
    found = fold.common_unit(levels.numpy(), limit=128)
    if found is None or found[1].max() > 127:
        return Weights(codes, tuple(levels.tolist())), scale
    unit, integers = found
    if not fold.is_power_of_two(torch.tensor(unit, dtype=torch.float64)):
        call.note(f"its weight levels are multiples of {unit:g}, which is no power of two")
    return Weights(codes, tuple(integers.tolist())), scale * unit


def _outputs_first(module: nn.Module, weight: Tensor) -> Tensor:
    """(out, in / groups, row, column) of a convolution's weights; (out, in) of a linear layer's."""
    if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
        weight = weight[:, :, None]
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d):
        inputs, outputs, *kernel = weight.shape
        groups = weight.reshape(module.groups, inputs // module.groups, outputs, *kernel)
        weight = groups.transpose(1, 2).reshape(module.groups * outputs, -1, *kernel)
    return weight


def _one_unit(call: Call, x: Traced, groups: int) -> tuple[Traced, Tensor]:
    """The tensor as multiples of one number in each group of channels, and these numbers; else as floats.

    Channels of different scales, as concatenated branches have, are multiplied by integers up to 127.
    """
    affine = fold.composed(x.functions, call.channels(x))
    if affine is None or bool(affine[1].any()):
        return call.as_float(x), torch.ones(groups, dtype=torch.float64)
    scales = affine[0].reshape(groups, -1)
    units = scales[:, :1] if bool((scales == scales[:, :1]).all()) else scales.amin(1, keepdim=True)
    factors = scales / units
    nearest = factors.round()
    in_units = bool(((factors - nearest).abs() <= 2.0**-22 * factors).all() & (nearest <= 127).all())
    if call.value(x).kind == "float" and bool((factors != 1).any()):
        in_units = False
    if not in_units or bool((scales <= 0).any() & (factors != 1).any()):
        return call.as_float(x), torch.ones(groups, dtype=torch.float64)
    return call.times(x, nearest.reshape(-1).long()), units[:, 0]
