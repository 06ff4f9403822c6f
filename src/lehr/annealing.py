"""Annealing: the noise of every layer as a function of time (Algorithm 1, lines 2-5).

A *law* falls from 1 to 0 as its progress goes from 0 to 1; a *window* says from when to when, in epochs; their product
with the noise a layer started with is the noise it has now. The paper's three schedules are hierarchical windows:
layer l = 1..L decays over [d(l-1), dl], or with a delay (AlexNet) over [d(l-1) + delay, dl + delay].

>>> import torch, lehr
>>> model = torch.nn.Sequential(lehr.Linear(4, 8), lehr.Quantizer(), lehr.Linear(8, 2))
>>> annealer = lehr.Annealer(model, windows=hierarchical(2, duration=10), law=Linear())
>>> for epoch in range(15):
...     annealer.step()  # after each epoch of training
>>> print(annealer)
layer  quantizers      window    forward std  backward std
1      0.quantizer, 1  [0, 10]   0            0.2887
2      2.quantizer     [10, 20]  0.1443       0.2887
"""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lehr.layers import Quantizer
from lehr.noise import Dirac
from lehr.table import table


@dataclass(frozen=True)
class Law(abc.ABC):
    """A decay from 1 to `final` while progress goes from 0 to 1."""

    final: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.final < math.inf:
            raise ValueError(f"final must be finite and not negative, got {self.final}")

    def __call__(self, progress: float) -> float:
        """The factor at `progress`, which is clamped to [0, 1]."""
        shape = self.shape(min(max(progress, 0.0), 1.0))
        return self.final + (1 - self.final) * shape

    @abc.abstractmethod
    def shape(self, progress: float) -> float:
        """The law proper: 1 at 0 and 0 at 1."""


class Linear(Law):
    """1 - p."""

    def shape(self, progress: float) -> float:
        """1 - p."""
        return 1 - progress


@dataclass(frozen=True)
class Power(Law):
    """(1 - p)^exponent; Power() is the paper's quadratic decay."""

    exponent: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.exponent < math.inf:
            raise ValueError(f"exponent must be positive and finite, got {self.exponent}")

    def shape(self, progress: float) -> float:
        """(1 - p)^exponent."""
        return (1 - progress) ** self.exponent


class Cosine(Law):
    """(1 + cos πp)/2."""

    def shape(self, progress: float) -> float:
        """(1 + cos πp)/2, exactly 0 at the end."""
        return 0.0 if progress == 1 else (1 + math.cos(math.pi * progress)) / 2


class Constant(Law):
    """1 throughout: nothing is annealed."""

    def shape(self, progress: float) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True)
class Window:
    """The epochs [start, end] over which a layer's noise decays; an empty window drops it at once."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if not (0 <= self.start <= self.end < math.inf):
            raise ValueError(f"a window needs 0 <= start <= end, both finite, got [{self.start:g}, {self.end:g}]")

    def progress(self, time: float) -> float:
        """How much of the window has passed at `time`: 0 before it, 1 after it."""
        if time >= self.end:
            return 1.0
        return max(0.0, (time - self.start) / (self.end - self.start)) if time > self.start else 0.0

    def __str__(self) -> str:
        return f"[{self.start:g}, {self.end:g}]"


def hierarchical(layers: int, duration: float, delay: float = 0.0) -> list[Window]:
    """Layer l decays over [d(l-1), dl], after `delay`: one layer after the other, as in the paper."""
    return [Window(delay + duration * l, delay + duration * (l + 1)) for l in range(_count(layers))]  # noqa: E741


def last_first(layers: int, duration: float, delay: float = 0.0) -> list[Window]:
    """The hierarchical windows from the last layer to the first."""
    return hierarchical(layers, duration, delay)[::-1]


def same_start(layers: int, duration: float, delay: float = 0.0) -> list[Window]:
    """All begin together, layer l ends at dl."""
    return [Window(delay, delay + duration * (l + 1)) for l in range(_count(layers))]  # noqa: E741


def same_end(layers: int, duration: float, delay: float = 0.0) -> list[Window]:
    """Layer l begins at d(l-1), all end together at dL."""
    return [Window(delay + duration * l, delay + duration * layers) for l in range(_count(layers))]  # noqa: E741


def all_at_once(layers: int, duration: float, delay: float = 0.0) -> list[Window]:
    """All layers decay together over [0, d]."""
    return [Window(delay, delay + duration)] * _count(layers)


class Annealer:
    """Sets the noise of a model's quantizers as time passes.

    `windows` is one window for each layer in the model's order (or one for all); the quantizers of a layer, its
    weights' and the activation's after it, anneal together. `groups` names the layers instead, for networks with
    branches: each group is a path, or several, and covers all quantizers at or below them; together they must cover
    every quantizer once. Time is counted in epochs: `step()` ends an epoch, or one of `steps_per_epoch` batches.

    The forward noise (std and mean) follows `law`; the backward noise follows `backward_law`, constant unless given
    (the paper's asynchronous variant), or is the forward noise itself if `synchronous`. Given the `epochs` of
    training, a schedule that would end with noise left warns.
    """

    def __init__(
        self,
        model: nn.Module,
        windows: Sequence[Window] | Window,
        law: Law = Linear(),  # noqa: B008 - a frozen value
        *,
        synchronous: bool = False,
        backward_law: Law | None = None,
        groups: Sequence[str | Sequence[str]] | None = None,
        steps_per_epoch: int = 1,
        epochs: float | None = None,
    ) -> None:
        if synchronous and backward_law is not None:
            raise ValueError("a synchronous backward noise is the forward noise: it takes no backward_law")
        if steps_per_epoch < 1:
            raise ValueError(f"steps_per_epoch must be at least 1, got {steps_per_epoch}")
        for given in (law, backward_law):
            if given is not None and (not callable(given) or isinstance(given, type)):
                raise TypeError(f"a decay law is one such as Linear() or Power(2), got {given!r}")
        self.groups = layers_of(model) if groups is None else _named_groups(model, groups)
        self.windows = [windows] * len(self.groups) if isinstance(windows, Window) else list(windows)
        for window in self.windows:
            if not isinstance(window, Window):
                raise TypeError(f"a window is one such as Window(0, 10), got {window!r}")
        if len(self.windows) != len(self.groups):
            raise ValueError(
                f"the model has {len(self.groups)} layers to anneal and there are {len(self.windows)} windows; "
                f"the layers are {', '.join('+'.join(group) for group in self.groups)}"
            )
        self.law = law
        self.synchronous = synchronous
        self.backward_law = Constant() if backward_law is None else backward_law
        self.steps_per_epoch = steps_per_epoch
        self.steps = 0
        self._warned = False
        modules = {path: module for path, module in model.named_modules() if isinstance(module, Quantizer)}
        self._quantizers = [{path: modules[path] for path in group} for group in self.groups]
        if synchronous:
            _synchronise(modules)
        self._initial = {path: _noise_state(quantizer) for path, quantizer in modules.items()}
        self._apply()
        if epochs is not None:
            self._check_end(epochs)

    @property
    def time(self) -> float:
        """Epochs passed."""
        return self.steps / self.steps_per_epoch

    def step(self) -> None:
        """End an epoch (or a batch, with `steps_per_epoch`) and set the noise of the next."""
        self.steps += 1
        self._apply()

    def seek(self, time: float) -> None:
        """Set the noise of `time`, in epochs, rounded down to a whole step."""
        if not 0 <= time < math.inf:
            raise ValueError(f"time must be finite and not negative, got {time}")
        self.steps = math.floor(time * self.steps_per_epoch + 1e-9)
        self._apply()

    def factors(self, time: float) -> list[tuple[float, float]]:
        """Of each layer, what forward and backward noise are multiplied with at `time`."""
        pairs = []
        for window in self.windows:
            progress = window.progress(time)
            forward = self.law(progress)
            pairs.append((forward, forward if self.synchronous else self.backward_law(progress)))
        return pairs

    def state_dict(self) -> dict[str, Any]:
        """The time, and the noise each quantizer started with."""
        return {"steps": self.steps, "initial": self._initial}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"an annealer's state has steps and initial, this one has {', '.join(map(str, state))}")
        if set(state["initial"]) != set(self._initial):
            strange = sorted(set(state["initial"]) ^ set(self._initial))
            raise ValueError(f"this state belongs to another model: its quantizers differ in {', '.join(strange)}")
        self.steps = state["steps"]
        self._initial = {
            path: {name: value.cpu() for name, value in noise.items()} for path, noise in state["initial"].items()
        }
        self._apply()

    def __str__(self) -> str:
        rows = []
        for number, (group, window) in enumerate(zip(self._quantizers, self.windows, strict=True), 1):
            forward = "/".join(sorted({_shown(quantizer.forward_std) for quantizer in group.values()}))
            backward = "/".join(sorted({_shown(quantizer.backward_std) for quantizer in group.values()}))
            rows.append((str(number), ", ".join(group), str(window), forward, backward))
        return table(("layer", "quantizers", "window", "forward std", "backward std"), rows)

    @torch.no_grad()
    def _apply(self) -> None:
        blocked = []
        for number, (group, factors) in enumerate(zip(self._quantizers, self.factors(self.time), strict=True), 1):
            for path, quantizer in group.items():
                for name, initial in self._initial[path].items():
                    # In place and without a wait: a compiled graph keeps its tensor, a device its stream.
                    value = initial * factors[name.startswith("backward")]
                    getattr(quantizer, name).copy_(value, non_blocking=True)
                    if name == "backward_std" and quantizer.backward_kind is not Dirac and not value.any():
                        blocked.append(number)
        if blocked and not self._warned:
            self._warned = True
            warnings.warn(
                f"at epoch {self.time:g} the backward noise of layer {blocked[-1]} is gone: "
                f"no gradient passes it any more, to its own weights or to the layers before it",
                AnnealingWarning,
                stacklevel=3,
            )

    def _check_end(self, epochs: float) -> None:
        noisy = [
            number
            for number, (group, (forward, _)) in enumerate(zip(self._quantizers, self.factors(epochs), strict=True), 1)
            if forward > 0 and any(bool((self._initial[path]["forward_std"] > 0).any()) for path in group)
        ]
        if noisy:
            ends = ", ".join(f"{self.windows[number - 1].end:g}" for number in noisy)
            warnings.warn(
                f"after {epochs:g} epochs layers {', '.join(map(str, noisy))} still have noise: "
                f"their windows end at {ends}; train longer or end them sooner",
                AnnealingWarning,
                stacklevel=3,
            )


class AnnealingWarning(UserWarning):
    """A schedule that does what its user may not have meant."""


def layers_of(model: nn.Module) -> list[list[str]]:
    """The paths of the model's quantizers, layer by layer, in the order of the model's modules.

    A module with weights opens a layer, quantized or not; the activations after it join it, and what stands before
    the first joins the first. Layers without a quantizer do not count.
    """
    layers: list[list[str]] = [[]]
    opened = False
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            layers += [[]] if opened else []
            opened = True
        elif isinstance(module, Quantizer):
            layers[-1].append(path)
    layers = [layer for layer in layers if layer]
    if not layers:
        raise ValueError(
            f"this {type(model).__name__} has no quantizer to anneal: convert it with lehr.quantize_ first"
        )
    return layers


def _named_groups(model: nn.Module, groups: Sequence[str | Sequence[str]]) -> list[list[str]]:
    paths = [path for layer in layers_of(model) for path in layer]
    own_path = {model.get_submodule(path): path for path in paths}
    modules = dict(model.named_modules(remove_duplicate=False))  # a shared module has several paths
    taken: dict[str, int] = {}
    for number, group in enumerate(groups, 1):
        for name in [group] if isinstance(group, str) else group:
            below = [own_path[part] for part in modules[name].modules() if part in own_path] if name in modules else []
            if not below:
                raise ValueError(
                    f"group {number} names {name!r}, which holds no quantizer; there are {', '.join(paths)}"
                )
            for path in below:
                if taken.setdefault(path, number) != number:
                    raise ValueError(f"quantizer {path} is in group {taken[path]} and in group {number}")
    missing = [path for path in paths if path not in taken]
    if missing:
        raise ValueError(f"no group covers {', '.join(missing)}")
    return [[path for path in paths if taken[path] == number] for number in range(1, len(groups) + 1)]


def _synchronise(quantizers: dict[str, Quantizer]) -> None:
    """Give every quantizer the backward noise that its forward noise is."""
    for path, quantizer in quantizers.items():
        kinds = quantizer.forward_kind, quantizer.backward_kind
        if kinds[0] is not kinds[1]:
            raise ValueError(
                f"synchronous annealing needs one kind of noise, but {path} has {kinds[0].__name__} forward "
                f"and {kinds[1].__name__} backward"
            )
        quantizer.backward_std = quantizer.forward_std.clone()
        quantizer.backward_mean = None if quantizer.forward_mean is None else quantizer.forward_mean.clone()


def _noise_state(quantizer: Quantizer) -> dict[str, Tensor]:
    names = ("forward_std", "backward_std", "forward_mean", "backward_mean")
    buffers = {name: getattr(quantizer, name) for name in names}
    # On the CPU, where a look at them costs no wait.
    return {name: buffer.detach().cpu().clone() for name, buffer in buffers.items() if buffer is not None}


def _count(layers: int) -> int:
    if layers < 1:
        raise ValueError(f"there must be at least one layer, got {layers}")
    return layers


def _shown(std: Tensor) -> str:
    return f"{std.item():.4g}" if std.numel() == 1 else f"{std.min():.4g}..{std.max():.4g}"
