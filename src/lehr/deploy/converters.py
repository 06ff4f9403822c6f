"""`CONVERTERS`: what `freeze` makes of each module class and of each function.

    Linear, Conv            weights are scale * levels      integer sums; scale and bias are functions of them
    BatchNorm, ReLU         functions, kept until they are needed
    tanh, leaky_relu, ...   the same, for the quantizer that must follow
    Quantizer               all functions up to here and σ  one Threshold: integer thresholds, one direction;
                                                            of many even levels one Requantize
    MaxPool                 moves before the functions that rise; falling channels are negated first
    AvgPool, mean           a sum; the division is a function
    +                       integers if both sides have a common unit, else floats
    *                       integers, of values of one shape or with a gate for each channel
    cat                     channels behind each other, each with the functions it had
    x[:, :3], view, pad     moves, which wait and become one Take

A key is a module class, which stands for its subclasses too unless they have a `forward` of their own, or a function:
`torch.flatten`, `operator.add`; a method of tensors is `torch.Tensor.flatten`. A value is a function of a `Call`
(conversion.py). `freeze(model, images, converters={...})` adds to the table or replaces entries of it:

>>> import torch, lehr
>>> class Squash(torch.nn.Module):
...     def forward(self, x):
...         return x / (1 + x.abs())
>>> model = torch.nn.Sequential(lehr.models.Input((0.5,), (0.25,)), Squash(), lehr.Quantizer(lehr.estimator.STE)).eval()
>>> lehr.freeze(model, torch.zeros(1, 1, 2, 2, dtype=torch.uint8), converters={Squash: rising})
IntegerNet(1x2x2 images to 1x2x2 logits, 2 operations, 0 MACs, 520 bytes, exact)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lehr.deploy import fold
from lehr.deploy.conversion import AsModule, Call, Converter, Moving, Refusal
from lehr.deploy.fold import Function
from lehr.deploy.layer_converters import layer, transposed
from lehr.deploy.move_converters import is_gate, item, join, move, same
from lehr.deploy.moves import settled
from lehr.deploy.net_builder import Traced
from lehr.deploy.operations import Add, Multiply, Round
from lehr.deploy.pool_converters import average_pool, largest, max_pool, mean
from lehr.deploy.quantizer_converter import quantizer
from lehr.layers import Conv1d, Conv2d, Linear
from lehr.models.signal_input import SignalInput
from lehr.quantizer import AbstractQuantizer
from lehr.transposed import ConvTranspose1d, ConvTranspose2d


def signal_input(call: Call) -> Traced:
    """Floats rounded to integers; one mean and factor if they are equal in all channels."""
    (x,), module = call.inputs, call.module
    assert isinstance(module, SignalInput)
    x = call.as_float(x)
    equal = bool((module.mean == module.mean[0]).all() & (module.factor == module.factor[0]).all())
    kept = slice(1 if equal else None)
    name = call.name()
    call.emit(Round(name, x.name, module.mean[kept].numpy(), module.factor[kept].numpy(), module.limit))
    scale = module.scale.double().expand(call.channels(x)).clone()
    return Traced(name, x.rank, fold.scaled(scale, torch.zeros_like(scale)))


def batch_norm(call: Call) -> Traced:
    """A product and a sum for each channel."""
    (x,), module = call.inputs, call.module
    assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.SyncBatchNorm)
    return call.then(x, [fold.batch_norm_function(module, call.per_channel(x))])


def clip(call: Call) -> Traced:
    """ReLU, ReLU6, Hardtanh, clamp."""
    (x,) = call.inputs
    run = call.per_channel(x)
    ends = run(torch.tensor([[-torch.inf], [torch.inf]]).expand(2, call.channels(x)))
    if bool((ends != ends[:, :1]).any()):
        raise call.error(
            "bounds that differ", "its bounds differ from channel to channel", "use the same for all channels"
        )
    return call.then(x, [Function(run, clip=(ends[0, 0].item(), ends[1, 0].item()))])


def rising(call: Call) -> Traced:
    """A function that rises, or falls nowhere: the quantizer that follows makes thresholds of it."""
    (x,) = call.inputs
    function = Function(call.per_channel(x), path=call.path)
    return replace(call.then(x, [function]), rounded=f"results of {call.path}, whose last bits depend on the machine")


def turning(call: Call) -> Traced:
    """A function that falls and rises again, such as SiLU: the quantizer that follows makes thresholds of each side."""
    found = rising(call)
    *others, function = found.functions
    turn = _lowest(lambda x: function.call(x.expand(-1, call.channels(found)))[:, :1])
    return replace(found, functions=(*others, replace(function, turn=turn)))


def _lowest(function: Callable[[Tensor], Tensor]) -> float:
    """Where a function that falls and rises again has its least value, between -4 and 0, as all of them here do."""
    low, high = -4.0, 0.0
    for _ in range(5):  # to 3e-8
        places = torch.linspace(low, high, 101, dtype=torch.float64)[:, None]
        least = int(function(places).argmin())
        low, high = places[max(least - 1, 0)].item(), places[min(least + 1, 100)].item()
    return (low + high) / 2


def leaky_relu(call: Call) -> Traced:
    """`rising`, and every machine rounds it alike."""
    (x,) = call.inputs
    run = call.per_channel(x)
    below = run(torch.full((1, call.channels(x)), -1.0))
    if bool((below > 0).any()):
        raise call.error(
            "falls and rises again", "it falls below 0 and rises above it", "use a slope that is not negative"
        )
    return call.then(x, [Function(run, path=call.path)])


def multiply(call: Call) -> Traced:
    """A product with one number for each channel, or of two values of integers; one may be a gate for each channel."""
    inputs = list(call.inputs)
    if len(inputs) == 2:  # a gate that is expanded to the size of the other, as gate.expand_as(x), need not be
        at = next((at for at, x in enumerate(inputs) if is_gate(call, x)), None)
        if at is not None:
            inputs[at] = replace(inputs[at], move=None)
    call = replace(call, inputs=tuple(settled(call.net, x) for x in inputs))
    if len(inputs) != 2:
        return affine(call)
    a, b = call.inputs
    if call.value(a).shape != call.value(b).shape and call.value(a).shape[1:] == (1, 1):
        a, b = b, a
    shapes = call.value(a).shape, call.value(b).shape
    if shapes[1] not in (shapes[0], (shapes[0][0], 1, 1)):
        raise call.error(
            "product of different shapes",
            f"it multiplies values of shapes {shapes[0]} and {shapes[1]}",
            "multiply values of one shape, or by one number for each channel",
        )
    first, second = (fold.composed(x.functions, call.channels(x)) for x in (a, b))
    is_integer = all(call.value(x).kind == "integer" for x in (a, b))
    if first is None or second is None or bool((first[1] != 0).any() | (second[1] != 0).any()) or not is_integer:
        raise call.error(
            "product of floats",
            "it multiplies two values of the network that are not both integers times one number for each channel",
            "quantize both sides, each with a lehr.Quantizer",
        )
    name = call.name()
    rounded = (a.why_inexact or b.why_inexact) and "a product of values that torch has rounded"
    call.emit(Multiply(name, a.name, b.name))
    return Traced(name, a.rank, fold.scaled(first[0] * second[0], torch.zeros_like(first[0])), rounded)


def affine(call: Call) -> Traced:
    """A product with, or a sum with, one number for each channel."""
    x, *others = call.inputs
    if others:
        raise call.error(
            "values joined otherwise",
            "it joins two values of the network in another way than by adding or multiplying them",
            "add or multiply them",
        )
    arguments = [*call.node.args, *call.node.kwargs.values()]
    if sum(argument in call.sources for argument in arguments) > 1:
        raise call.error("value times itself", "it uses a value twice", "use a lehr.Quantizer for an activation")
    return _line(call, x)


def divide(call: Call) -> Traced:
    """A division by one number for each channel."""
    divided = call.node.args[0] if call.node.args else None
    if divided not in call.sources or call.argument(3, "rounding_mode") is not None:
        raise call.error(
            "not a plain division",
            "it divides by a value of the network, or rounds what it divides",
            "divide by a number, and round with a lehr.Quantizer",
        )
    return affine(call)


def add(call: Call) -> Traced:
    """p * a + q * b of integers if the scales of both sides are as p to q in every channel, else of floats."""
    a, *others = call.inputs
    if not others:  # a + 2, or a + a
        return _line(call, a)
    (b,) = others
    if call.node.kwargs:
        raise call.error("values joined otherwise", "it adds a multiple (alpha)", "multiply before you add")
    shapes = [call.value(x).shape for x in (a, b)]
    if shapes[0] != shapes[1]:
        raise call.error(
            "sum of different shapes",
            f"it adds values of shapes {shapes[0]} and {shapes[1]}",
            "add values of one shape",
        )
    channels = call.channels(a)
    first, second = (fold.composed(x.functions, channels) for x in (a, b))
    name = call.name()
    if all(call.value(x).kind == "integer" for x in (a, b)) and first is not None and second is not None:
        ratio = fold.common_ratio(first[0], second[0])
        if ratio is not None:
            p, q = ratio.numerator, ratio.denominator
            rounded = (a.why_inexact or b.why_inexact) and "a sum of values that torch has rounded"
            call.emit(Add(name, a.name, b.name, p, q))
            return Traced(name, a.rank, fold.scaled(second[0] / q, first[1] + second[1]), rounded)
    a, b = call.as_float(a), call.as_float(b)
    call.emit(Add(name, a.name, b.name))
    return Traced(name, a.rank)


def _line(call: Call, x: Traced) -> Traced:
    """The line through what torch makes of 0 and 1."""
    run = call.per_channel(x)
    zero, one = run(torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, call.channels(x))).double()
    return call.then(x, [Function(run, (one - zero, zero))])


_PER_IMAGE = Refusal(
    "statistics of each image",
    "it normalises with the mean and variance of each image, which integers would have to compute as floats",
    "use BatchNorm, whose statistics are fixed after training, or keep this part of the network out of what you freeze",
)
_RECURRENT = Refusal(
    "recurrent layer",
    "it is a recurrent layer, whose results go back into it at the next time step, and an integer network is one pass",
    "use Conv1d over time, or freeze the layers before it and run the recurrent layer in float behind them",
)
_ATTENTION = Refusal(
    "attention",
    "attention multiplies values of the network with each other and takes a softmax, which integers do not have here",
    "use convolutions, or freeze the layers before it and run the rest in float",
)
_PROBABILITIES = Refusal(
    "probabilities at the end",
    "it makes probabilities of the logits, which takes exponentials of floats",
    "leave it to whoever reads the logits: the largest logit is the most probable class",
)
_THREE_DIMENSIONS = Refusal(
    "three dimensions", "it works in three dimensions, and integer networks have rows and columns", "use two dimensions"
)
# Whatever takes one tensor and moves its values: what it moves where is found by running it.
MOVES: tuple[type[nn.Module] | Callable[..., Any], ...] = (
    *(nn.Flatten, nn.Unflatten, torch.flatten, torch.unflatten, torch.reshape, torch.squeeze, torch.unsqueeze),
    *(Tensor.flatten, Tensor.unflatten, Tensor.reshape, Tensor.squeeze, Tensor.unsqueeze, Tensor.view),
    *(torch.permute, torch.transpose, torch.swapaxes, torch.movedim, torch.flip, torch.roll),
    *(Tensor.permute, Tensor.transpose, Tensor.swapaxes, Tensor.movedim, Tensor.flip, Tensor.roll),
    *(torch.chunk, torch.split, torch.unbind, torch.narrow, torch.select, torch.index_select, torch.tensor_split),
    *(Tensor.chunk, Tensor.split, Tensor.unbind, Tensor.narrow, Tensor.select, Tensor.index_select),
    *(
        Tensor.tensor_split,
        Tensor.repeat,
        Tensor.expand,
        Tensor.expand_as,
        Tensor.view_as,
        Tensor.reshape_as,
        Tensor.repeat_interleave,
        torch.repeat_interleave,
        torch.tile,
    ),
    *(nn.Upsample, nn.UpsamplingNearest2d, F.interpolate, F.upsample, F.pad),
    *(nn.ChannelShuffle, nn.PixelShuffle, F.pixel_shuffle, nn.PixelUnshuffle, F.pixel_unshuffle),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d),
    *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.CircularPad1d, nn.CircularPad2d),
)

CONVERTERS: dict[type[nn.Module] | Callable[..., Any], Converter] = {
    **dict.fromkeys((Linear, Conv1d, Conv2d, nn.Linear, nn.Conv1d, nn.Conv2d), layer),
    **dict.fromkeys((ConvTranspose1d, ConvTranspose2d, nn.ConvTranspose1d, nn.ConvTranspose2d), transposed),
    AbstractQuantizer: quantizer,
    SignalInput: signal_input,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm), batch_norm),
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.Hardtanh), clip),
    **dict.fromkeys((F.relu, F.relu6, F.hardtanh, torch.relu, torch.relu_, torch.clamp, torch.clip), clip),
    **dict.fromkeys((Tensor.relu, Tensor.relu_, Tensor.clamp, Tensor.clamp_, Tensor.clip, Tensor.clip_), clip),
    **dict.fromkeys((nn.LeakyReLU, F.leaky_relu, nn.PReLU, F.prelu, Tensor.prelu), leaky_relu),
    **dict.fromkeys((nn.Tanh, torch.tanh, Tensor.tanh, F.tanh), rising),
    **dict.fromkeys((nn.Sigmoid, torch.sigmoid, Tensor.sigmoid, F.sigmoid, nn.LogSigmoid, F.logsigmoid), rising),
    **dict.fromkeys((nn.Hardsigmoid, F.hardsigmoid, nn.Softsign, F.softsign, nn.Softplus, F.softplus), rising),
    **dict.fromkeys((nn.ELU, F.elu, nn.CELU, F.celu, nn.SELU, F.selu), rising),
    **dict.fromkeys((nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, F.gelu, F.silu, F.mish, F.hardswish), turning),
    **dict.fromkeys((operator.add, operator.iadd, torch.add, Tensor.add, Tensor.add_), add),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, Tensor.sub, Tensor.sub_), affine),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, Tensor.mul, Tensor.mul_), Moving(multiply)),
    **dict.fromkeys((operator.neg, torch.neg, Tensor.neg), affine),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, Tensor.div, Tensor.div_), divide),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate, torch.stack), Moving(join)),
    operator.getitem: Moving(item),
    **dict.fromkeys(MOVES, Moving(move)),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d), max_pool),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d), average_pool),
    F.max_pool1d: AsModule(nn.MaxPool1d, max_pool),
    F.max_pool2d: AsModule(nn.MaxPool2d, max_pool),
    F.avg_pool1d: AsModule(nn.AvgPool1d, average_pool),
    F.avg_pool2d: AsModule(nn.AvgPool2d, average_pool),
    F.adaptive_max_pool1d: AsModule(nn.AdaptiveMaxPool1d, max_pool),
    F.adaptive_max_pool2d: AsModule(nn.AdaptiveMaxPool2d, max_pool),
    F.adaptive_avg_pool1d: AsModule(nn.AdaptiveAvgPool1d, average_pool),
    F.adaptive_avg_pool2d: AsModule(nn.AdaptiveAvgPool2d, average_pool),
    **dict.fromkeys((torch.mean, Tensor.mean), mean),
    **dict.fromkeys((torch.amax, Tensor.amax), largest),
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout), Moving(same)),
    F.dropout: AsModule(nn.Dropout, same),
    **dict.fromkeys((Tensor.contiguous, Tensor.float, Tensor.clone, Tensor.detach), Moving(same)),
    # What cannot be converted, with the reason.
    **dict.fromkeys((nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm), _PER_IMAGE),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, F.group_norm, F.layer_norm, F.instance_norm), _PER_IMAGE),
    **dict.fromkeys((nn.RNNBase, nn.RNNCellBase), _RECURRENT),
    **dict.fromkeys((nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder), _ATTENTION),
    **dict.fromkeys((nn.TransformerEncoderLayer, nn.TransformerDecoderLayer), _ATTENTION),
    **dict.fromkeys((F.scaled_dot_product_attention, torch.matmul, torch.bmm, operator.matmul), _ATTENTION),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, F.softmax, F.log_softmax), _PROBABILITIES),
    **dict.fromkeys((torch.softmax, torch.log_softmax, Tensor.softmax, Tensor.log_softmax), _PROBABILITIES),
    **dict.fromkeys((nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d), _THREE_DIMENSIONS),
}
