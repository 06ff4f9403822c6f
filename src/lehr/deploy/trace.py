"""The network as a graph to walk: traced with torch.fx, run once on an example, and asked what each node does.

Layers and quantizers stay whole, and so does every module that has a converter. So do modules that read the pixels and
map each by itself: what they do is found by running them, and their `forward` need not be traceable.
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

from lehr.calls import CallTracer, is_opened
from lehr.deploy.freeze_errors import FreezeError

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)  # and those of lehr, which are these
_IN_PLACE_OPERATORS = {operator.iadd, operator.isub, operator.imul, operator.itruediv}
# What may be asked of a tensor without looking at its values.
_SHAPE_CALLS = {"size", "dim", "numel", len}
_SHAPE_ATTRIBUTES = {"shape", "ndim", "dtype", "device"}


class Graph:
    """The traced `model` with the results it has for `example`, node by node.

    Args:
        model: The network, in eval mode.
        example: A batch that it takes.
        is_whole: Whether a module is one node of the graph, whatever it is made of.
    """

    def __init__(self, model: nn.Module, example: Tensor, is_whole: Callable[[nn.Module], bool]) -> None:
        self.model, self.example = model, example
        self.modules = dict(model.named_modules())
        try:
            fronts = _fronts(model, example)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise FreezeError(
                "does not run on the example",
                f"{type(model).__name__} does not run on example_input, {str(example.dtype).removeprefix('torch.')} of "
                f"shape {tuple(example.shape)}: {error}; give it a batch as it takes it, and let it begin with what "
                "makes its input of pixels or signals, as in nn.Sequential(lehr.models.Input(...), model)",
            ) from error
        try:
            graph = _Tracer(lambda module: module in fronts or is_whole(module)).trace(model)
        except (TraceError, RuntimeError, TypeError) as error:
            raise FreezeError(
                "cannot be traced",
                f"{type(model).__name__} cannot be traced: {error}; its forward must not depend on values it computes, "
                "nor make tensors of its own, and asks for the size of a batch by x.size(0), not len(x)",
            ) from error
        self._check_in_place(graph)
        fx.GraphModule(model, graph).graph.eliminate_dead_code()
        self.interpreter = fx.Interpreter(model, garbage_collect_values=False, graph=graph)
        self.interpreter.run(example)
        self.nodes = list(graph.nodes)
        inputs = [node for node in self.nodes if node.op == "placeholder" and (node.users or not node.args)]
        if len(inputs) != 1:
            raise FreezeError(
                "several inputs",
                f"{type(model).__name__} takes {len(inputs)} inputs: join them into one tensor, which its forward "
                "takes apart, or freeze the part behind the place where they meet",
            )

    def result(self, node: fx.Node) -> Any:
        """What the node gives for the example."""
        return self.interpreter.env[node]

    def shape(self, node: fx.Node) -> torch.Size:
        """Of its result."""
        return self.result(node).shape

    def asks_shape(self, node: fx.Node) -> bool:
        """Whether the node asks for something that does not depend on a tensor's values."""
        if node.op == "call_module":  # one that is called size, say
            return False
        return node.target in _SHAPE_CALLS or (node.target is getattr and node.args[1] in _SHAPE_ATTRIBUTES)

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module the node calls, if it calls one."""
        return self.modules[str(node.target)] if node.op == "call_module" else None

    def called(self, node: fx.Node) -> Callable[..., Any]:
        """The function the node calls; of a tensor's method, that of the class: `torch.Tensor.flatten`."""
        return getattr(Tensor, node.target, len) if isinstance(node.target, str) else node.target

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

    def error(self, node: fx.Node, title: str, why: str, advice: str) -> FreezeError:
        """The error to raise about a node."""
        module = self.module(node)
        what = "" if module is None else f" ({type(module).__name__})"
        return FreezeError(title, f"{self.path(node)}{what}: {why}; {advice}")

    def _check_in_place(self, graph: fx.Graph) -> None:
        """The graph takes every operation for one that leaves its input alone."""
        seen: set[fx.Node] = set()
        for node in reversed(graph.nodes):
            module = self.module(node)
            in_place = module is not None and bool(vars(module).get("inplace"))
            in_place |= node.op in ("call_function", "call_method") and _is_in_place(node)
            if in_place and any(user in seen for user in node.all_input_nodes[0].users):
                raise self.error(
                    node,
                    "changed in place",
                    "it changes in place a value that is read again later",
                    "use what it returns, or inplace=False",
                )
            seen.add(node)


def _is_in_place(node: fx.Node) -> bool:
    """`x += y`, `x.relu_()`, `torch.relu_(x)`, `F.relu(x, inplace=True)`."""
    name = node.target if isinstance(node.target, str) else node.target.__name__
    in_name = name.endswith("_") and not name.endswith("__")
    return in_name or node.target in _IN_PLACE_OPERATORS or bool(node.kwargs.get("inplace"))


class _Tracer(CallTracer):
    """Leaves those modules whole that the caller names, beside torch's own."""

    def __init__(self, is_whole: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.is_whole = is_whole

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the walk meets this module, not what it is made of."""
        return not is_opened(m) and (self.is_whole(m) or super().is_leaf_module(m, module_qualified_name))


def _fronts(model: nn.Module, example: Tensor) -> set[nn.Module]:
    """The modules that read the pixels and map each by itself: they are run, so they need not be traceable."""
    readers: list[nn.Module] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        if len(args) == 1 and args[0] is example:
            readers.append(module)

    hooks = [module.register_forward_pre_hook(note) for module in model.modules() if module is not model]
    try:
        model(example)
    finally:
        for hook in hooks:
            hook.remove()
    holders = (reader for reader in readers if not any(isinstance(x, LAYERS) for x in reader.modules()))
    return {holder for holder in holders if table(holder, example) is not None}


def table(function: Callable[[Tensor], Tensor], example: Tensor) -> Tensor | None:
    """What becomes of each value of 8 bits, (channel, 256), in the shape of `example`, from the smallest on.

    None if that depends on more than the value and the channel, or if the example is of floats.

    It is looked at in three batches: with other values at other places, other values in other channels, and, in the
    third, other values altogether, so that statistics of an image differ.
    """
    if example.is_floating_point():
        return None
    shape, first = example.shape, torch.iinfo(example.dtype).min
    channels, count = shape[1], math.prod(shape[2:])
    images = max(-(-256 // count), 2)
    every = torch.arange(images * count) % 256
    generator = torch.Generator().manual_seed(0)
    found = None
    for fewer in (False, False, True):
        pixels = torch.stack([every[torch.randperm(len(every), generator=generator)] for _ in range(channels)])
        if fewer:
            pixels = 64 + pixels // (2 + torch.arange(channels)[:, None] % 2)
        placed = pixels.reshape(channels, images, *shape[2:]).transpose(0, 1)
        placed = (placed + first).to(example.dtype).contiguous()
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
