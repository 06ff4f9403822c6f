"""The bridge from layers to integers: `freeze` turns a trained network into an `IntegerNet`.

The network is traced with torch.fx and walked once. What the walk carries is, for each tensor of the network, a value
of the integer network and the float32 functions that torch applies to it, per channel (see fold.py):

    pixels              any function of each pixel alone            becomes the Table, by running it on all 256 values
    Linear, Conv        weights are scale * levels                  integer sums; scale and bias are functions of them
    Composed            its parts, which are the above
    BatchNorm, ReLU     functions, kept until they are needed
    Quantizer           all functions up to here and σ              one Threshold: integer thresholds, one direction
    MaxPool             moves before the functions that rise;       falling channels are negated first
    AvgPool, mean       a sum; the division is a function
    +                   integers if both sides have a common unit, else floats
    the end             the functions left over                     the Affine that makes logits

Every integer of the result is the one that the trained network (float32, in eval mode) computes, if the walk can prove
it: `IntegerNet.exact`. The proof is that each of torch's sums adds integers times a power of two and stays below 2^24
of them, where float32 does not round, so that no order of adding and no processor can change it; and that no rounding
of BatchNorm can carry such a sum across a threshold. Where the proof fails (an average over 9 or a scale of 0.3 in
front of another layer, a part in float), `IntegerNet.inexact` names the place: both agree to the last bits there, and
only a value within those of a threshold can differ.

Layers that were not quantized stay float operations, and so does an addition without a common unit. A quantized layer
that reads floats is warned about: it works, but not as integers.

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

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from lehr.composed import Composed, taken_apart
from lehr.deploy import fold
from lehr.deploy.fold import Function
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import (
    Add,
    Affine,
    Clip,
    Conv,
    Flatten,
    Linear,
    MaxPool,
    Operation,
    SumPool,
    Table,
    Threshold,
    Value,
    Weights,
)
from lehr.deploy.trace import (
    ADAPTIVE_AVERAGES,
    ADD_CALLS,
    AFFINE_CALLS,
    AVERAGE_POOLS,
    BATCH_NORMS,
    CLIP_CALLS,
    CLIPS,
    DIVISION_CALLS,
    LAYERS,
    MAX_POOLS,
    MEAN_CALLS,
    NOTHING,
    NOTHING_CALLS,
    RESHAPE_CALLS,
    FreezeError,
    Graph,
    pair,
    shape3,
    table,
)
from lehr.layers import AbstractQuantizer, Conv1d, Conv2d, Quantizer
from lehr.layers import Linear as QuantizedLinear
from lehr.noise import Dirac

# A table of pixels may miss its unit by the rounding of float32; levels may not.
_TABLE_TOLERANCE = 2.0**-22


class FloatWarning(UserWarning):
    """A quantized layer that reads floats, and so does not run as integers."""


def freeze(model: nn.Module, example_input: Tensor, *, classes: Sequence[str] = ()) -> IntegerNet:
    """The trained `model` as a network of integers; `example_input` is a batch of uint8 images as the model takes them.

    The model is looked at in eval mode and left as it is. It must be free of noise and begin with what turns pixels
    into its input, such as `lehr.models.Input`. `classes` are names for its outputs. FreezeError says what cannot be
    converted: the module's path, why, and what to do.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
    _check_ready(model)
    if example_input.dtype != torch.uint8 or not 2 <= example_input.ndim <= 4 or not len(example_input):
        raise FreezeError(
            f"example_input is a batch of uint8 pixels, (image, channel, row, column), got {example_input.dtype} "
            f"{tuple(example_input.shape)}: let the model begin with what turns pixels into its input, as in "
            "nn.Sequential(lehr.models.Input(...), model)"
        )
    composed = [
        f"{path or type(module).__name__}: it is deployed as several layers, which add in another order than torch"
        for path, module in model.named_modules()
        if isinstance(module, Composed)
    ]
    model = taken_apart(model).cpu().float().eval()
    if isinstance(model, (*LAYERS, AbstractQuantizer)):
        model = nn.Sequential(model)
    # Two images: what mixes the images of a batch shows in the shapes.
    example = torch.cat([example_input[:1], example_input[:1]]).cpu()
    with torch.no_grad():
        return _Walk(Graph(model, example), example).net(tuple(classes), composed)


def _check_ready(model: nn.Module) -> None:
    for path, module in model.named_modules():
        path = path or type(module).__name__
        if isinstance(module, (*LAYERS, *BATCH_NORMS)):
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if bool(tensor.isnan().any()):
                    raise FreezeError(f"{path}: its {name} holds NaN: train with a smaller learning rate")
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.training:
                raise FreezeError(
                    f"{path}: this {type(module).__name__} is in training mode, where its output depends on the batch: "
                    "call model.eval() first"
                )
            if module.running_mean is None:
                raise FreezeError(
                    f"{path}: this {type(module).__name__} keeps no running statistics, so its output depends on the "
                    "batch: train with track_running_stats=True"
                )
        if isinstance(module, Quantizer):
            std, mean = module.forward_std, module.forward_mean
            noisy = module.forward_kind is not Dirac and bool((std > 0).any())
            if noisy or (mean is not None and bool((mean != 0).any())):
                raise FreezeError(
                    f"{path}: its forward noise is still {module.forward_noise}: train until a lehr.Annealer has "
                    "removed it, or remove it yourself (forward_std.zero_()) if the hard network is as good (a copy "
                    "that averages buffers, as AveragedModel(use_buffers=True) does, averages the noise too)"
                )


@dataclass(frozen=True, eq=False)
class _Traced:
    """A tensor of the torch network: `functions` of the integer network's value `name`, in torch's `rank`.

    `rounded` says why torch's own numbers may differ from that in the last bits, if they may.
    """

    name: str
    rank: int
    functions: tuple[Function, ...] = ()
    rounded: str = ""

    @property
    def why_inexact(self) -> str:
        """Why torch's numbers are not integers times a power of two; empty if they are."""
        if self.rounded or all(function.is_exact for function in self.functions):
            return self.rounded
        unit = math.prod(float(function.affine[0][0]) for function in self.functions if function.affine is not None)
        return f"values in units of {unit:.4g}, which is no power of two"


@dataclass(frozen=True, eq=False)
class _Pixels:
    """A tensor that is a function of each pixel alone: `functions`, of whole tensors, one after the other."""

    functions: tuple[Callable[[Tensor], Tensor], ...] = ()

    def __call__(self, images: Tensor) -> Tensor:
        for function in self.functions:
            images = function(images)
        return images


@dataclass
class _Walk:
    """One walk over the network's graph, operation by operation."""

    graph: Graph
    example: Tensor
    operations: list[Operation] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    traced: dict[fx.Node, _Traced | _Pixels] = field(default_factory=dict)
    floats: dict[_Traced, _Traced] = field(default_factory=dict)
    rounded: list[str] = field(default_factory=list)
    tables: dict[_Pixels, _Traced] = field(default_factory=dict)

    def net(self, classes: tuple[str, ...], rounded: Sequence[str] = ()) -> IntegerNet:
        """Walk, and put the operations together."""
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self.traced[node] = _Pixels()
            elif node.op == "output":
                self._output(node)
            elif self._sources(node) and not self.graph.asks_shape(node):
                result = self.graph.result(node)
                if not isinstance(result, Tensor):
                    kind = type(result).__name__
                    raise self.graph.error(node, f"it gives a {kind}, no tensor", "use layers that give tensors")
                self.traced[node] = self._convert(node)
        return IntegerNet(shape3(self.example.shape), tuple(self._read()), classes, (*rounded, *self.rounded))

    def _read(self) -> list[Operation]:
        """The operations without those of which only a shape was read."""
        read: set[str] = {self.operations[-1].name}
        kept = []
        for operation in reversed(self.operations):
            if operation.name in read:
                read.update(operation.sources)
                kept.append(operation)
        return kept[::-1]

    def _convert(self, node: fx.Node) -> _Traced | _Pixels:
        """What one node of the graph becomes."""
        sources, target = self._sources(node), node.target
        module = self.graph.module(node)
        if len(sources) > 1:
            if target in ADD_CALLS and len(node.args) == 2 and not node.kwargs:
                first, second = (self._tabulated(self.traced[source], node) for source in sources)
                return self._add(node, first, second)
            raise self.graph.error(node, "it joins values in another way than by adding two", "add them")
        source = self.traced[sources[0]]
        is_reshape = target in RESHAPE_CALLS or isinstance(module, nn.Flatten)
        is_pool = isinstance(module, MAX_POOLS + AVERAGE_POOLS) or target in MEAN_CALLS
        if isinstance(module, NOTHING):
            return source
        if isinstance(source, _Pixels) and not (is_reshape or is_pool or isinstance(module, LAYERS)):
            return _Pixels((*source.functions, self.graph.function(node, sources[0])))
        x = self._tabulated(source, node)
        if isinstance(module, LAYERS):
            return self._layer(node, module, x)
        if is_reshape:
            return self._reshaped(node, x)
        if isinstance(module, MAX_POOLS):
            return self._max_pool(node, module, x)
        if is_pool:
            return self._average_pool(node, module, x)
        if isinstance(module, AbstractQuantizer):
            return self._quantized(node, module, x)
        if target in NOTHING_CALLS:
            return x
        return replace(x, functions=(*x.functions, self._function(node, module, sources[0], x)))

    def _function(self, node: fx.Node, module: nn.Module | None, source: fx.Node, x: _Traced) -> Function:
        """An elementwise operation."""
        run = self.graph.function(node, source)
        space = (1,) * (x.rank - 2)

        def call(values: Tensor) -> Tensor:
            y = run(values.reshape(*values.shape, *space).clone())
            if y.numel() != values.numel():
                raise self.graph.error(node, "it does not treat each channel by itself", "make it one number a channel")
            return y.reshape(values.shape)

        channels = self.values[x.name].shape[0]
        if isinstance(module, BATCH_NORMS):
            self.graph.check_plain(node, module, BATCH_NORMS)
            return fold.batch_norm(module, call)
        if isinstance(module, CLIPS) or node.target in CLIP_CALLS:
            ends = call(torch.tensor([[-torch.inf], [torch.inf]]).expand(2, channels))
            if bool((ends != ends[:, :1]).any()):
                raise self.graph.error(node, "its bounds differ from channel to channel", "use the same for all")
            return Function(call, clip=(ends[0, 0].item(), ends[1, 0].item()))
        once = node.args.count(source) == 1
        divides = node.target in DIVISION_CALLS and once and node.args[0] is source
        divides &= node.kwargs.get("rounding_mode") is None
        if divides or node.target in ADD_CALLS or (node.target in AFFINE_CALLS and once):
            zero, one = call(torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, channels)).double()
            return Function(call, (one - zero, zero))
        raise self.graph.error(
            node,
            "nothing in an integer network does what it does",
            "use a lehr.Quantizer for an activation, and leave what follows the logits to whoever reads them",
        )

    def _layer(self, node: fx.Node, module: nn.Module, x: _Traced) -> _Traced:
        """A convolution or matrix product, of integers if it can be."""
        self.graph.check_plain(node, module, LAYERS)
        assert isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)
        is_conv = isinstance(module, nn.Conv1d | nn.Conv2d)
        if not is_conv and x.rank != 2:
            raise self.graph.error(node, f"its input has {x.rank} dimensions", "flatten it first")
        groups = module.groups if is_conv else 1
        weight, scale = self._weights(node, module)
        out = len(scale)
        linear = self._linear(x, groups)
        if linear is None:
            x, linear = self._as_float(x), torch.ones(groups, dtype=torch.float64)
        is_integer = isinstance(weight, Weights) and weight.is_integer and self.values[x.name].kind == "integer"
        if isinstance(weight, Weights) and not is_integer:
            what = f"levels {weight.levels[:4]} have no common unit" if not weight.is_integer else "input is float"
            warnings.warn(
                f"{self.graph.path(node)}: its {what}, so this quantized layer runs in float; to run it as integers, "
                "quantize its input with one lehr.Quantizer, with one scale, and choose levels of one unit",
                FloatWarning,
                stacklevel=2,
            )
        if is_integer and x.why_inexact:
            self._note(node, f"it sums {x.why_inexact}")
        name = self._name(node)
        if is_conv:
            if module.padding_mode != "zeros" and any(module._reversed_padding_repeated_twice):
                raise self.graph.error(node, f"it pads with {module.padding_mode!r}", "use padding_mode='zeros'")
            last, first = (module._reversed_padding_repeated_twice[i::2] for i in (0, 1))
            if last != first:
                raise self.graph.error(node, "padding='same' pads one side more than the other", "use an odd kernel")
            geometry = (pair(module.stride, 1), pair(first[::-1], 0), pair(module.dilation, 1), groups)
            self._emit(node, Conv(name, x.name, weight, *geometry))
        else:
            self._emit(node, Linear(name, x.name, weight))
        bias = torch.zeros(out) if module.bias is None else module.bias
        functions = fold.scaled(linear.repeat_interleave(out // groups) * scale, bias.double())
        return _Traced(name, x.rank, functions)

    def _weights(self, node: fx.Node, module: nn.Module) -> tuple[Weights | np.ndarray, Tensor]:
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
            raise self.graph.error(
                node, f"its weights have scales of shape {tuple(scale.shape)}", "use one for each output channel"
            )
        levels = torch.tensor(quantizer.levels, dtype=torch.float32)
        values = module.quantized_weight
        codes = torch.bucketize((values / scale).contiguous(), (levels[1:] + levels[:-1]) / 2)
        wrong = values != levels[codes] * scale
        if bool(wrong.any()):
            raise self.graph.error(
                node,
                f"its weight {values[wrong][0].item():g} is at none of its levels, {quantizer.levels} times the scale",
                "see that its weights are finite",
            )
        scale = scale.double().reshape(-1) * ones
        found = fold.common_unit(levels.numpy(), limit=128)
        codes = codes.reshape(weight.shape).numpy()
        if found is None or found[1].max() > 127:
            return Weights(codes, tuple(levels.tolist())), scale
        unit, integers = found
        if not fold.is_power_of_two(torch.tensor(unit, dtype=torch.float64)):
            self._note(node, f"its weight levels are multiples of {unit:g}, which is no power of two")
        return Weights(codes, tuple(integers.tolist())), scale * unit

    def _quantized(self, node: fx.Node, quantizer: AbstractQuantizer, x: _Traced) -> _Traced:
        """The multi-step function and all that stands between it and the last sum: one Threshold."""
        value = self.values[x.name]
        channels = value.shape[0]
        found = fold.common_unit(np.array(quantizer.levels), limit=2**15 - 1)
        if found is None:
            raise self.graph.error(
                node, f"its levels {quantizer.levels} have no common unit", "choose integers times one number"
            )
        unit, levels = found
        scale = torch.ones(1) if quantizer.scale is None else quantizer.scale
        run = Function(self.graph.function(node, self._sources(node)[0]))
        space = (1,) * (x.rank - 2)
        ones = torch.ones(1, channels, *space)
        if (ones * scale).shape != ones.shape:
            raise self.graph.error(
                node, f"its scale has shape {tuple(scale.shape)}", "use one, or one for each channel"
            )
        scale = (ones * scale).reshape(1, channels)
        reached = torch.tensor(quantizer.levels)[:, None].double() * scale.double()

        def level(y: Tensor) -> Tensor:  # (n, channel) -> the same
            return run.call(y.reshape(*y.shape, *space)).reshape(y.shape)

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
            raise self.graph.error(
                node, str(error), "see that the weights and BatchNorm before it are finite"
            ) from None
        if value.kind == "integer":
            close = fold.near_ties(level, x.functions, thresholds, directions, low=value.low, high=value.high)
            if x.rounded:
                self._note(node, f"it compares {x.rounded} with its thresholds")
            elif close:
                self._note(
                    node, f"in {close} of {channels} channels BatchNorm puts a sum within rounding of a threshold"
                )
        name = self._name(node)
        self._emit(node, Threshold(name, x.name, thresholds, directions, tuple(levels.tolist())))
        scale = scale[0].double() * unit
        return _Traced(name, x.rank, fold.scaled(scale, torch.zeros_like(scale)))

    def _max_pool(self, node: fx.Node, module: nn.Module, x: _Traced) -> _Traced:
        value = self.values[x.name]
        kernel, stride, padding = self._window(node, module, value)
        if value.kind == "float":
            x = self._as_float(x)
        elif x.functions:  # the largest f(s) is f(largest s) only where f rises
            ends = torch.tensor([[value.low], [value.high]]).float().expand(2, value.shape[0])
            start, end = fold.apply(x.functions, ends)
            if bool((end < start).any()):
                x = self._times(node, x, torch.where(end < start, -1, 1))
        name = self._name(node)
        self._emit(node, MaxPool(name, x.name, kernel, stride, padding))
        return _Traced(name, len(self.graph.shape(node)), x.functions, x.rounded)

    def _average_pool(self, node: fx.Node, module: nn.Module | None, x: _Traced) -> _Traced:
        value = self.values[x.name]
        if module is None:
            given = (*node.args[1:2], *(node.kwargs[name] for name in ("dim", "axis") if name in node.kwargs))
            axes: Any = given[0] if given else ()
            axes = (axes,) if isinstance(axes, int) else tuple(axes)
            if sorted(axis % x.rank for axis in axes) != list(range(2, x.rank)):
                raise self.graph.error(node, f"it averages over dimensions {axes}", "average over rows and columns")
        kernel, stride, padding = self._window(node, module, value)
        divisor = math.prod(kernel)
        if isinstance(module, nn.AvgPool1d | nn.AvgPool2d):
            if any(padding) and not module.count_include_pad:
                raise self.graph.error(node, "it divides by fewer pixels at the border", "use count_include_pad=True")
            divisor = getattr(module, "divisor_override", None) or divisor
        affine = fold.composed(x.functions, value.shape[0])
        whole = divisor == math.prod(kernel) and not any(padding)  # else an average of shifts is not the shift
        if value.kind == "float" or affine is None or (bool(affine[1].any()) and not whole):
            x = self._as_float(x)
        name = self._name(node)
        self._emit(node, SumPool(name, x.name, kernel, stride, padding))
        several = isinstance(module, ADAPTIVE_AVERAGES) and kernel != value.shape[1:]
        division = fold.divided(kernel if several else (divisor,), value.shape[0])  # as torch does it
        rounded = x.why_inexact and "averages of values that torch has rounded"
        return _Traced(name, len(self.graph.shape(node)), (division, *x.functions), rounded)

    def _window(self, node: fx.Node, module: nn.Module | None, value: Value) -> tuple[tuple[int, int], ...]:
        """Kernel, stride and padding of a pool; adaptive pools and means must divide their input evenly."""
        if isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.AvgPool1d | nn.AvgPool2d):
            if isinstance(module, nn.MaxPool1d | nn.MaxPool2d) and pair(module.dilation, 1, 2) != (1, 1):
                raise self.graph.error(node, f"its dilation is {module.dilation}", "use a dilation of 1")
            space = 1 if isinstance(module, nn.MaxPool1d | nn.AvgPool1d) else 2
            stride = module.stride or module.kernel_size
            return pair(module.kernel_size, 1, space), pair(stride, 1, space), pair(module.padding, 0, space)
        before, after = value.shape[1:], shape3(self.graph.shape(node))[1:]
        if self.graph.shape(node)[1] != value.shape[0] or any(a % b for a, b in zip(before, after, strict=True)):
            raise self.graph.error(
                node,
                f"windows of {before} -> {after} pixels are not all of one size",
                "average over all rows and columns, or choose sizes that divide evenly",
            )
        kernel = before[0] // after[0], before[1] // after[1]
        return kernel, kernel, (0, 0)

    def _reshaped(self, node: fx.Node, x: _Traced) -> _Traced:
        before, after = self.values[x.name].shape, self.graph.shape(node)
        size = before[1] * before[2]
        if after[0] != len(self.example) or math.prod(after[1:]) != math.prod(before):
            raise self.graph.error(node, f"it mixes images: it gives shape {tuple(after)}", "flatten from dimension 1")
        if after[1] == before[0] and len(after) <= 4 and shape3(after) == before:
            return replace(x, rank=len(after))  # only dimensions of one pixel came or went
        if len(after) != 2:
            raise self.graph.error(
                node, f"it gives shape {tuple(after)}, from {before} a image", "flatten all dimensions from 1 on"
            )
        name = self._name(node)
        self._emit(node, Flatten(name, x.name))
        return _Traced(name, 2, tuple(function.flattened(size) for function in x.functions), x.rounded)

    def _add(self, node: fx.Node, a: _Traced, b: _Traced) -> _Traced:
        """p * a + q * b of integers if the scales of both sides are as p to q in every channel, else of floats."""
        kinds = {self.values[x.name].kind for x in (a, b)}
        if len({self.values[x.name].shape for x in (a, b)}) > 1:
            shapes = " and ".join(str(self.values[x.name].shape) for x in (a, b))
            raise self.graph.error(node, f"it adds values of shapes {shapes}", "add values of one shape")
        channels = self.values[a.name].shape[0]
        first, second = (fold.composed(x.functions, channels) for x in (a, b))
        if kinds == {"integer"} and first is not None and second is not None:
            ratio = fold.common_ratio(first[0], second[0])
            if ratio is not None:
                p, q = ratio.numerator, ratio.denominator
                rounded = (a.why_inexact or b.why_inexact) and "a sum of values that torch has rounded"
                a, b = (
                    self._times(node, a, torch.full((channels,), p)),
                    self._times(node, b, torch.full((channels,), q)),
                )
                name = self._name(node)
                self._emit(node, Add(name, a.name, b.name))
                return _Traced(name, a.rank, fold.scaled(second[0] / q, first[1] + second[1]), rounded)
        a, b = self._as_float(a), self._as_float(b)
        name = self._name(node)
        self._emit(node, Add(name, a.name, b.name))
        return _Traced(name, a.rank)

    def _times(self, node: fx.Node, x: _Traced, factors: Tensor) -> _Traced:
        """The same tensor as functions of integers multiplied per channel; its factors are +-1 to 127."""
        if bool((factors == 1).all()):
            return x
        name = self._name(node, "times")
        self._emit(None, Conv(name, x.name, Weights.of(factors.numpy().reshape(-1, 1, 1, 1)), groups=len(factors)))
        undo = 1 / factors.double()
        return replace(x, name=name, functions=(*fold.scaled(undo, torch.zeros_like(undo)), *x.functions))

    def _linear(self, x: _Traced, groups: int) -> Tensor | None:
        """The scale of each group of channels, if torch's tensor is that times the value; else None."""
        affine = fold.composed(x.functions, self.values[x.name].shape[0])
        if affine is None or bool(affine[1].any()):
            return None
        scales = affine[0].reshape(groups, -1)
        return scales[:, 0] if bool((scales == scales[:, :1]).all()) else None

    def _as_float(self, x: _Traced) -> _Traced:
        """The tensor itself, as floats."""
        if x not in self.floats:
            self.floats[x] = self._applied(x)
        return self.floats[x]

    def _applied(self, x: _Traced, last_name: str = "") -> _Traced:
        name, channels = x.name, self.values[x.name].shape[0]
        affine = fold.composed((), channels)
        for function in (*x.functions, None):
            if function is not None and function.affine is not None:
                affine = fold.composed((Function(torch.clone, affine), function), channels)
                continue
            assert affine is not None
            scale, shift = affine
            if self.values[name].kind == "integer" or bool(((scale != 1) | (shift != 0)).any()):
                affine_name = (last_name if function is None else "") or self._free(f"{x.name}.affine")
                self._emit(None, Affine(affine_name, name, scale.float().numpy(), shift.float().numpy()))
                name = affine_name
            affine = fold.composed((), channels)
            if function is not None and function.clip is not None:
                clip_name = self._free(f"{x.name}.clip")
                self._emit(None, Clip(clip_name, name, *function.clip))
                name = clip_name
        return _Traced(name, x.rank)

    def _tabulated(self, x: _Traced | _Pixels, node: fx.Node) -> _Traced:
        """Pixels as the first value of the integer network: all 256 of them, in every channel, as torch maps them."""
        if isinstance(x, _Traced):
            return x
        if x in self.tables:
            return self.tables[x]
        if self.tables:
            raise self.graph.error(
                node, "the network uses its pixels in two ways", "let one module prepare them for all"
            )
        pixels = table(x, self.example.shape)
        if pixels is None:
            raise self.graph.error(
                node,
                "what stands before it is not a function of each pixel alone",
                "begin with lehr.models.Input, or with operations on single pixels",
            )
        found = fold.common_unit(pixels.numpy(), limit=2**15 - 1, tolerance=_TABLE_TOLERANCE)
        unit, entries = (1.0, pixels.numpy()) if found is None else found
        operation = Table("pixels", entries)
        self.operations.append(operation)
        self.values["pixels"] = operation.infer(Value(shape3(self.example.shape), "integer", 0, 255))
        scale = torch.full((len(pixels),), unit, dtype=torch.float64)
        equal = np.array_equal((entries * unit).astype(np.float32), pixels.numpy())
        rounded = "" if equal else f"pixels that are multiples of {unit:g} but for rounding"
        functions = fold.scaled(scale, torch.zeros_like(scale))
        self.tables[x] = _Traced("pixels", self.example.ndim, functions, rounded)
        return self.tables[x]

    def _output(self, node: fx.Node) -> None:
        result = node.args[0]
        if not isinstance(result, fx.Node) or result not in self.traced:
            raise FreezeError("the network must give one tensor, of scores for each class, computed from its input")
        self._applied(self._tabulated(self.traced[result], result), last_name=self._free("logits"))

    def _note(self, node: fx.Node, why: str) -> None:
        """Remember a place where torch's result depends on how its sums are rounded."""
        self.rounded.append(f"{self.graph.path(node)}: {why}")

    def _emit(self, node: fx.Node | None, operation: Operation) -> None:
        """Append; `node` is the torch operation whose shape the result must have."""
        value = operation.infer(*(self.values[source] for source in operation.sources))
        if node is not None and shape3(self.graph.shape(node)) != value.shape:
            raise self.graph.error(
                node,
                f"torch gives shape {tuple(self.graph.shape(node)[1:])} for an image where windows give {value.shape}",
                "use ceil_mode=False",
            )
        self.operations.append(operation)
        self.values[operation.name] = value

    def _sources(self, node: fx.Node) -> list[fx.Node]:
        return [x for x in node.all_input_nodes if x in self.traced]

    def _name(self, node: fx.Node, suffix: str = "") -> str:
        return self._free(self.graph.path(node) + (f".{suffix}" if suffix else ""))

    def _free(self, name: str) -> str:
        free, number = name, 1
        while free in self.values:
            number += 1
            free = f"{name}#{number}"
        return free
