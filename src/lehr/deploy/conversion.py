"""What a converter takes and gives: a `Call` of the traced network, and a `Traced` (net_builder.py).

A `Call` tells what torch calls with which `Traced` inputs. A converter emits operations, or adds functions that wait
for the next thresholds, and returns the `Traced` of its result:

    def negative(call):
        (x,) = call.inputs
        return call.then(x, fold.scaled(-torch.ones(call.channels(x)), torch.zeros(call.channels(x))))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from lehr.deploy import fold
from lehr.deploy.fold import Function
from lehr.deploy.freeze_errors import FreezeError
from lehr.deploy.net_builder import NetBuilder, Traced
from lehr.deploy.operations import Conv, Operation, Value, Weights, as_shape
from lehr.deploy.trace import Graph


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the traced network, as a converter sees it.

    Args:
        graph: The traced network.
        net: The integer network so far.
        node: The call in the graph.
        module: The module that is called, or that does what the called function does; None for other functions.
        sources: The arguments, nodes of the graph, that are computed from the network's input.
        inputs: The tensors they stand for.
    """

    graph: Graph
    net: NetBuilder
    node: fx.Node
    module: nn.Module | None
    sources: tuple[fx.Node, ...]
    inputs: tuple[Traced, ...]

    @property
    def path(self) -> str:
        """Where the call stands in the model."""
        return self.graph.path(self.node)

    @property
    def shape(self) -> torch.Size:
        """The shape of torch's result for a batch of two images."""
        return self.graph.shape(self.node)

    @property
    def function(self) -> Callable[[Tensor], Tensor]:
        """What torch does here, as a function of the first input; its other arguments are as in the example."""
        return self.graph.function(self.node, self.sources[0])

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
        return self.net.values[x.name]

    def channels(self, x: Traced) -> int:
        """Channels of a tensor."""
        return self.value(x).shape[0]

    def name(self, suffix: str = "") -> str:
        """A name for an operation that stands for this call."""
        return self.net.free_name(self.path + (f".{suffix}" if suffix else ""))

    def emit(self, operation: Operation, *, is_last: bool = True) -> None:
        """Append an operation; the last one of a call has a result of the shape that torch's has.

        FreezeError if its sums could leave int32, or its shape is another.
        """
        try:
            value = self.net.emit(operation)
        except ValueError as error:
            raise self.error(
                "sums beyond int32",
                str(error).removeprefix(f"{operation.name}: "),
                "use fewer bits for weights or activations",
            ) from error
        if is_last and as_shape(self.shape[1:]) != value.shape:
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
        return self.net.as_float(x)

    def times(self, x: Traced, factors: Tensor) -> Traced:
        """The same tensor as functions of integers multiplied per channel; the factors are +-1 to 127."""
        if bool((factors == 1).all()):
            return x
        name = self.name("times")
        self.net.emit(Conv(name, x.name, Weights.of(factors.numpy().reshape(-1, 1, 1, 1)), groups=len(factors)))
        undo = 1 / factors.double()
        return replace(x, name=name, functions=(*fold.scaled(undo, torch.zeros_like(undo)), *x.functions))

    def note(self, why: str) -> None:
        """Remember that torch's result here depends on how its sums are rounded."""
        if f"{self.path}: {why}" not in self.net.rounded:
            self.net.rounded.append(f"{self.path}: {why}")

    def error(self, title: str, why: str, advice: str) -> FreezeError:
        """The error to raise about this call; docs/troubleshooting.md explains each title."""
        return self.graph.error(self.node, title, why, advice)


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
class Moving:
    """A converter that takes tensors whose moves have still to be made, and may give several (moves.py)."""

    converter: Callable[[Call], Any]

    def __call__(self, call: Call) -> Any:
        """Convert."""
        return self.converter(call)


@dataclass(frozen=True)
class AsModule:
    """The converter of a function: that of the module which does the same when it is made with the same arguments."""

    module: type[nn.Module]
    converter: Converter

    def __call__(self, call: Call) -> Traced:
        """Make the module and convert it."""
        normal = call.node.normalized_arguments(call.graph.model, normalize_to_only_use_kwargs=True)  # pyright: ignore[reportArgumentType]
        assert normal is not None
        kwargs = {k: v for k, v in normal.kwargs.items() if k != "input"}
        if kwargs.pop("training", False):
            raise call.error(
                "drops values when evaluating",
                "it drops values even when evaluating",
                "pass training=self.training, or use a module",
            )
        return self.converter(replace(call, module=self.module(**kwargs)))
