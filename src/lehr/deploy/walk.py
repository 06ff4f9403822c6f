"""One walk over a traced network: each call becomes operations on integers, by the converter that knows it.

A tensor that is a function of each pixel alone needs no converter: all such functions become the first operation, a
`Table`, by running them on all 256 values. What a converter takes and gives is in conversion.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from lehr.deploy import fold
from lehr.deploy.conversion import Call, Converter, Moving, Refusal
from lehr.deploy.freeze_errors import FreezeError
from lehr.deploy.inputs import InputType, input_value
from lehr.deploy.integer_net import IntegerNet, Output
from lehr.deploy.moves import settled
from lehr.deploy.net_builder import NetBuilder, Traced
from lehr.deploy.operations import Floats, Operation, Table
from lehr.deploy.trace import LAYERS, Graph, table
from lehr.layers import QuantizedWeight

# A table of pixels may miss its unit by the rounding of float32; levels may not.
_TABLE_TOLERANCE = 2.0**-22


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
        self.builder = NetBuilder()
        self._reached = _depends_on_input(graph)
        self._traced: dict[fx.Node, Traced | _Pixels] = {}
        self._tables: dict[_Pixels, Traced] = {}
        self._find_pixels()

    def net(self, classes: tuple[str, ...], rounded: Sequence[str] = ()) -> IntegerNet:
        """Walk, and put the operations together."""
        for error in self.refusals():  # report what can never be converted before errors that depend on position
            raise error
        outputs: tuple[Output, ...] = ()
        for node in self.graph.nodes:
            if node.op == "output":
                outputs = self._outputs(node)
            elif node in self._reached and node not in self._traced:
                sources = self.sources(node)
                converter = self._converter(node)
                inputs = tuple(self._tabulated(source, node) for source in sources)
                if not isinstance(converter, Moving):
                    inputs = tuple(settled(self.builder, x) for x in inputs)
                call = Call(self.graph, self.builder, node, self.graph.module(node), sources, inputs)
                self._traced[node] = converter(call)
        operations = self.builder.needed({output.value for output in outputs})
        notes = (*rounded, *self.builder.rounded)
        return IntegerNet(tuple(self.example.shape[1:]), operations, classes, notes, self._dtype, outputs)

    def sources(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """The arguments of a node that depend on the network's input."""
        return tuple(x for x in node.all_input_nodes if x in self._reached)

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
            elif not isinstance(converter, Moving) and not isinstance(self.graph.result(node), Tensor):
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
        if any(self.graph.result(node) is self.graph.result(source) for source in self.sources(node)[:1]):
            return Moving(lambda call: call.inputs[0])  # it gives back what it got, as DropPath in eval mode does
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
        told = module.not_integer if isinstance(module, QuantizedWeight) else None
        return self.graph.error(node, "a forward of its own", *(told or own))

    @property
    def _dtype(self) -> InputType:
        return str(self.example.dtype).removeprefix("torch.")  # pyright: ignore[reportReturnType]

    def _tabulated(self, source: fx.Node, node: fx.Node) -> Traced:
        """The tensor; pixels as the first value of the integer network: all 256 of them, in every channel."""
        x = self._traced[source]
        if not isinstance(x, _Pixels):
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
        if "input" not in self.builder.values:
            self._begin(Floats("input"))
        return Traced("input", self.example.ndim)

    def _begin(self, operation: Operation) -> None:
        self.builder.begin(operation, input_value(self.example.shape[1:], self._dtype))

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
            value = settled(self.builder, self._tabulated(result, result))
            value = self.builder.as_float(value, last_name=self.builder.free_name(name))
            outputs.append(Output(name, value.name, tuple(self.graph.shape(result)[1:])))
        return tuple(outputs)


def kind_of(module: nn.Module, converters: Mapping[Any, Converter]) -> type[nn.Module] | None:
    """The class of a module, or the nearest of its bases, that has a converter."""
    return next((kind for kind in type(module).__mro__ if kind in converters), None)


def _is_abstract(method: Callable[..., Any]) -> bool:
    return bool(vars(method).get("__isabstractmethod__"))


def _depends_on_input(graph: Graph) -> set[fx.Node]:
    """The nodes that depend on the network's input, and on more than its shape."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        depends = node.op == "placeholder" or any(source in found for source in node.all_input_nodes)
        if depends and not graph.asks_shape(node):
            found.add(node)
    return found
