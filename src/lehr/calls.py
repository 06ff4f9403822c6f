"""Quantizers for calls of functions: `F.relu(x)` in a `forward` is quantized as `nn.ReLU()` is.

The user's own `forward` runs as it is written. While it runs, torch asks a `TorchFunctionMode` before each of its
functions, and the n-th call of a nonlinearity goes through the n-th quantizer. The quantizers are modules, in
`quantized_calls` of the module whose `forward` makes the calls::

    x = F.relu(self.conv1(x))        # the first call: self.quantized_calls.relu
    x = F.relu(self.conv2(x))        # the second:     self.quantized_calls.relu_1

An addition of two tensors is a call too, with one quantizer for both sides: `a + b` becomes `q(a) + q(b)`.

Calls are counted for each module by itself, so a block that is left out at random does not disturb the others. A call
that was not seen when the model was converted is an error, not a silent float operation.

Why this and not the alternatives: the forward that torch.fx generates has one branch of every `if`, and that of
`self.training` too; a subclass with another forward cannot be pickled by its name. Here the class, the parameters'
names and the source stay the user's. `forward` is set on the object, where copying, pickling, hooks, DDP and
torch.compile (in one graph) find it.
"""

from __future__ import annotations

import operator
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from lehr import additions
from lehr.additions import ADDITION, summands
from lehr.models.input import Input
from lehr.models.signal_input import SignalInput
from lehr.nonlinear import FUNCTIONS, IN_PLACE, METHODS
from lehr.quantizer import AbstractQuantizer
from lehr.tracing import ADVICE, OwnForwardTracer

CALLS = "quantized_calls"


@dataclass(frozen=True)
class Site:
    """A call of the function `name` in a forward, and what becomes of it.

    Args:
        name: the function, such as relu
        quantizer: the name of its quantizer in `quantized_calls`; None leaves the call alone
        follows: whether the function is computed and its result quantized; else the quantizer takes its place
        line: of an addition, the function and its line that makes it
    """

    name: str
    quantizer: str | None = None
    follows: bool = False
    line: tuple[str, int] | None = None


class QuantizedCalls(nn.ModuleDict):
    """The quantizers of the calls in one module's forward, and the layer with weights that runs before each."""

    def __init__(self, quantizers: Mapping[str, AbstractQuantizer], after: Mapping[str, nn.Module]) -> None:
        super().__init__(quantizers)
        self.after = dict(after)  # not registered: these modules have their places


class _Running(threading.local):
    """The calls that are counted now: those of the innermost forward with quantized calls."""

    def __init__(self) -> None:  # in each thread; torch.compile fails where an attribute is first the class's
        self.redirect: _Redirect | None = None


_running = _Running()


class OwnForward:
    """What stands in a module's `forward`: it calls the class's forward, in a way of its own."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @property
    def __wrapped__(self) -> Callable[..., Any]:  # for those who ask for the signature
        return types.MethodType(type(self.module).forward, self.module)

    @property
    def __code__(self) -> types.CodeType:  # for torch.export
        return type(self.module).forward.__code__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the class's forward, and count none of its calls."""
        enclosing, _running.redirect = _running.redirect, None
        try:
            return self.run(*args, **kwargs)
        finally:
            _running.redirect = enclosing

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The class's forward."""
        return type(self.module).forward(self.module, *args, **kwargs)


class Split(OwnForward):
    """The forward of an activation module used at several places: each use counts as a call of its user's."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the class's forward."""
        return self.run(*args, **kwargs)


class Followed(OwnForward):
    """The forward of an activation module whose result is quantized, by its `quantizer`."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Quantize what the class's forward gives."""
        return cast(AbstractQuantizer, self.module.quantizer)(super().run(*args, **kwargs))


class Redirected(OwnForward):
    """The forward of a module whose calls are quantized: `sites`, in order, when it trains (True) and evaluates."""

    def __init__(self, module: nn.Module, sites: Mapping[bool, Sequence[Site]]) -> None:
        super().__init__(module)
        self.sites = {training: tuple(sites[training]) for training in (True, False)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the class's forward with its calls quantized."""
        redirect = _Redirect(self.module, self.sites[self.module.training])
        enclosing, _running.redirect = _running.redirect, redirect
        try:
            with redirect:
                result = type(self.module).forward(self.module, *args, **kwargs)
        finally:
            _running.redirect = enclosing
        if redirect.count < len(redirect.sites):
            if any(isinstance(x, fx.Proxy) for x in (*args, *kwargs.values())):  # x.relu() of a symbol is a method
                raise RuntimeError(f"torch.fx misses quantized calls of {type(self.module).__name__}: {ADVICE}")
            raise RuntimeError(redirect.complaint(f"only {redirect.count} calls"))
        return result


class _Redirect(TorchFunctionMode):
    """One run of a forward: counts its calls of nonlinearities and sends each to its quantizer."""

    def __init__(self, module: nn.Module, sites: Sequence[Site]) -> None:
        super().__init__()
        self.module = module
        self.sites = sites
        self.count = 0
        self.adds = any(site.name == ADDITION for site in sites)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer for torch's function: of other functions, and in the forward of a module inside, as torch does."""
        kwargs = kwargs or {}
        name = FUNCTIONS.get(func)
        if _running.redirect is self and func in additions.FUNCTIONS:
            both = summands(args, kwargs)
            if both is not None:
                return self.add(torch.add, *both, is_in_place=func in additions.IN_PLACE)
        if name is None or _running.redirect is not self:
            return func(*args, **kwargs)
        is_in_place = func in IN_PLACE or kwargs.get("inplace", False)
        return self.call(name, lambda: func(*args, **kwargs), args[0] if args else kwargs["input"], is_in_place)

    def call(self, name: str, run: Callable[[], Any], x: Any, is_in_place: bool) -> Any:
        """The next call, of the function `name` on x; `run` computes it."""
        if self.count == len(self.sites) or self.sites[self.count].name != name:
            raise RuntimeError(self.complaint(f"{name} as call {self.count + 1}"))
        site = self.sites[self.count]
        self.count += 1
        if site.quantizer is None:
            return run()
        quantizer = getattr(self.module, CALLS)[site.quantizer]
        if site.follows:
            x = run()
        if is_in_place and isinstance(x, Tensor):  # some call x.relu_() and drop what it returns
            return x.copy_(quantizer(x.clone()))
        return quantizer(x)

    def add(self, run: Callable[[Any, Any], Any], a: Any, b: Any, *, is_in_place: bool = False) -> Any:
        """The sum of a and b, which `run` computes, of quantized values if it is the next call.

        One that is not, such as that of a hook, is computed as it is.
        """
        quantizer = None
        if self.adds and self.count < len(self.sites):
            site = self.sites[self.count]
            if site.name == ADDITION and (torch.compiler.is_compiling() or site.line == additions.line()):
                self.count += 1
                quantizer = None if site.quantizer is None else getattr(self.module, CALLS)[site.quantizer]
        if quantizer is not None and all(isinstance(x, fx.Proxy) or x.is_floating_point() for x in (a, b)):
            total = run(quantizer(a.clone() if is_in_place else a), quantizer(b))
            return a.copy_(total) if is_in_place else total
        return a.add_(b) if is_in_place else run(a, b)

    def complaint(self, met: str) -> str:
        """What to say of calls that are not those seen when the model was converted."""
        seen = ", ".join(site.name for site in self.sites)
        mode = "training" if self.module.training else "eval"
        return (
            f"{type(self.module).__name__}.forward made other calls than when it was quantized: {met}, where the calls "
            f"in {mode} mode were {seen}; calls that depend on values or on chance must be modules such as nn.ReLU()"
        )


def is_opened(module: nn.Module) -> bool:
    """Whether a tracer must look into the module, for its calls are quantized."""
    return isinstance(vars(module).get("forward"), Split | Followed | Redirected)


class CallTracer(OwnForwardTracer):
    """A torch.fx tracer that sees the quantizers of calls.

    >>> import torch, lehr
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.relu(x) * 2
    >>> model = Net()
    >>> _ = lehr.quantize_(model)
    >>> graph = CallTracer().trace(model)
    >>> [str(node.target) for node in graph.nodes]
    ['x', 'quantized_calls.relu', '<built-in function mul>', 'output']
    >>> traced = torch.fx.GraphModule(model, graph)
    """

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the module is one node of the graph: torch's own are, and lehr's inputs, which ask for the dtype."""
        if isinstance(m, Input | SignalInput):
            return True
        return not is_opened(m) and super().is_leaf_module(m, module_qualified_name)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        """A node; x.relu() goes the way of torch.relu(x)."""

        def run() -> Any:
            return super(CallTracer, self).create_proxy(kind, target, args, kwargs, *rest, **options)

        redirect = _running.redirect
        is_addition = kind == "call_function" and target in additions.OPERATORS
        if redirect is not None and (is_addition or (kind == "call_method" and target in additions.METHODS)):
            both = summands(args, kwargs)
            if both is not None:
                plain = super().create_proxy
                return redirect.add(lambda a, b: plain("call_function", operator.add, (a, b), {}), *both)
        if kind == "call_method" and redirect is not None and target in METHODS:
            return redirect.call(FUNCTIONS[getattr(torch.Tensor, target)], run, args[0], False)
        return run()
