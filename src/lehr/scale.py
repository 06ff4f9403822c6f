"""Scales that fit what they quantize, with the least squared error: of weights, and of activations from data.

The scale of weights may be any number, since it multiplies sums that are finished. The scale of activations is a power
of two unless asked otherwise: then every sum is one of integers times a power of two, which float32 adds without
rounding, and the frozen network equals the trained one by construction.

>>> import torch, lehr
>>> weight = torch.tensor([[-0.5, 0.0, 0.5, 0.6]])
>>> round(fit_scale(weight, lehr.Quantizer()).item(), 4)
0.5333
>>> _ = torch.manual_seed(0)
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> _ = lehr.quantize_(model, weights="8bit", activations="8bit")
>>> calibrate_(model, [torch.randn(64, 8), torch.randn(64, 8)])
{'1': 0.015625}
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch import Tensor, nn

from lehr.layers import AbstractQuantizer, QuantizedWeight, Quantizer

_SAMPLE = 2**16  # so many values fit a scale as well as millions do
_EXPONENTS = 12  # powers of two that are tried below the one that reaches the largest value


@torch.no_grad()
def fit_scale(weight: Tensor, quantizer: AbstractQuantizer, *, per_channel: bool = False) -> Tensor:
    """The scale that minimises |w - scale σ(w / scale)|², of a tensor or of each of its output channels.

    The error is piecewise quadratic in the scale. Tried are 128 candidates, between 1/100 of and twice the scale that
    maps the largest weight to the largest level, and the bottom <w, σ>/<σ, σ> of the parabola each is on. Of many
    weights an even sample is tried, and the bottom is that of all of them. Weights that are all 0 fit any scale and get
    one of order 1, with which they can still grow.
    """
    if not weight.is_meta and not weight.isfinite().all():
        raise ValueError("its weights are not all finite")
    shape = (-1, *[1] * (weight.ndim - 1)) if per_channel else ()
    if not weight.numel():
        return weight.new_ones(len(weight) if per_channel else 1).reshape(shape)
    rows = weight.detach().flatten(1) if per_channel else weight.detach().reshape(1, -1)
    largest = max(abs(level) for level in quantizer.step.levels)
    unit = rows.abs().amax(1, keepdim=True).double() / largest
    unit = unit.masked_fill(unit == 0, 1.0)
    scale, least = unit, torch.full_like(unit, torch.inf)

    def levels_and_bottom(rows: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        levels = quantizer.step(rows / candidate)
        bottom = (rows * levels).sum(1, keepdim=True) / levels.square().sum(1, keepdim=True)
        return levels, torch.where(bottom > 0, bottom, candidate)

    def consider(candidate: Tensor) -> Tensor:
        nonlocal scale, least
        levels, bottom = levels_and_bottom(sample, candidate)
        error = (sample - candidate * levels).square().sum(1, keepdim=True)
        scale = torch.where(error <= least, candidate, scale)
        least = torch.minimum(error, least)
        return bottom

    columns = max(_SAMPLE // len(rows), 128)
    stride = -(-rows.shape[1] // columns)
    sample = rows[:, ::stride].double()
    for fraction in torch.logspace(-2, 0.3, 128, dtype=torch.float64).tolist():
        consider(consider(unit * fraction))
    if stride > 1:
        _, scale = levels_and_bottom(rows.double(), scale)
    return scale.to(weight.dtype).reshape(shape)


@torch.no_grad()
def calibrate_(
    model: nn.Module, batches: Iterable[Any], *, power_of_two: bool = True, progress: bool = True
) -> dict[str, float]:
    """Fit the scale of every activation quantizer to the values that data bring to it, and return the scales by path.

    The model runs in eval mode, so that no noise is in the way, and is left in the mode it was in. Each scale is that
    of the least squared error between what the quantizer reads and what it gives; of a quantizer without negative
    levels, negative values count as 0. Layers are fitted in the order they run, each on what the quantized layers
    before it give.

    Args:
        model: a network that `quantize_` has converted.
        batches: any iterable of batches as the model takes them: tensors, dictionaries of arguments, or pairs with
            labels, of which the first is taken. A few hundred images are enough.
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
    modes = {module: module.training for module in model.modules()}
    hooks = [fit.quantizer.register_forward_pre_hook(fit) for fit in fits.values()]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    count = 0
    try:
        model.eval()
        for batch in _shown(batches, progress):
            args, kwargs = inputs_of(batch, device)
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
        self.scale = 1.0

    def __call__(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        values = self._some(args[0].detach().reshape(-1), _SAMPLE // 4).double()
        if self.quantizer.levels[0] >= 0:
            values = values.clamp(min=0)
        self.sample = values if self.sample is None else self._some(torch.cat([self.sample, values]), _SAMPLE)
        if self.power_of_two:
            self.scale = fit_power_of_two(self.sample, self.quantizer)
        else:
            self.scale = fit_scale(self.sample, self.quantizer).item()
        like = args[0] if args[0].is_floating_point() else self.quantizer.forward_std
        self.quantizer.scale = torch.tensor(self.scale, dtype=like.dtype, device=like.device)

    def _some(self, values: Tensor, count: int) -> Tensor:
        """Values picked at random: every n-th could be always the same corner of an image."""
        if len(values) <= count:
            return values
        return values[torch.randint(len(values), (count,), generator=self.generator).to(values.device)]


@torch.no_grad()
def fit_power_of_two(values: Tensor, quantizer: AbstractQuantizer) -> float:
    """The power of two that minimises |x - scale σ(x / scale)|² over all values; 1 if they are all 0."""
    largest = max(abs(level) for level in quantizer.levels)
    reach = values.abs().max().item()
    if not math.isfinite(reach):
        raise ValueError("an activation is not finite: see that the weights and the data are")
    if reach == 0:
        return 1.0
    top = math.ceil(math.log2(reach / largest)) + 1
    scales = [2.0**exponent for exponent in range(top, top - _EXPONENTS, -1)]
    errors = [(values - scale * quantizer.step(values / scale)).square().sum().item() for scale in scales]
    return scales[errors.index(min(errors))]


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
