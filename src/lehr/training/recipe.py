"""A recipe: one experiment, complete. Typed, checked, written as YAML, every key settable on the command line.

>>> recipe = Recipe(data=Data("digits"), model=Model("mlp"), epochs=10)
>>> recipe.optimizer.lr
0.001
>>> Recipe(data=Data("digits"), model=Model("mlp"), epochs=0)
Traceback (most recent call last):
ValueError: epochs must be at least 1, got 0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import nn

from lehr import annealing, losses, models
from lehr.algorithms import ANA, Algorithm
from lehr.annealing import Law, Window

WINDOWS = {
    "hierarchical": annealing.hierarchical,
    "same-start": annealing.same_start,
    "same-end": annealing.same_end,
    "all-at-once": annealing.all_at_once,
}


@dataclass(frozen=True)
class Data:
    """Which images: a data set by name, below `root` (LEHR_DATA unless given), with `validation` images held out."""

    name: str
    root: Path | None = None
    batch_size: int = 128
    augment: bool = False
    validation: int | None = None

    def __post_init__(self) -> None:
        _at_least(1, batch_size=self.batch_size)
        if self.validation is not None:
            _at_least(1, validation=self.validation)


@dataclass(frozen=True)
class Model:
    """Which network, how wide, and to how many bits its input is rounded (None: not at all)."""

    name: Literal["mlp", "vgg"]
    width: float = 1.0
    hidden: tuple[int, ...] = (1024, 1024)
    input_bits: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.width < math.inf:
            raise ValueError(f"width must be positive, got {self.width}")

    def build(self, shape: tuple[int, ...], classes: int, mean: tuple[float, ...], std: tuple[float, ...]) -> nn.Module:
        """The network in full precision, for images of this shape and normalisation."""
        channels, height, columns = shape
        common = {"classes": classes, "width": self.width, "mean": mean, "std": std, "input_bits": self.input_bits}
        if self.name == "mlp":
            return models.MLP((channels, height, columns), hidden=self.hidden, **common)
        return models.VGG((channels, height, columns), **common)


@dataclass(frozen=True)
class Annealing:
    """When the noise of each layer goes: windows of `duration` epochs each, after `delay`, by `law`.

    `per` says how often the noise is set: once an "epoch", as in the paper, or each "batch".
    """

    windows: Literal["hierarchical", "same-start", "same-end", "all-at-once"] = "hierarchical"
    duration: float = 50.0
    delay: float = 0.0
    law: Law = annealing.Linear()  # noqa: RUF009 - frozen
    synchronous: bool = False
    backward_law: Law | None = None
    per: Literal["epoch", "batch"] = "epoch"

    def __post_init__(self) -> None:
        if not (0 <= self.duration < math.inf and 0 <= self.delay < math.inf):
            raise ValueError(f"duration and delay must not be negative, got {self.duration} and {self.delay}")

    def windows_for(self, layers: int) -> list[Window]:
        """One window for each of so many layers."""
        return WINDOWS[self.windows](layers, self.duration, self.delay)


@dataclass(frozen=True)
class Loss:
    """The squared hinge of the paper's CIFAR-10 experiments, or cross-entropy with label smoothing."""

    name: Literal["squared-hinge", "cross-entropy"] = "cross-entropy"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")
        if self.label_smoothing and self.name != "cross-entropy":
            raise ValueError("label_smoothing goes with the cross-entropy loss only")

    def build(self) -> nn.Module:
        """The loss as a module of scores and labels."""
        if self.name == "squared-hinge":
            return losses.SquaredHinge()
        return nn.CrossEntropyLoss(label_smoothing=self.label_smoothing)


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of torch, with the norm gradients are clipped to (None: not at all)."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over time, as a factor of `lr`: linear `warmup` epochs, then the shape by name.

    multi-step: times `gamma` at each of `milestones` (epochs), or at the end of annealing if there are none;
    cosine: to 0 (times `gamma` if given as `final`) at the last epoch; one-cycle: up over the first 30 %, then down.
    """

    name: Literal["constant", "multi-step", "cosine", "one-cycle"] = "constant"
    warmup: float = 0.0
    milestones: tuple[float, ...] = ()
    gamma: float = 0.1
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(f"warmup must not be negative, got {self.warmup}")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final is a share of the learning rate in [0, 1], got {self.final}")

    def factor(self, epoch: float, epochs: float, annealed: float) -> float:
        """What the learning rate is multiplied with at `epoch` of `epochs`, when annealing ends at `annealed`."""
        if epoch < self.warmup:
            return max(epoch, self.warmup / 100) / self.warmup
        progress = min(1.0, (epoch - self.warmup) / max(epochs - self.warmup, 1e-9))
        if self.name == "multi-step":
            return self.gamma ** sum(epoch >= milestone for milestone in self.milestones or (annealed,))
        if self.name == "cosine":
            return _cosine(progress, 1, self.final)
        if self.name == "one-cycle":
            return (
                _cosine(progress / 0.3, 0.04, 1) if progress < 0.3 else _cosine((progress - 0.3) / 0.7, 1, self.final)
            )
        return 1.0


@dataclass(frozen=True)
class Recipe:
    """One experiment. `result` is what it gave or what the paper gives; `devices` to `compile` say on what it runs.

    `batchnorm_batches`: training batches BatchNorm's statistics are estimated from anew, with the noise removed, before
    each validation (the running statistics of training are put back after it) and at the end; 0: never.
    """

    data: Data
    model: Model
    epochs: int
    description: str = ""
    result: str = ""
    algorithm: Algorithm = ANA()  # noqa: RUF009 - frozen
    annealing: Annealing = field(default_factory=Annealing)
    loss: Loss = field(default_factory=Loss)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    batchnorm_batches: int = 0
    seed: int = 0
    start: Path | None = None
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    accelerator: str = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = "32-true"
    channels_last: bool = True
    compile: bool = False

    def __post_init__(self) -> None:
        _at_least(1, epochs=self.epochs, devices=self.devices, num_nodes=self.num_nodes)
        _at_least(0, seed=self.seed, batchnorm_batches=self.batchnorm_batches)


def _cosine(progress: float, start: float, end: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def _at_least(least: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
