"""Fit a quantized network to data, so that it starts close to the float network it was: `calibrate_`.

An activation quantizer gets the scale of the least squared error on the values it reads. Layers are fitted in the order
they run, each on what the quantized layers before it give.

Quantization also shifts the mean of a channel and changes its variance, and these errors add up from layer to layer.
`quantize_(..., data=batches)`, which has the float network at hand, corrects them: each batch runs through the float
network too, the bias of a quantized layer takes the shift of its means away, and BatchNorm's statistics move as much as
those of its input. Both are differences between two runs on the same data, so that few images are enough. Two or three
levels take the place of a ReLU without being like it: there biases stay, and only BatchNorm is corrected. They need
training, which goes better from a scale of 1 than from 2, so they are fitted only where the scale is further off.

>>> import torch, lehr
>>> _ = torch.manual_seed(0)
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> _ = lehr.quantize_(model, weights="8bit", activations="8bit")
>>> calibrate_(model, [torch.randn(64, 8), torch.randn(64, 8)])
{'1': 0.015625}
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lehr.batchnorm import batchnorms_of
from lehr.layers import QuantizedWeight
from lehr.precision import FEW_LEVELS
from lehr.quantizer import Quantizer
from lehr.scale import SAMPLE, fit_power_of_two, fit_scale

# Two or three levels keep a scale that is off by no more than this factor: docs/lab-notebook.md, "Calibration".
_TOLERATED = 2.0


@torch.no_grad()
def calibrate_(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    like: nn.Module | None = None,
    power_of_two: bool = True,
    progress: bool = True,
) -> dict[str, float]:
    """Fit the scale of every activation quantizer to the values that data bring to it, and return the scales by path.

    The model runs in eval mode, so that no noise is in the way, and is left in the mode it was in. A scale is that of
    the least squared error between what the quantizer reads and what it gives; of a quantizer without negative levels,
    negative values count as 0. Two or three levels keep a scale that is at most twice or half of that. Weights and
    their scales stay, and so do biases and BatchNorm statistics without `like`.

    Args:
        model: a network that `quantize_` has converted.
        batches: any iterable of batches as the model takes them: tensors, dictionaries of arguments, or pairs with
            labels, of which the first is taken. A few hundred images are enough.
        like: the float network that the model was before `quantize_`, with the same paths. Biases and BatchNorm
            statistics are then corrected, so that each channel has the mean that it has there; of activations with two
            or three levels BatchNorm's alone. Not for a model that was trained since: it is no longer like it.
        power_of_two: whether scales are powers of two, so that the frozen network can be exact.
        progress: whether a bar is shown, in a terminal.
    """
    weights = {id(layer.quantizer) for layer in model.modules() if isinstance(layer, QuantizedWeight)}
    fits = {
        path: _Fit(module, power_of_two)
        for path, module in model.named_modules()
        if isinstance(module, Quantizer) and id(module) not in weights
    }
    if not fits:
        raise ValueError(
            f"this {type(model).__name__} has no activation quantizer to fit: convert it with lehr.quantize_ first"
        )
    many_levels = all(len(fit.quantizer.levels) > FEW_LEVELS for fit in fits.values())
    corrections = [] if like is None else list(_corrections(model, like, biases=many_levels))
    modes = {module: module.training for network in filter(None, (model, like)) for module in network.modules()}
    hooks = [fit.quantizer.register_forward_pre_hook(fit) for fit in fits.values()]
    hooks += [hook for correction in corrections for hook in correction.hooks()]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    count = 0
    try:
        model.eval()
        for batch in _shown(batches, progress):
            args, kwargs = inputs_of(batch, device)
            if like is not None:
                like.eval()(*args, **kwargs)
            model(*args, **kwargs)
            count += 1
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    if not count:
        raise ValueError("calibration needs at least one batch, got none")
    return {path: fit.scale for path, fit in fits.items() if fit.sample is not None}


def inputs_of(batch: Any, device: torch.device | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What of a batch of data a model takes: a tensor, the first of a pair with labels, or a dictionary by name."""
    if isinstance(batch, list | tuple):
        batch = batch[0]

    def moved(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    if isinstance(batch, Mapping):
        return (), {name: moved(value) for name, value in batch.items()}
    return (moved(batch),), {}


class _Fit:
    """Sees what one quantizer reads, and sets its scale before it quantizes that."""

    def __init__(self, quantizer: Quantizer, power_of_two: bool) -> None:
        self.quantizer = quantizer
        self.power_of_two = power_of_two
        self.generator = torch.Generator().manual_seed(0)  # twice the same data, twice the same scales
        self.sample: Tensor | None = None
        # The mean stands for the scales of channels, if there are several.
        self.before = 1.0 if quantizer.scale is None else quantizer.scale.mean().item()
        self.scale = 1.0

    def __call__(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        values = self._some(args[0].detach().reshape(-1), SAMPLE // 4).double()
        if self.quantizer.levels[0] >= 0:
            values = values.clamp(min=0)
        self.sample = values if self.sample is None else self._some(torch.cat([self.sample, values]), SAMPLE)
        if self.power_of_two:
            self.scale = fit_power_of_two(self.sample, self.quantizer)
        else:
            self.scale = fit_scale(self.sample, self.quantizer).item()
        if len(self.quantizer.levels) <= FEW_LEVELS and 1 / _TOLERATED <= self.scale / self.before <= _TOLERATED:
            self.scale = self.before
        like = args[0] if args[0].is_floating_point() else self.quantizer.forward_std
        self.quantizer.scale = torch.tensor(self.scale, dtype=like.dtype, device=like.device)

    def _some(self, values: Tensor, count: int) -> Tensor:
        """Values picked at random: every n-th could be always the same corner of an image."""
        if len(values) <= count:
            return values
        return values[torch.randint(len(values), (count,), generator=self.generator).to(values.device)]


def _corrections(model: nn.Module, like: nn.Module, *, biases: bool) -> Iterator[_OfBias | _OfNorm]:
    if [name for name, _ in like.named_parameters()] != [name for name, _ in model.named_parameters()]:
        raise ValueError(f"like must be what this {type(model).__name__} was: its parameters have other names")
    for path, norm in batchnorms_of(model).items():
        yield _OfNorm(norm, like.get_submodule(path))
    for path, layer in model.named_modules():
        if biases and isinstance(layer, QuantizedWeight) and layer.bias is not None:
            yield _OfBias(layer, like.get_submodule(path))


class _Moments:
    """Mean and variance of each channel, over all values seen."""

    def __init__(self, channels_at: int) -> None:
        self.channels_at = channels_at
        self.count, self.sum, self.squares = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        rows = values.detach().double().movedim(self.channels_at, 0).flatten(1)
        self.count += rows.shape[1]
        self.sum = self.sum + rows.sum(1)
        self.squares = self.squares + rows.square().sum(1)

    @property
    def mean(self) -> Tensor:
        return torch.as_tensor(self.sum) / self.count

    @property
    def variance(self) -> Tensor:
        return (torch.as_tensor(self.squares) / self.count - self.mean.square()).clamp(min=0)


class _OfBias:
    """Gives a layer the bias with which the mean of each channel is that of the float layer."""

    def __init__(self, layer: QuantizedWeight, twin: nn.Module) -> None:
        assert layer.bias is not None
        self.layer, self.twin = layer, twin
        self.bias = layer.bias
        space = len(layer.kernel_size) if isinstance(layer, nn.modules.conv._ConvNd) else 0
        channels_at = -1 - space  # from the end: there may be no batch
        self.float, self.quantized = _Moments(channels_at), _Moments(channels_at)
        self.before = self.bias.detach().clone()

    def hooks(self) -> list[Any]:
        return [
            self.twin.register_forward_hook(self._see_float),
            self.layer.register_forward_hook(self),
        ]

    def _see_float(self, _: nn.Module, __: Any, output: Any) -> None:
        self.float.add(output)

    def __call__(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        shape = [1] * output.ndim
        shape[self.quantized.channels_at] = -1
        plain = output - (self.bias - self.before).reshape(shape)
        self.quantized.add(plain)
        if not self.float.count:  # the float network took another way
            return output
        shift = (self.float.mean - self.quantized.mean).to(self.bias.dtype)
        self.bias.data.copy_(self.before + shift)
        return plain + shift.reshape(shape)


class _OfNorm:
    """Gives a BatchNorm statistics that have moved as much as those of its input, from the float network's."""

    def __init__(self, norm: _BatchNorm, twin: nn.Module) -> None:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.norm, self.twin = norm, twin
        self.float, self.quantized = _Moments(1), _Moments(1)
        self.mean, self.variance = norm.running_mean.clone(), norm.running_var.clone()

    def hooks(self) -> list[Any]:
        return [
            self.twin.register_forward_pre_hook(lambda _, args: self.float.add(args[0])),
            self.norm.register_forward_pre_hook(self),
        ]

    def __call__(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        self.quantized.add(args[0])
        if not self.float.count:
            return
        shift = self.quantized.mean - self.float.mean
        ratio = (self.quantized.variance + self.norm.eps) / (self.float.variance + self.norm.eps)
        self.norm.running_mean.copy_(self.mean + shift)
        self.norm.running_var.copy_(((self.variance + self.norm.eps) * ratio - self.norm.eps).clamp(min=0))


@contextlib.contextmanager
def _bar(total: int | None) -> Iterator[Any]:
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("calibrating", total=total)
        yield lambda: bar.advance(task)


def _shown(batches: Iterable[Any], progress: bool) -> Iterator[Any]:
    """The batches, with a bar if somebody looks."""
    if not (progress and sys.stderr.isatty()):
        yield from batches
        return
    try:
        bar = _bar(len(batches) if isinstance(batches, Sized) else None)
        with bar as advance:
            for batch in batches:
                yield batch
                advance()
    except ModuleNotFoundError:  # `import lehr` needs torch alone
        yield from batches
