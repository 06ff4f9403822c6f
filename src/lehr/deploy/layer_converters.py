"""What layers and quantizers become: integer sums of levels, and one `Threshold` for all that follows them.

The weights of a quantized layer are scale * levels, so its sums are of integers; scale and bias are functions of them.
A quantizer takes all functions since the last sum and becomes integer thresholds with one direction for each channel;
many even levels become a product and a shift that equal them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from lehr.deploy import even_steps, fold
from lehr.deploy.conversion import Call
from lehr.deploy.freeze_errors import FloatWarning
from lehr.deploy.growing import Traced
from lehr.deploy.operations import Conv, Linear, Requantize, Threshold, Value, Weights
from lehr.deploy.trace import pair
from lehr.layers import AbstractQuantizer, Conv1d, Conv2d, QuantizedWeight
from lehr.layers import Linear as QuantizedLinear

_MANY_LEVELS = 16  # up to here thresholds are few enough for the fast routines to compare with each
_MOST_LOOKED_AT = 2**12  # values of a small range are looked at one by one


def layer(call: Call) -> Traced:
    """A convolution or matrix product, of integers if it can be."""
    (x,), module = call.inputs, call.module
    assert isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)
    is_conv = isinstance(module, nn.Conv1d | nn.Conv2d)
    if not is_conv and x.rank != 2:
        raise call.error("linear layer of images", f"its input has {x.rank} dimensions", "flatten it first")
    groups = module.groups if is_conv else 1
    if isinstance(module, QuantizedWeight) and "input_quantizer" in module._modules:
        of_input = module.get_submodule("input_quantizer")
        assert isinstance(of_input, AbstractQuantizer)
        x = _quantized(call, x, of_input, call.name("input_quantizer"))
    weight, scale = _weights(call, module)
    out = len(scale)
    linear = _linear(call, x, groups)
    if linear is None:
        x, linear = call.as_float(x), torch.ones(groups, dtype=torch.float64)
    is_integer = isinstance(weight, Weights) and weight.is_integer and call.value(x).kind == "integer"
    if isinstance(weight, Weights) and not is_integer:
        what = f"levels {weight.levels[:4]} have no common unit" if not weight.is_integer else "input is float"
        warnings.warn(
            f"{call.path}: its {what}, so this quantized layer runs in float; to run it as integers, quantize its "
            "input with one lehr.Quantizer, with one scale, and choose levels of one unit",
            FloatWarning,
            stacklevel=2,
        )
    if is_integer and x.why_inexact:
        call.note(f"it sums {x.why_inexact}")
    name = call.name()
    if is_conv:
        stride, padding, dilation = _geometry(call, module)
        call.emit(Conv(name, x.name, weight, stride, padding, dilation, groups))
    else:
        call.emit(Linear(name, x.name, weight))
    bias = torch.zeros(out) if module.bias is None else module.bias
    functions = fold.scaled(linear.repeat_interleave(out // groups) * scale, bias.double())
    return Traced(name, x.rank, functions)


def quantizer(call: Call) -> Traced:
    """The multi-step function and all that stands between it and the last sum: one Threshold."""
    (x,), module = call.inputs, call.module
    assert isinstance(module, AbstractQuantizer)
    return _quantized(call, x, module, call.name())


def _quantized(call: Call, x: Traced, module: AbstractQuantizer, name: str) -> Traced:
    """`x` quantized by `module`, as a value called `name`."""
    value, channels = call.value(x), call.channels(x)
    found = fold.common_unit(np.array(module.levels), limit=2**15 - 1)
    if found is None:
        raise call.error(
            "levels without a unit",
            f"its levels {module.levels} have no common unit",
            "choose integers times one number",
        )
    unit, levels = found
    scale = torch.ones(1) if module.scale is None else module.scale
    space = (1,) * (x.rank - 2)
    ones = torch.ones(1, channels, *space)
    if (ones * scale).shape != ones.shape:
        raise call.error(
            "scale of another shape", f"its scale has shape {tuple(scale.shape)}", "use one, or one for each channel"
        )
    scale = (ones * scale).reshape(1, channels)
    reached = torch.tensor(module.levels)[:, None].double() * scale.double()

    def level(y: Tensor) -> Tensor:  # (n, channel) -> the same
        return module(y.reshape(*y.shape, *space)).reshape(y.shape)

    if _changes_nothing(call, x, level):
        call.growing.taken.add(name)
        return x
    try:
        thresholds, directions = fold.thresholds(
            level,
            x.functions,
            (reached[1:] + reached[:-1]) / 2,
            low=value.low if value.kind == "integer" else None,
            high=value.high if value.kind == "integer" else None,
            channels=channels,
        )
    except ValueError as error:
        raise call.error(
            "values that are no numbers", str(error), "see that the weights and BatchNorm before it are finite"
        ) from None
    if value.kind == "integer":
        close = fold.near_ties(level, x.functions, thresholds, directions, low=value.low, high=value.high)
        if x.rounded:
            call.note(f"it compares {x.rounded} with its thresholds")
        elif close:
            call.note(f"in {close} of {channels} channels BatchNorm puts a sum within rounding of a threshold")
    elif any(function.terms is not None for function in x.functions) or x.rounded:
        call.note("it compares floats that BatchNorm has rounded with its thresholds")
    call.growing.emit(_step(name, x.name, thresholds, directions, levels, value))
    scale = scale[0].double() * unit
    return Traced(name, x.rank, fold.scaled(scale, torch.zeros_like(scale)))


def _changes_nothing(call: Call, x: Traced, level: Callable[[Tensor], Tensor]) -> bool:
    """Whether the quantizer's input, integers times powers of two, already is at its levels."""
    value = call.value(x)
    if value.kind != "integer" or value.high - value.low > _MOST_LOOKED_AT or x.why_inexact:
        return False
    y = fold.apply(x.functions, torch.arange(value.low, value.high + 1)[:, None].float().expand(-1, value.shape[0]))
    return torch.equal(level(y), y)


def _step(
    name: str, source: str, thresholds: np.ndarray, directions: np.ndarray, levels: np.ndarray, value: Value
) -> Threshold | Requantize:
    """Thresholds, or a product and a shift that equal them, where there are many even levels."""
    if value.kind == "integer" and len(levels) > _MANY_LEVELS and bool((np.diff(levels) == 1).all()):
        found = even_steps.line(thresholds, directions, first=int(levels[0]), low=value.low, high=value.high)
        if found is not None:
            return Requantize(name, source, *found, int(levels[0]), int(levels[-1]))
    return Threshold(name, source, thresholds, directions, tuple(levels.tolist()))


def _geometry(call: Call, module: nn.Conv1d | nn.Conv2d) -> tuple[tuple[int, int], ...]:
    """Stride, padding and dilation."""
    if module.padding_mode != "zeros" and any(module._reversed_padding_repeated_twice):
        raise call.error(
            "padding with something else than zeros",
            f"it pads with {module.padding_mode!r}",
            "use padding_mode='zeros'",
        )
    last, first = (module._reversed_padding_repeated_twice[i::2] for i in (0, 1))
    if last != first:
        raise call.error("uneven padding", "padding='same' pads one side more than the other", "use an odd kernel")
    return pair(module.stride, 1), pair(first[::-1], 0), pair(module.dilation, 1)


def _weights(call: Call, module: nn.Module) -> tuple[Weights | np.ndarray, Tensor]:
    """Weights without their scale, and the scale of each output channel, float64."""
    weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
    ones = torch.ones(len(weight), dtype=torch.float64)
    if isinstance(module, nn.Conv1d):
        weight = weight[:, :, None]
    if not isinstance(module, QuantizedLinear | Conv1d | Conv2d):
        return weight.numpy(), ones
    quantizer = module.quantizer
    scale = torch.ones(()) if quantizer.scale is None else quantizer.scale
    if scale.numel() > 1 and scale.shape != (len(scale), *[1] * (module.weight.ndim - 1)):
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
    scale = scale.double().reshape(-1) * ones
    found = fold.common_unit(levels.numpy(), limit=128)
    codes = codes.reshape(weight.shape).numpy()
    if found is None or found[1].max() > 127:
        return Weights(codes, tuple(levels.tolist())), scale
    unit, integers = found
    if not fold.is_power_of_two(torch.tensor(unit, dtype=torch.float64)):
        call.note(f"its weight levels are multiples of {unit:g}, which is no power of two")
    return Weights(codes, tuple(integers.tolist())), scale * unit


def _linear(call: Call, x: Traced, groups: int) -> Tensor | None:
    """The scale of each group of channels, if torch's tensor is that times the value; else None."""
    affine = fold.composed(x.functions, call.channels(x))
    if affine is None or bool(affine[1].any()):
        return None
    scales = affine[0].reshape(groups, -1)
    return scales[:, 0] if bool((scales == scales[:, :1]).all()) else None
