"""The network as a graph to walk: traced with torch.fx, run once on an example, and asked what each node does.

Layers and quantizers stay whole. So do modules that read the pixels and map each by itself: what they do is found by
running them, and their `forward` need not be traceable. The kinds of modules and calls that `freeze` knows are listed
here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError
from torch.nn import functional as F

from lehr.deploy.operations import Shape
from lehr.layers import AbstractQuantizer, Conv1d, Conv2d, Linear

LAYERS = (Linear, Conv1d, Conv2d, nn.Linear, nn.Conv1d, nn.Conv2d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d)
ADAPTIVE_AVERAGES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, *ADAPTIVE_AVERAGES)
CLIPS = (nn.ReLU, nn.ReLU6, nn.Hardtanh)
NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
# A call of the function is a call of the module made with its arguments.
_AS_MODULE: dict[Any, type[nn.Module]] = {
    F.max_pool1d: nn.MaxPool1d,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool1d: nn.AvgPool1d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_max_pool1d: nn.AdaptiveMaxPool1d,
    F.adaptive_max_pool2d: nn.AdaptiveMaxPool2d,
    F.dropout: nn.Dropout,
}
CLIP_CALLS = {F.relu, torch.relu, torch.relu_, F.relu6, F.hardtanh, torch.clamp, torch.clip}
CLIP_CALLS |= {"relu", "relu_", "clamp", "clamp_", "clip", "clip_"}
ADD_CALLS = {operator.add, operator.iadd, torch.add, "add", "add_"}
AFFINE_CALLS = {
    operator.sub,
    operator.isub,
    operator.mul,
    operator.imul,
    operator.neg,
    torch.sub,
    torch.mul,
    torch.neg,
}
AFFINE_CALLS |= ADD_CALLS | {"sub", "sub_", "mul", "mul_", "neg"}
DIVISION_CALLS = {operator.truediv, operator.itruediv, torch.div, "div", "div_"}
_IN_PLACE_CALLS = {operator.iadd, operator.isub, operator.imul, operator.itruediv, torch.relu_}
_IN_PLACE_CALLS |= {"relu_", "clamp_", "clip_", "add_", "sub_", "mul_", "div_"}
RESHAPE_CALLS = {torch.flatten, torch.reshape, torch.squeeze, "flatten", "view", "reshape", "squeeze"}
MEAN_CALLS = {torch.mean, "mean"}
NOTHING_CALLS = {"contiguous", "float", "clone", "detach"}
# What may be asked of a tensor without looking at its values.
_SHAPE_CALLS = {"size", "dim", "numel", len}
_SHAPE_ATTRIBUTES = {"shape", "ndim", "dtype", "device"}


class FreezeError(ValueError):
    """A network that cannot become integers: the module, why, and what to do."""


class Graph:
    """The traced `model` with the results it has for `example`, node by node."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self.model = model
        self.modules = dict(model.named_modules())
        try:
            fronts = _fronts(model, example)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise FreezeError(
                f"{type(model).__name__} does not run on example_input, uint8 of shape {tuple(example.shape[1:])} an "
                f"image: {error}; give it pixels of the shape it takes, and let it begin with what makes its input of "
                "them, as in nn.Sequential(lehr.models.Input(...), model)"
            ) from error
        try:
            graph = _Tracer(fronts).trace(model)
        except (TraceError, RuntimeError, TypeError) as error:
            raise FreezeError(
                f"{type(model).__name__} cannot be traced: {error}; its forward must not depend on values it computes, "
                "nor make tensors of its own, and asks for the size of a batch by x.size(0), not len(x)"
            ) from error
        self._check_in_place(graph)
        fx.GraphModule(model, graph).graph.eliminate_dead_code()
        self.interpreter = fx.Interpreter(model, garbage_collect_values=False, graph=graph)
        self.interpreter.run(example)
        self.nodes = list(graph.nodes)
        inputs = [node for node in self.nodes if node.op == "placeholder"]
        if len(inputs) != 1:
            raise FreezeError(f"the network takes {len(inputs)} inputs: only one, of pixels, can be frozen")

    def result(self, node: fx.Node) -> Any:
        """What the node gives for the example."""
        return self.interpreter.env[node]

    def shape(self, node: fx.Node) -> torch.Size:
        """Of its result."""
        return self.result(node).shape

    def asks_shape(self, node: fx.Node) -> bool:
        """Whether the node asks for something that does not depend on a tensor's values."""
        return node.target in _SHAPE_CALLS or (node.target is getattr and node.args[1] in _SHAPE_ATTRIBUTES)

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module the node calls, or the module that does what the function it calls does."""
        if node.op == "call_module":
            return self.modules[str(node.target)]
        if node.target not in _AS_MODULE:
            return None
        normal = node.normalized_arguments(self.model, normalize_to_only_use_kwargs=True)  # pyright: ignore[reportArgumentType]
        assert normal is not None
        kwargs = {k: v for k, v in normal.kwargs.items() if k != "input"}
        if kwargs.pop("training", False):
            raise self.error(
                node, "it drops values even when evaluating", "pass training=self.training, or use a module"
            )
        return _AS_MODULE[node.target](**kwargs)

    def function(self, node: fx.Node, source: fx.Node) -> Callable[[Tensor], Tensor]:
        """What torch does at this node, as a function of its input `source`; the others are as in the example."""

        def call(x: Tensor) -> Tensor:
            def value(argument: fx.Node) -> Any:
                return x if argument is source else self.result(argument)

            args = map_arg(node.args, value)
            kwargs = map_arg(node.kwargs, value)
            return getattr(self.interpreter, node.op)(node.target, args, kwargs)

        return call

    def path(self, node: fx.Node) -> str:
        """Where the node stands in the model: a module's path, or that of the module whose forward makes the call."""
        if node.op == "call_module":
            return str(node.target)
        return ".".join([*list(node.meta.get("nn_module_stack", {}))[-1:], node.name])

    def error(self, node: fx.Node, why: str, remedy: str) -> FreezeError:
        """The error to raise about a node."""
        what = f" ({type(self.modules[str(node.target)]).__name__})" if node.op == "call_module" else ""
        return FreezeError(f"{self.path(node)}{what}: {why}; {remedy}")

    def check_plain(self, node: fx.Node, module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> None:
        """Refuse a subclass that computes something of its own."""
        kind = next(kind for kind in kinds if isinstance(module, kind))
        if type(module).forward is not kind.forward:
            told = module.not_integer if isinstance(module, Linear | Conv1d | Conv2d) else None
            own = f"a {kind.__name__} with a forward of its own", f"use {kind.__name__} itself"
            raise self.error(node, *(told or own))

    def _check_in_place(self, graph: fx.Graph) -> None:
        """The graph takes every operation for one that leaves its input alone."""
        seen: set[fx.Node] = set()
        for node in reversed(graph.nodes):
            module = self.modules[str(node.target)] if node.op == "call_module" else None
            in_place = isinstance(module, (*CLIPS, *NOTHING[1:])) and module.inplace
            in_place |= node.target in _IN_PLACE_CALLS or bool(node.kwargs.get("inplace"))
            if in_place and any(user in seen for user in node.all_input_nodes[0].users):
                raise self.error(node, "it changes in place a value that is read again later", "use what it returns")
            seen.add(node)


class _Tracer(fx.Tracer):
    """Leaves lehr's layers whole, and `fronts`, modules that map each pixel by itself."""

    def __init__(self, fronts: set[nn.Module]) -> None:
        super().__init__()
        self.fronts = fronts

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the walk meets this module, not what it is made of."""
        ours = isinstance(m, (AbstractQuantizer, *LAYERS)) or m in self.fronts
        return ours or super().is_leaf_module(m, module_qualified_name)


def _fronts(model: nn.Module, example: Tensor) -> set[nn.Module]:
    """The modules that read the pixels and map each by itself: they are run, so they need not be traceable."""
    readers: list[nn.Module] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        if len(args) == 1 and args[0] is example:
            readers.append(module)

    hooks = [module.register_forward_pre_hook(note) for module in model.modules() if module is not model]
    model(example)
    for hook in hooks:
        hook.remove()
    holders = (reader for reader in readers if not any(isinstance(x, LAYERS) for x in reader.modules()))
    return {holder for holder in holders if table(holder, example.shape) is not None}


def table(function: Callable[[Tensor], Tensor], shape: torch.Size) -> Tensor | None:
    """What becomes of each pixel value, (channel, 256); None if that depends on more than the value and the channel.

    It is looked at in three batches: with other values at other places, other values in other channels, and, in the
    third, other values altogether, so that statistics of an image differ.
    """
    channels, count = shape[1], math.prod(shape[2:])
    images = max(-(-256 // count), 2)
    every = torch.arange(images * count) % 256
    generator = torch.Generator().manual_seed(0)
    found = None
    for fewer in (False, False, True):
        pixels = torch.stack([every[torch.randperm(len(every), generator=generator)] for _ in range(channels)])
        if fewer:
            pixels = 64 + pixels // (2 + torch.arange(channels)[:, None] % 2)
        placed = pixels.reshape(channels, images, *shape[2:]).transpose(0, 1).to(torch.uint8).contiguous()
        result = function(placed)
        if not isinstance(result, Tensor) or result.shape != placed.shape:
            return None
        columns = result.float().transpose(0, 1).reshape(channels, -1)
        if found is None:
            found = columns.new_zeros(channels, 256).scatter_(1, pixels, columns)
        if not torch.equal(found.gather(1, pixels), columns):
            return None
    return found


def pair(size: int | Sequence[int], filler: int, space: int = 2) -> tuple[int, int]:
    """Rows and columns of a size in `space` dimensions; one dimension is the columns of one row."""
    sizes = (size,) * space if isinstance(size, int) else tuple(size)
    rows, columns = (*(filler,) * (2 - len(sizes)), *sizes)
    return rows, columns


def shape3(shape: Sequence[int]) -> Shape:
    """Torch's (image, channel, ...) as (channel, row, column); the columns are the last dimension."""
    channels, *space = shape[1:]
    rows, columns = (*(1,) * (2 - len(space)), *space)
    return channels, rows, columns
