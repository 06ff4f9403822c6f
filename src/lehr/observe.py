"""What runs when a model runs: its activations, modules and calls of functions alike, in order.

With an example the model runs once in training and once in eval mode, and a `TorchFunctionMode` sees every function of
torch; its buffers and the random numbers are as before. Without one, torch.fx traces it (symbolic.py): that costs
nothing and needs no data, but does not get through a forward that looks at values. Both find the same uses.

Where tracing fails, torch.export is no fallback: it needs an example too, and with an example the model can be run.
A run sees every call, also in a forward that torch.export refuses, in training and in eval mode, and with the modules
that make the calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lehr import additions
from lehr.additions import ADDITION, summands
from lehr.nonlinear import OUTPUTS, name_of
from lehr.symbolic import UseTracer, told
from lehr.uses import LAYERS, NAMES, Observation, Runs, Use, is_whole


def observe(model: nn.Module, example: Any = None) -> Observation:
    """Look at what runs in the model: with the example if there is one, else symbolically.

    Args:
        model: the network, which is left as it is
        example: a batch as the model takes it: a tensor, a tuple of arguments or a dictionary of them by name
    """
    traced = _traced(model)
    if example is None:
        return traced
    found = _seen(model, *arguments(example))
    found.linear, found.hidden, found.bypassed = traced.linear, traced.hidden, traced.bypassed
    found.runs = {
        training: {path: uses for path, uses in runs.items() if path not in found.hidden}
        for training, runs in found.runs.items()
    }
    return found


def _traced(model: nn.Module) -> Observation:
    found = Observation()
    try:
        with _modes_kept(model):
            for training in (False, True):
                tracer = UseTracer()
                found.runs[training] = tracer.seen(model.train(training))
                found.closed |= tracer.closed
                found.hidden |= tracer.hidden
                found.bypassed |= tracer.bypassed
                found.linear |= set() if training else tracer.linear
    except Exception as error:  # a user's forward may raise anything when it meets symbols
        return Observation(closed={"": told(error)})
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


class _Recorder(TorchFunctionMode):
    """Runs the model on an example, with a hook on every module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.runs = Runs()
        self.whole = 0  # so many modules are running whose inside is their own matter
        self.results: list[tuple[Use, Tensor]] = []  # kept, so that their memory is not used again
        self.macs: dict[str, int] = {}
        self.own = {id(x) for x in (*model.parameters(), *model.buffers())}

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
        name = NAMES.get(func)
        if name is not None and not self.whole:
            self._note(self.runs.add(name), result)
        both = summands(args, kwargs or {}) if func in additions.FUNCTIONS and not self.whole else None
        if both is not None:
            use = self.runs.add(ADDITION)
            use.line = additions.line()
            use.adds_constant = any(id(x) in self.own or not x.is_floating_point() or not x.ndim for x in both)
            self._note(use, result)
        return result

    def _note(self, use: Use, result: Any) -> None:
        if (use.name in OUTPUTS or use.name == ADDITION) and isinstance(result, Tensor):
            self.results.append((use, result))

    def _before(self, path: str, module: nn.Module) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if is_whole(module):
                self.whole += 1
            else:
                self.runs.enter(path)

        return hook

    def _after(self, path: str, module: nn.Module) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, result: Any) -> None:
            if not is_whole(module):
                return self.runs.leave()
            self.whole -= 1
            if isinstance(module, LAYERS) and isinstance(result, Tensor):
                self.runs.after = path
                self.macs[path] = self.macs.get(path, 0) + _macs(module, next(tensors(args), result), result)
            name = name_of(module)
            if name is not None and not self.whole:
                self._note(self.runs.add(name, path), result)
            return None

        return hook


def _macs(layer: nn.Module, given: Tensor, output: Tensor) -> int:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):  # each input meets each weight once
        return weight.numel() * (given.numel() // layer.in_channels)
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
