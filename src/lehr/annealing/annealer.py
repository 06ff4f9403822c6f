"""Set the noise of a model's quantizers over time, layer by layer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lehr.annealing.schedule import Constant, Law, LinearDecay, Schedule, Window
from lehr.calls import QuantizedCalls
from lehr.models.protocol import AnnealedInGroups
from lehr.noise import Dirac
from lehr.quantizer import Quantizer
from lehr.table import Table, Tabular


class Annealer(Tabular):
    """Sets the noise of a model's quantizers over time, which is counted in epochs.

    A layer is a module with weights and the activation after it; their quantizers anneal together. A network can
    define which modules are one layer by its `annealing_groups` (see `lehr.models.AnnealedInGroups`).

    Args:
        model: a quantized network
        schedule: when each layer's noise decays, such as `Hierarchical(duration=10)`; or one window for all layers; or
            a list with one window for each layer
        law: how the forward noise (std and mean) decays within a window
        synchronous: use the forward noise as the backward noise
        backward_law: how the backward noise decays; default: it stays constant (the paper's asynchronous variant)
        groups: the layers, if not the model's own: each is a path or several paths, and covers all quantizers at or
            below them; together they must cover every quantizer once
        steps_per_epoch: the number of calls of `step()` in an epoch: 1, or the number of batches
        epochs: the length of training; if given, warn if the schedule leaves noise at the end
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: Schedule | Window | Sequence[Window],
        law: Law = LinearDecay(),  # noqa: B008 - a frozen value
        *,
        synchronous: bool = False,
        backward_law: Law | None = None,
        groups: Sequence[str | Sequence[str]] | None = None,
        steps_per_epoch: int = 1,
        epochs: float | None = None,
    ) -> None:
        if synchronous and backward_law is not None:
            raise ValueError("synchronous backward noise equals the forward noise: leave backward_law out")
        if steps_per_epoch < 1:
            raise ValueError(f"steps_per_epoch must be at least 1, got {steps_per_epoch}")
        for given in (law, backward_law):
            if given is not None and (not callable(given) or isinstance(given, type)):
                raise TypeError(f"a law must be one such as LinearDecay() or PowerDecay(2), got {given!r}")
        self.groups = layers_of(model) if groups is None else _named_groups(model, groups)
        self.windows = _windows(schedule, self.groups)
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
        """The number of epochs passed."""
        return self.steps / self.steps_per_epoch

    @property
    def end(self) -> float:
        """The epoch at which the last window ends."""
        return max(window.end for window in self.windows)

    def step(self) -> None:
        """Advance by one epoch (or one batch, with `steps_per_epoch`) and set the noise."""
        self.steps += 1
        self._apply()

    def seek(self, time: float) -> None:
        """Go to `time`, in epochs, rounded down to a whole step, and set the noise."""
        if not 0 <= time < math.inf:
            raise ValueError(f"time must be finite and not negative, got {time}")
        self.steps = math.floor(time * self.steps_per_epoch + 1e-9)
        self._apply()

    def factors(self, time: float) -> list[tuple[float, float]]:
        """Return the factors of forward and backward noise at `time`, for each layer."""
        pairs = []
        for window in self.windows:
            progress = window.progress(time)
            forward = self.law(progress)
            pairs.append((forward, forward if self.synchronous else self.backward_law(progress)))
        return pairs

    def state_dict(self) -> dict[str, Any]:
        """Return the time and the initial noise of each quantizer."""
        return {"steps": self.steps, "initial": self._initial}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"an annealer's state needs steps and initial, got {', '.join(map(str, state))}")
        if set(state["initial"]) != set(self._initial):
            different = ", ".join(sorted(set(state["initial"]) ^ set(self._initial)))
            raise ValueError(f"this state belongs to another model: only one of the two has the quantizers {different}")
        self.steps = state["steps"]
        self._initial = {
            path: {name: value.cpu() for name, value in noise.items()} for path, noise in state["initial"].items()
        }
        self._apply()

    def table(self) -> Table:
        """Return a row for each layer: its quantizers, its window and its present noise."""
        rows = []
        for number, (group, window) in enumerate(zip(self._quantizers, self.windows, strict=True), 1):
            forward = "/".join(sorted({_shown(quantizer.forward_std) for quantizer in group.values()}))
            backward = "/".join(sorted({_shown(quantizer.backward_std) for quantizer in group.values()}))
            rows.append((number, ", ".join(group), window, forward, backward))
        return Table(("layer", "quantizers", "window", "forward std", "backward std"), rows)

    def __repr__(self) -> str:
        return f"Annealer({len(self.groups)} layers, epoch {self.time:g} of {self.end:g})"

    @torch.no_grad()
    def _apply(self) -> None:
        blocked = []
        for number, (group, factors) in enumerate(zip(self._quantizers, self.factors(self.time), strict=True), 1):
            for path, quantizer in group.items():
                for name, initial in self._initial[path].items():
                    # In place, since a compiled graph holds this tensor; non-blocking, so that no device is waited for.
                    value = initial * factors[name.startswith("backward")]
                    getattr(quantizer, name).copy_(value, non_blocking=True)
                    if name == "backward_std" and quantizer.backward_kind is not Dirac and not value.any():
                        blocked.append(number)
        if blocked and not self._warned:
            self._warned = True
            warnings.warn(
                f"at epoch {self.time:g} the backward noise of layer {blocked[-1]} became 0: "
                f"its weights and the layers before it get no gradient any more",
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
                f"their windows end at {ends}; train longer or shorten the windows",
                AnnealingWarning,
                stacklevel=3,
            )


class AnnealingWarning(UserWarning):
    """A schedule has an effect that the user may not want."""


def layers_of(model: nn.Module) -> list[list[str]]:
    """Return the paths of the model's quantizers, layer by layer, in the order of the model's modules.

    A module with weights, quantized or not, starts a layer; activations after it belong to it, and those before the
    first module with weights belong to the first layer. Each group in the `annealing_groups` of a network, or of a part
    of the model, is one layer. Layers without a quantizer do not count.
    """
    groups: dict[nn.Module, str] = {}
    layers: dict[str, list[str]] = {}
    layer_of_call: dict[nn.Module, str] = {}  # calls of functions, whose quantizers stand behind all layers
    paths = {module: path for path, module in model.named_modules()}
    layer = ""
    for path, module in model.named_modules():
        if isinstance(module, AnnealedInGroups):
            groups |= _grouped(path, module)
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            opened = groups.get(module, path)
            if not layer and "" in layers:  # activations before the first layer
                layers[opened] = layers.pop("") + layers.get(opened, [])
            layer = opened
        elif isinstance(module, QuantizedCalls):
            for call, owner in module.after.items():
                layer_of_call[module[call]] = groups.get(owner, paths[owner])
        elif isinstance(module, Quantizer):
            layers.setdefault(groups.get(module, layer_of_call.get(module, layer)), []).append(path)
    if not layers:
        raise ValueError(
            f"this {type(model).__name__} has no quantizer to anneal: convert it with lehr.quantize_ first"
        )
    return list(layers.values())


def _grouped(path: str, network: AnnealedInGroups) -> dict[nn.Module, str]:
    """Return the name of its group for each module that is in one."""
    assert isinstance(network, nn.Module)
    modules = dict(network.named_modules())
    groups: dict[nn.Module, str] = {}
    for number, group in enumerate(network.annealing_groups, 1):
        for name in group:
            if name not in modules:
                raise ValueError(f"{type(network).__name__}.annealing_groups names {name!r}, which it does not contain")
            for part in modules[name].modules():
                if groups.setdefault(part, f"{path}:{number}") != f"{path}:{number}":
                    raise ValueError(f"{type(network).__name__}.annealing_groups has {name!r} in two groups")
    return groups


def _windows(schedule: Schedule | Window | Sequence[Window], groups: Sequence[Sequence[str]]) -> list[Window]:
    """Return the window of each group."""
    if isinstance(schedule, Schedule):
        windows = schedule.windows(len(groups))
    else:
        windows = [schedule] * len(groups) if isinstance(schedule, Window) else schedule
    if not isinstance(windows, Sequence) or not all(isinstance(window, Window) for window in windows):
        raise TypeError(
            "a schedule must be one such as Hierarchical(duration=10), a window such as Window(0, 10), or a list of "
            f"windows, got {schedule!r}"
        )
    if len(windows) != len(groups):
        raise ValueError(
            f"the model has {len(groups)} layers to anneal, but got {len(windows)} windows; "
            f"the layers are {', '.join('+'.join(group) for group in groups)}"
        )
    return list(windows)


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
                    f"group {number} names {name!r}, which contains no quantizer; the quantizers are {', '.join(paths)}"
                )
            for path in below:
                if taken.setdefault(path, number) != number:
                    raise ValueError(f"quantizer {path} is in group {taken[path]} and in group {number}")
    missing = [path for path in paths if path not in taken]
    if missing:
        raise ValueError(f"no group covers {', '.join(missing)}")
    return [[path for path in paths if taken[path] == number] for number in range(1, len(groups) + 1)]


def _synchronise(quantizers: dict[str, Quantizer]) -> None:
    """Copy the forward noise of every quantizer to its backward noise."""
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
    # On the CPU, where reading them does not wait.
    return {name: buffer.detach().cpu().clone() for name, buffer in buffers.items() if buffer is not None}


def _shown(std: Tensor) -> str:
    return f"{std.item():.4g}" if std.numel() == 1 else f"{std.min():.4g}..{std.max():.4g}"
