"""One walk over a traced network: each call becomes operations on integers, by the converter that knows it.

What the walk carries is, for each tensor of the torch network, a value of the integer network and the float32 functions
that torch applies to it, per channel (fold.py): a `Traced`. A converter takes a `Call`, which tells what torch calls
with which `Traced` inputs, emits operations, and returns the `Traced` of its result:

    def negative(call):
        (x,) = call.inputs
        return call.then(x, fold.scaled(-torch.ones(call.channels(x)), torch.zeros(call.channels(x))))

A tensor that is a function of each pixel alone needs no converter: all such functions become the first operation, a
`Table`, by running them on all 256 values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from lehr.deploy import fold
from lehr.deploy.fold import Function
from lehr.deploy.freeze_errors import FreezeError
from lehr.deploy.integer_net import InputType, IntegerNet, Output, input_value
from lehr.deploy.operations import Affine, Clip, Conv, Floats, Operation, Table, Value, Weights, as_shape
from lehr.deploy.trace import LAYERS, Graph, table
from lehr.layers import Conv1d, Conv2d
from lehr.layers import Linear as QuantizedLinear

# A table of pixels may miss its unit by the rounding of float32; levels may not.
_TABLE_TOLERANCE = 2.0**-22


@dataclass(frozen=True, eq=False)
class Traced:
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
class Call:
    """One call of the traced network, as a converter sees it.

    Args:
        walk: The walk so far, which holds the integer network's operations.
        node: The call in the graph.
        module: The module that is called, or that does what the called function does; None for other functions.
        inputs: The tensors among its arguments that are computed from the network's input.
    """

    walk: Walk
    node: fx.Node
    module: nn.Module | None
    inputs: tuple[Traced, ...]

    @property
    def path(self) -> str:
        """Where the call stands in the model."""
        return self.walk.graph.path(self.node)

    @property
    def shape(self) -> torch.Size:
        """The shape of torch's result for a batch of two images."""
        return self.walk.graph.shape(self.node)

    @property
    def function(self) -> Callable[[Tensor], Tensor]:
        """What torch does here, as a function of the first input; its other arguments are as in the example."""
        return self.walk.graph.function(self.node, self.walk.sources(self.node)[0])

    def per_channel(self, x: Traced) -> Callable[[Tensor], Tensor]:
        """`function` for numbers of each channel, (n, channel), instead of tensors of x's rank."""
        run, space = self.function, (1,) * (x.rank - 2)

        def call(values: Tensor) -> Tensor:
            y = run(values.reshape(*values.shape, *space).clone())
            if y.numel() != values.numel():
                raise self.error(
                    "not channel by channel",
                    "it does not treat each channel by itself",
                    "let it use one number, or one for each channel",
                )
            return y.reshape(values.shape)

        return call

    def argument(self, position: int, *names: str) -> Any:
        """An argument of a function call, by its place or one of its names; None if it is not given."""
        if len(self.node.args) > position:
            return self.node.args[position]
        return next((self.node.kwargs[name] for name in names if name in self.node.kwargs), None)

    def value(self, x: Traced) -> Value:
        """Shape, kind and range of the value that `x` is a function of."""
        return self.walk.values[x.name]

    def channels(self, x: Traced) -> int:
        """Channels of a tensor."""
        return self.value(x).shape[0]

    def name(self, suffix: str = "") -> str:
        """A name for an operation that stands for this call."""
        return self.walk.free_name(self.path + (f".{suffix}" if suffix else ""))

    def emit(self, operation: Operation) -> None:
        """Append the operation whose result has the shape that torch's has.

        FreezeError if its sums could leave int32, or its shape is another.
        """
        try:
            value = self.walk.emit(operation)
        except ValueError as error:
            raise self.error(
                "sums beyond int32",
                str(error).removeprefix(f"{operation.name}: "),
                "use fewer bits for weights or activations",
            ) from error
        if as_shape(self.shape[1:]) != value.shape:
            raise self.error(
                "rounded up size",
                f"torch gives shape {tuple(self.shape[1:])} for an image where windows give {value.shape}",
                "use ceil_mode=False",
            )

    def then(self, x: Traced, functions: Sequence[Function]) -> Traced:
        """`x` with more functions applied, which wait until thresholds or floats are made of them."""
        return replace(x, functions=(*x.functions, *functions))

    def as_float(self, x: Traced) -> Traced:
        """The tensor itself, as floats: all its functions become operations."""
        return self.walk.as_float(x)

    def times(self, x: Traced, factors: Tensor) -> Traced:
        """The same tensor as functions of integers multiplied per channel; the factors are +-1 to 127."""
        if bool((factors == 1).all()):
            return x
        name = self.name("times")
        self.walk.emit(Conv(name, x.name, Weights.of(factors.numpy().reshape(-1, 1, 1, 1)), groups=len(factors)))
        undo = 1 / factors.double()
        return replace(x, name=name, functions=(*fold.scaled(undo, torch.zeros_like(undo)), *x.functions))

    def note(self, why: str) -> None:
        """Remember that torch's result here depends on how its sums are rounded."""
        self.walk.rounded.append(f"{self.path}: {why}")

    def error(self, title: str, why: str, advice: str) -> FreezeError:
        """The error to raise about this call; docs/troubleshooting.md explains each title."""
        return self.walk.graph.error(self.node, title, why, advice)


Converter = Callable[[Call], Traced]


@dataclass(frozen=True)
class Refusal:
    """The converter of what cannot be converted, whatever it is called with. `freeze` looks for these first."""

    title: str
    why: str
    advice: str

    def __call__(self, call: Call) -> Traced:
        """Raise the error."""
        raise call.error(self.title, self.why, self.advice)


@dataclass(frozen=True)
class AsModule:
    """The converter of a function: that of the module which does the same when it is made with the same arguments."""

    module: type[nn.Module]
    converter: Converter

    def __call__(self, call: Call) -> Traced:
        """Make the module and convert it."""
        graph = call.walk.graph
        normal = call.node.normalized_arguments(graph.model, normalize_to_only_use_kwargs=True)  # pyright: ignore[reportArgumentType]
        assert normal is not None
        kwargs = {k: v for k, v in normal.kwargs.items() if k != "input"}
        if kwargs.pop("training", False):
            raise call.error(
                "drops values when evaluating",
                "it drops values even when evaluating",
                "pass training=self.training, or use a module",
            )
        return self.converter(replace(call, module=self.module(**kwargs)))


class _Pixels:
    """A tensor that is a function of each pixel alone: `functions`, of whole tensors, one after the other."""

    def __init__(self, functions: tuple[Callable[[Tensor], Tensor], ...] = ()) -> None:
        self.functions = functions

    def __call__(self, images: Tensor) -> Tensor:
        for function in self.functions:
            images = function(images)
        return images


class Walk:
    """One walk over the network's graph, call by call.

    Args:
        graph: The traced network.
        example: The batch it was traced with.
        converters: What becomes of modules and functions; a module is looked up by its class and the bases of it.
    """

    def __init__(
        self, graph: Graph, example: Tensor, converters: Mapping[type[nn.Module] | Callable[..., Any], Converter]
    ) -> None:
        self.graph = graph
        self.example = example
        self.converters = converters
        self.operations: list[Operation] = []
        self.values: dict[str, Value] = {}
        self.rounded: list[str] = []
        self._reached: set[fx.Node] = set()
        self._traced: dict[fx.Node, Traced | _Pixels] = {}
        self._floats: dict[Traced, Traced] = {}
        self._tables: dict[_Pixels, Traced] = {}

    def net(self, classes: tuple[str, ...], rounded: Sequence[str] = ()) -> IntegerNet:
        """Walk, and put the operations together."""
        for error in self.refusals():  # before anything that only stands in an unlucky place
            raise error
        outputs: tuple[Output, ...] = ()
        for node in self.graph.nodes:
            if node.op == "output":
                outputs = self._outputs(node)
            elif node in self._reached and node not in self._traced:
                inputs = tuple(self._tabulated(source, node) for source in self.sources(node))
                self._traced[node] = self._converter(node)(Call(self, node, self.graph.module(node), inputs))
        operations = self._read({output.value for output in outputs})
        notes = (*rounded, *self.rounded)
        return IntegerNet(tuple(self.example.shape[1:]), operations, classes, notes, self._dtype, outputs)

    def sources(self, node: fx.Node) -> list[fx.Node]:
        """The arguments of a node that depend on the network's input."""
        return [x for x in node.all_input_nodes if x in self._reached]

    def emit(self, operation: Operation) -> Value:
        """Append an operation; what its result is."""
        value = operation.infer(*(self.values[source] for source in operation.sources))
        self.operations.append(operation)
        self.values[operation.name] = value
        return value

    def free_name(self, name: str) -> str:
        """The name, or one like it that no value has."""
        free, number = name, 1
        while free in self.values:
            number += 1
            free = f"{name}#{number}"
        return free

    def as_float(self, x: Traced, last_name: str = "") -> Traced:
        """The tensor itself, as floats; the last operation is called `last_name`, if that is given."""
        if x not in self._floats or last_name:
            self._floats[x] = self._applied(x, last_name)
        return self._floats[x]

    def _find_reached(self) -> None:
        """Find what depends on the network's input, and on more than its shape."""
        for node in self.graph.nodes:
            depends = node.op == "placeholder" or any(source in self._reached for source in node.all_input_nodes)
            if depends and not self.graph.asks_shape(node):
                self._reached.add(node)

    def _find_pixels(self) -> None:
        """Find what is a function of each pixel alone, so that it becomes the table; floats go in as they are."""
        for node in self.graph.nodes:
            if node.op == "placeholder" and self.example.is_floating_point():
                self._traced[node] = self._floats_in()
                continue
            if node.op == "placeholder":
                self._traced[node] = _Pixels()
            sources = self.sources(node)
            if len(sources) != 1 or sources[0] not in self._traced or node not in self._reached:
                continue
            source, result = self._traced[sources[0]], self.graph.result(node)
            if isinstance(source, Traced):
                continue
            keeps_shape = isinstance(result, Tensor) and result.shape == self.example.shape
            if keeps_shape and node.op != "output" and not isinstance(self.graph.module(node), LAYERS):
                pixels = _Pixels((*source.functions, self.graph.function(node, sources[0])))
                if table(pixels, self.example) is not None:
                    self._traced[node] = pixels

    def refusals(self) -> list[FreezeError]:
        """What can never be converted, wherever it stands: an error for each, none raised."""
        self._find_reached()
        self._find_pixels()
        errors = []
        for node in self.graph.nodes:
            if node not in self._reached or node in self._traced or node.op == "output":
                continue
            try:
                converter = self._converter(node)
            except FreezeError as error:
                errors.append(error)
                continue
            if isinstance(converter, Refusal):
                errors.append(self.graph.error(node, converter.title, converter.why, converter.advice))
            elif not isinstance(self.graph.result(node), Tensor):
                kind = type(self.graph.result(node)).__name__
                why = f"it gives a {kind}, no tensor"
                errors.append(self.graph.error(node, "gives no tensor", why, "let it give a tensor"))
        return errors

    def _converter(self, node: fx.Node) -> Converter:
        """The converter of a node; FreezeError if there is none."""
        module = self.graph.module(node)
        if module is None:
            called = self.graph.called(node)
            if called in self.converters:
                return self.converters[called]
            name = f"torch.Tensor.{node.target}" if node.op == "call_method" else called.__name__
        else:
            name = type(module).__name__
            kind = kind_of(module, self.converters)
            if kind is not None:
                converter = self.converters[kind]
                own_forward = type(module).forward is not kind.forward and not _is_abstract(kind.forward)
                if own_forward and not isinstance(converter, Refusal):
                    raise self._own_forward(node, module, kind)
                return converter
        if any(isinstance(self._traced.get(source), _Pixels) for source in self.sources(node)):
            raise self.graph.error(
                node,
                "looks at more than a pixel",
                "it stands before the first layer and is not a function of each pixel alone",
                "begin with lehr.models.Input, or with operations on single pixels",
            )
        raise self.graph.error(
            node,
            "no converter",
            f"lehr has no converter for {name}",
            f"use layers that it knows, or write one and pass freeze(..., converters={{{name}: yours}})",
        )

    def _own_forward(self, node: fx.Node, module: nn.Module, kind: type[nn.Module]) -> FreezeError:
        own = (
            f"a {kind.__name__} with a forward of its own",
            f"use {kind.__name__} itself, or pass freeze(..., converters={{{type(module).__name__}: yours}})",
        )
        told = module.not_integer if isinstance(module, QuantizedLinear | Conv1d | Conv2d) else None
        return self.graph.error(node, "a forward of its own", *(told or own))

    @property
    def _dtype(self) -> InputType:
        return str(self.example.dtype).removeprefix("torch.")  # pyright: ignore[reportReturnType]

    def _read(self, outputs: set[str]) -> tuple[Operation, ...]:
        """The operations that the outputs need; the others are those of which only a shape was read."""
        read = set(outputs)
        kept = []
        for operation in reversed(self.operations):
            if operation.name in read:
                read.update(operation.sources)
                kept.append(operation)
        return tuple(kept[::-1])

    def _applied(self, x: Traced, last_name: str) -> Traced:
        name, channels = x.name, self.values[x.name].shape[0]
        affine = fold.composed((), channels)
        for function in (*x.functions, None):
            if function is not None and function.affine is not None:
                affine = fold.composed((Function(torch.clone, affine), function), channels)
                continue
            assert affine is not None
            scale, shift = affine
            if self.values[name].kind == "integer" or bool(((scale != 1) | (shift != 0)).any()):
                affine_name = (last_name if function is None else "") or self.free_name(f"{x.name}.affine")
                self.emit(Affine(affine_name, name, scale.float().numpy(), shift.float().numpy()))
                name = affine_name
            affine = fold.composed((), channels)
            if function is None:
                break
            if function.clip is None:
                raise FreezeError(
                    "no quantizer follows",
                    f"{function.path}: integers do what it does only together with a quantizer that follows; put a "
                    "lehr.Quantizer behind it, or leave it to whoever reads the outputs if it is the last",
                )
            clip_name = self.free_name(f"{x.name}.clip")
            self.emit(Clip(clip_name, name, *function.clip))
            name = clip_name
        return Traced(name, x.rank)

    def _tabulated(self, source: fx.Node, node: fx.Node) -> Traced:
        """The tensor; pixels as the first value of the integer network: all 256 of them, in every channel."""
        x = self._traced[source]
        if isinstance(x, Traced):
            return x
        if x in self._tables:
            return self._tables[x]
        if self._tables:
            raise self.graph.error(
                node,
                "pixels in two ways",
                "the network uses its pixels in two ways",
                "let one module prepare them for all",
            )
        pixels = table(x, self.example)
        assert pixels is not None
        found = fold.common_unit(pixels.numpy(), limit=2**15 - 1, tolerance=_TABLE_TOLERANCE)
        unit, entries = (1.0, pixels.numpy()) if found is None else found
        one_for_all = bool((entries == entries[:1]).all())
        name = "pixels" if self._dtype == "uint8" else "input"
        self._begin(Table(name, entries[:1] if one_for_all else entries))
        scale = torch.full((len(pixels),), unit, dtype=torch.float64)
        equal = np.array_equal((entries * unit).astype(np.float32), pixels.numpy())
        rounded = "" if equal else f"pixels that are multiples of {unit:g} but for rounding"
        functions = fold.scaled(scale, torch.zeros_like(scale))
        self._tables[x] = Traced(name, self.example.ndim, functions, rounded)
        return self._tables[x]

    def _floats_in(self) -> Traced:
        """Floats as the first value."""
        if "input" not in self.values:
            self._begin(Floats("input"))
        return Traced("input", self.example.ndim)

    def _begin(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.values[operation.name] = operation.infer(input_value(self.example.shape[1:], self._dtype))

    def _outputs(self, node: fx.Node) -> tuple[Output, ...]:
        """The outputs: one is called logits, those of a dictionary by their keys, others by their number."""
        given = node.args[0]
        named: dict[str, Any] = {"logits": given}
        if isinstance(given, Mapping):
            named = {str(name): result for name, result in given.items()}
        elif isinstance(given, Sequence):
            named = {f"output{number}": result for number, result in enumerate(given)}
        outputs = []
        for name, result in named.items():
            if not isinstance(result, fx.Node) or result not in self._traced:
                raise FreezeError(
                    "output that is no tensor",
                    f"{type(self.graph.model).__name__} must give a tensor computed from its input, or several in a "
                    f"tuple or a dictionary, and its {name if len(named) > 1 else 'output'} is none",
                )
            value = self.as_float(self._tabulated(result, result), last_name=self.free_name(name))
            outputs.append(Output(name, value.name, tuple(self.graph.shape(result)[1:])))
        return tuple(outputs)


def kind_of(module: nn.Module, converters: Mapping[Any, Converter]) -> type[nn.Module] | None:
    """The class of a module, or the nearest of its bases, that has a converter."""
    return next((kind for kind in type(module).__mro__ if kind in converters), None)


def _is_abstract(method: Callable[..., Any]) -> bool:
    return bool(vars(method).get("__isabstractmethod__"))
