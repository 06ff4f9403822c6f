"""The uses of functions in a model, found by tracing it with torch.fx: no data are needed.

A module whose forward looks at values cannot be traced; it is one closed node, and the rest of the model is traced all
the same. Of one that calls a function with activations in it, which torch.fx was told not to look into
(`torch.fx.wrap`), the calls are hidden.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn

from lehr import additions
from lehr.additions import ADDITION, summands
from lehr.nonlinear import FUNCTIONS, METHODS, name_of
from lehr.uses import LAYERS, NAMES, PRODUCTS, Runs, Use, is_whole

# Between the last function and the output these only give its values another shape.
_RESHAPES = {"squeeze", "unsqueeze", "view", "reshape", "flatten", "contiguous", "getitem", "permute", "transpose"}
_RESHAPING = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout)
# Besides these, what leaves a layer's results linear, or almost: a layer behind them reads what the other layer gives.
_LINEAR = {"mean", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "max_pool1d", "max_pool2d"}
_LINEAR |= {"dropout", "batch_norm"}
_LINEAR_MODULES = (
    *(nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.MaxPool1d, nn.MaxPool2d),
)


class UseTracer(fx.Tracer):
    """Traces the model symbolically, and notes its uses."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = Runs()
        self.nodes: dict[fx.Node, Use] = {}
        self.closed: dict[str, str] = {}
        self.hidden: dict[str, str] = {}
        self.bypassed: set[str] = set()
        self.ran: set[str] = set()
        self.linear: set[str] = set()

    def seen(self, model: nn.Module) -> dict[str, list[list[Use]]]:
        """Trace the model, and return the uses of each run of each owner."""
        parameters = inspect.signature(model.forward).parameters.values()
        given = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
        self.runs.enter("")
        graph = self.trace(model, concrete_args=given or None)
        for node in _outputs(graph, model):
            if node in self.nodes:
                self.nodes[node].is_output = True
        self.linear = {str(node.target) for node in graph.nodes if _reads_layer(node, model)}
        below = {f"{path}.{name}" for path in self.hidden for name, _ in model.get_submodule(path).named_modules()}
        layers = {path for path, module in model.named_modules() if isinstance(module, LAYERS)}
        self.bypassed = below & layers - self.ran
        return {path: runs for path, runs in self.runs.by_owner.items() if path not in self.hidden}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the module is one node of the graph."""
        return is_whole(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note the module, and trace what it is made of."""
        path = self.path_of_module(m)
        if isinstance(m, LAYERS):
            self.runs.after = path
            self.ran.add(path)
        name = name_of(m)
        use = None if name is None else self.runs.add(name, path)
        if self.is_leaf_module(m, path):
            result = super().call_module(m, forward, args, kwargs)
        else:
            result = self._inside(m, path, forward, args, kwargs)
        if use is not None and isinstance(result, fx.Proxy):
            self.nodes[result.node] = use
        return result

    def _inside(self, module: nn.Module, path: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Trace what the module is made of; one that cannot be traced is one node, and closed."""
        log, stack, modules = len(self.runs.log), len(self.runs.stack), dict(self.module_stack)
        self.runs.enter(path)
        try:
            result = super().call_module(module, forward, args, kwargs)
        except Exception as error:
            del self.runs.log[log:], self.runs.stack[stack:]
            self.module_stack.clear()
            self.module_stack.update(modules)
            self.closed[path] = told(error)
            return self.create_proxy("call_module", path, args, kwargs)
        self.runs.leave()
        return result

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        """Note the function that the node stands for."""
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        name = None
        if kind == "call_function":
            name = NAMES.get(target) or ("matmul" if getattr(target, "__name__", "") == "matmul" else None)
        elif kind == "call_method" and (target in METHODS or target in PRODUCTS.values()):
            name = FUNCTIONS.get(getattr(torch.Tensor, target)) or target
        hidden = _hidden(target) if kind == "call_function" and name is None else None
        if hidden is not None and self.runs.stack:
            self.hidden[self.runs.stack[-1][0]] = f"torch.fx does not look into {target.__name__}, which calls {hidden}"
        if name is not None:
            self.nodes[proxy.node] = self.runs.add(name)
        adds = (
            target in additions.FUNCTIONS | additions.OPERATORS
            if kind == "call_function"
            else target in additions.METHODS
        )
        both = summands(args, kwargs) if adds and kind in ("call_function", "call_method") else None
        if both is not None:
            use = self.nodes[proxy.node] = self.runs.add(ADDITION)
            use.line = additions.line()
            use.adds_constant = any(not isinstance(x, fx.Proxy) or x.node.op == "get_attr" for x in both)
        return proxy


def _hidden(target: Any) -> str | None:
    """The nonlinear function that a user's function calls, which torch.fx.wrap has made one node."""
    if not inspect.isfunction(target) or target.__module__.startswith("torch."):
        return None
    return next((name for name in target.__code__.co_names if name in FUNCTIONS.values()), None)


def _reads_layer(node: fx.Node, model: nn.Module) -> bool:
    """Whether the node is a layer with weights that reads what another one gives."""

    def module_of(x: fx.Node) -> nn.Module | None:
        return model.get_submodule(str(x.target)) if x.op == "call_module" else None

    def is_linear(x: fx.Node) -> bool:
        module = module_of(x)
        if isinstance(module, LAYERS):
            return True
        name = x.target if isinstance(x.target, str) else getattr(x.target, "__name__", "")
        passes = isinstance(module, _RESHAPING + _LINEAR_MODULES) or (module is None and name in _RESHAPES | _LINEAR)
        return passes and any(is_linear(source) for source in x.all_input_nodes[:1])

    return isinstance(module_of(node), LAYERS) and any(is_linear(source) for source in node.all_input_nodes[:1])


def _outputs(graph: fx.Graph, model: nn.Module) -> Iterable[fx.Node]:
    """The nodes whose values the graph gives, perhaps in another shape."""
    open_nodes = [node for last in graph.nodes if last.op == "output" for node in last.all_input_nodes]
    seen = set()
    while open_nodes:
        node = open_nodes.pop()
        seen.add(node)
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        module = model.get_submodule(name) if node.op == "call_module" else None
        if isinstance(module, _RESHAPING) or (node.op in ("call_function", "call_method") and name in _RESHAPES):
            open_nodes += [source for source in node.all_input_nodes[:1] if source not in seen]
    return seen


def told(error: Exception) -> str:
    """The first sentence of an error."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0].partition('. ')[0] if str(error) else ''}"
