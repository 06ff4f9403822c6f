"""What runs when a model runs: its activations, modules and calls of functions alike, in order.

With an example the model runs once in training and once in eval mode, and a `TorchFunctionMode` sees every function of
torch; its buffers and the random numbers are as before. Without one, torch.fx traces it with symbols: that costs
nothing and needs no data, but does not get through a forward that looks at values. Both find the same `Use`s.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lehr.layers import AbstractQuantizer
from lehr.nonlinear import FUNCTIONS, METHODS, OUTPUTS, name_of

LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
_PRODUCTS: dict[Any, str] = {
    F.linear: "linear",
    F.bilinear: "bilinear",
    F.conv1d: "conv1d",
    F.conv2d: "conv2d",
    F.conv3d: "conv3d",
    F.conv_transpose1d: "conv_transpose1d",
    F.conv_transpose2d: "conv_transpose2d",
    F.conv_transpose3d: "conv_transpose3d",
    F.scaled_dot_product_attention: "scaled_dot_product_attention",
    torch.einsum: "einsum",
    torch.matmul: "matmul",
    torch.Tensor.matmul: "matmul",
    torch.Tensor.__matmul__: "matmul",
    torch.bmm: "bmm",
    torch.mm: "mm",
    torch.addmm: "addmm",
    torch.baddbmm: "baddbmm",
}
_NAMES = FUNCTIONS | _PRODUCTS
# Between the last function and the output these only give its values another shape.
_RESHAPES = {"squeeze", "unsqueeze", "view", "reshape", "flatten", "contiguous", "getitem", "permute", "transpose"}
_RESHAPING = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout)


@dataclass(eq=False)
class Use:
    """One use of a function while the model runs.

    Args:
        owner: the path of the module whose forward makes it
        name: the function, such as relu
        module: the path of the activation module that is used; None for a call of a function
        place: where in the source the call stands, the innermost line first
        after: the path of the layer with weights that ran last before it
        is_output: whether the model gives its result, perhaps in another shape
    """

    owner: str
    name: str
    module: str | None
    place: tuple[Any, ...]
    after: str | None
    is_output: bool = False

    @property
    def is_product(self) -> bool:
        """Whether it multiplies with weights, or as those do."""
        return self.name in _PRODUCTS.values()


@dataclass
class Observation:
    """What was seen.

    Args:
        runs: by mode (training or not) and owner, the uses of each of its runs
        macs: of one image, by layer, with "" for all; known with an example
        closed: modules that cannot be traced, and why
    """

    runs: dict[bool, dict[str, list[list[Use]]]] = field(default_factory=dict)
    macs: dict[str, int] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)

    @property
    def uses(self) -> Iterator[Use]:
        """All of them; in eval mode first."""
        for training in sorted(self.runs):
            for runs in self.runs[training].values():
                for run in runs:
                    yield from run


def observe(model: nn.Module, example: Any = None) -> Observation:
    """Look at what runs in the model: with the example if there is one, else symbolically.

    Args:
        model: the network, which is left as it is
        example: a batch as the model takes it: a tensor, a tuple of arguments or a dictionary of them by name
    """
    if example is not None:
        return _seen(model, *arguments(example))
    found = Observation()
    try:
        with _modes_kept(model):
            for training in (False, True):
                tracer = _Tracer()
                found.runs[training] = tracer.seen(model.train(training))
                found.closed |= tracer.closed
    except Exception as error:  # a user's forward may raise anything when it meets symbols
        return Observation(closed={"": _told(error)})
    return found


def arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a batch is handed to the model: a tensor alone, a tuple as arguments, a dictionary by name."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple) else ((batch,), {})


@torch.no_grad()
def _seen(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Observation:
    found = Observation()
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with _modes_kept(model), torch.random.fork_rng(devices=_cuda_devices(model)):
            recorder = _Recorder(model.eval())
            found.runs[False] = recorder.seen(args, kwargs)
            found.macs = recorder.macs
            # Some models cannot train on an example of one image.
            with contextlib.suppress(ValueError, RuntimeError, TypeError):
                found.runs[True] = _Recorder(model.train()).seen(args, kwargs)
    finally:
        for buffer, value in before:
            buffer.copy_(value)
    return found


class _Runs:
    """The forwards that are running, and what they have used."""

    def __init__(self) -> None:
        self.log: list[tuple[str, list[Use]]] = []
        self.stack: list[tuple[str, list[Use]]] = []
        self.after: str | None = None

    @property
    def by_owner(self) -> dict[str, list[list[Use]]]:
        """The uses of each run of each owner."""
        owners: dict[str, list[list[Use]]] = {}
        for path, run in self.log:
            owners.setdefault(path, []).append(run)
        return owners

    def enter(self, path: str) -> None:
        self.log.append((path, []))
        self.stack.append(self.log[-1])

    def leave(self) -> None:
        self.stack.pop()

    def add(self, name: str, module: str | None = None) -> Use:
        if not self.stack:  # the model itself is an activation
            self.log.append(("", []))
        path, run = self.stack[-1] if self.stack else self.log[-1]
        use = Use(path, name, module, _place(module is not None), self.after)
        run.append(use)
        return use


class _Recorder(TorchFunctionMode):
    """Runs the model on an example, with a hook on every module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.runs = _Runs()
        self.whole = 0  # so many modules are running whose inside is their own matter
        self.results: list[tuple[Use, Tensor]] = []  # kept, so that their memory is not used again
        self.macs: dict[str, int] = {}

    def seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, list[list[Use]]]:
        from torch.utils.flop_counter import FlopCounterMode

        hooks = []
        for path, module in self.model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._before(path, module), prepend=True))
            hooks.append(module.register_forward_hook(self._after(path, module), always_call=True))
        try:
            with self, FlopCounterMode(display=False) as counter:
                output = self.model(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        images = next((len(x) for x in tensors((args, kwargs)) if x.ndim), 1) or 1
        self.macs = {path: macs // images for path, macs in self.macs.items()} | {
            "": counter.get_total_flops() // 2 // images
        }
        given = {x.untyped_storage().data_ptr() for x in tensors(output)}
        for use, result in self.results:
            use.is_output = result.untyped_storage().data_ptr() in given
        return self.runs.by_owner

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the function, and let torch compute it."""
        result = func(*args, **(kwargs or {}))
        name = _NAMES.get(func)
        if name is not None and not self.whole:
            self._note(self.runs.add(name), result)
        return result

    def _note(self, use: Use, result: Any) -> None:
        if use.name in OUTPUTS and isinstance(result, Tensor):
            self.results.append((use, result))

    def _before(self, path: str, module: nn.Module) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if _is_whole(module):
                self.whole += 1
            else:
                self.runs.enter(path)

        return hook

    def _after(self, path: str, module: nn.Module) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, result: Any) -> None:
            if not _is_whole(module):
                return self.runs.leave()
            self.whole -= 1
            if isinstance(module, LAYERS) and isinstance(result, Tensor):
                self.runs.after = path
                self.macs[path] = self.macs.get(path, 0) + _macs(module, result)
            name = name_of(module)
            if name is not None and not self.whole:
                self._note(self.runs.add(name, path), result)
            return None

        return hook


class _Tracer(fx.Tracer):
    """Traces the model symbolically, and notes its uses."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = _Runs()
        self.nodes: dict[fx.Node, Use] = {}
        self.closed: dict[str, str] = {}

    def seen(self, model: nn.Module) -> dict[str, list[list[Use]]]:
        parameters = inspect.signature(model.forward).parameters.values()
        given = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
        self.runs.enter("")
        graph = self.trace(model, concrete_args=given or None)
        for node in _outputs(graph, model):
            if node in self.nodes:
                self.nodes[node].is_output = True
        return self.runs.by_owner

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the module is one node of the graph."""
        return _is_whole(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note the module, and trace what it is made of."""
        path = self.path_of_module(m)
        if isinstance(m, LAYERS):
            self.runs.after = path
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
            self.closed[path] = _told(error)
            return self.create_proxy("call_module", path, args, kwargs)
        self.runs.leave()
        return result

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> Any:
        """Note the function that the node stands for."""
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        name = None
        if kind == "call_function":
            name = _NAMES.get(target) or ("matmul" if getattr(target, "__name__", "") == "matmul" else None)
        elif kind == "call_method" and (target in METHODS or target in _PRODUCTS.values()):
            name = FUNCTIONS.get(getattr(torch.Tensor, target)) or target
        if name is not None:
            self.nodes[proxy.node] = self.runs.add(name)
        return proxy


def _is_whole(module: nn.Module) -> bool:
    """Whether what the module calls is its own matter: activations, layers and attention of torch, and quantizers."""
    if isinstance(module, AbstractQuantizer | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase):
        return True
    return name_of(module) is not None or (
        isinstance(module, LAYERS) and type(module).__module__.startswith(("torch.", "lehr."))
    )


def _macs(layer: nn.Module, output: Tensor) -> int:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):
        return 0  # in the total, and never quantized
    channels = output.shape[1] if isinstance(layer, nn.modules.conv._ConvNd) and output.ndim > 1 else output.shape[-1]
    return weight.numel() * (output.numel() // channels if channels else 0)


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in what a model takes or gives: alone, in sequences, dictionaries or objects."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif hasattr(value, "__dict__"):
        for part in vars(value).values():
            yield from tensors(part)


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


def _place(in_module: bool) -> tuple[Any, ...]:
    """The lines of source between torch's function, or the module, and the call of its owner; innermost first."""
    frame, lines, calls = sys._getframe(1), [], 2 if in_module else 1
    while frame is not None:
        calls -= frame.f_code.co_name in ("_call_impl", "call_module", "trace")
        if not calls:
            break
        if frame.f_globals.get("__name__") != __name__:
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)


def _told(error: Exception) -> str:
    """The first sentence of an error."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0].partition('. ')[0] if str(error) else ''}"


@contextlib.contextmanager
def _modes_kept(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _cuda_devices(model: nn.Module) -> list[int]:
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    return [device.index for device in devices if device.index is not None]
