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
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import lr_scheduler

from lehr import annealing, losses, models
from lehr.algorithms import ANA, Algorithm, FullPrecision
from lehr.annealing import Law, Window

WINDOWS = {
    "hierarchical": annealing.hierarchical,
    "last-first": annealing.last_first,
    "same-start": annealing.same_start,
    "same-end": annealing.same_end,
    "all-at-once": annealing.all_at_once,
}


@dataclass(frozen=True)
class Data:
    """Which images: a data set by name, below `root` (LEHR_DATA unless given), with `validation` images held out.

    With `augment` each image is moved at random by up to `padding` pixels and, with `flip`, mirrored half of the time;
    with `cutout` a square of so many pixels a side is blackened, at a random place.
    Images that are streamed from files (imagenet) are cut to `size` pixels a side, 224 unless given, by `workers`
    reader processes for each device; with `augment` a random part of each, in random colours.
    """

    name: str
    root: Path | None = None
    batch_size: int = 128
    augment: bool = False
    padding: int = 4
    flip: bool = True
    cutout: int = 0
    validation: int | None = None
    size: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        _at_least(2, batch_size=self.batch_size)  # BatchNorm needs two images
        _at_least(0, padding=self.padding, cutout=self.cutout)
        if self.cutout and not self.augment:
            raise ValueError(f"data.cutout is part of augmentation: it needs data.augment, got {self.cutout} without")
        if self.validation is not None:
            _at_least(1, validation=self.validation)
        if self.size is not None:
            _at_least(1, size=self.size)
        if self.workers is not None:
            _at_least(0, workers=self.workers)


@dataclass(frozen=True)
class Model:
    """Which network, how wide, and to how many bits its input is rounded (None: not at all)."""

    name: Literal["mlp", "vgg", "alexnet", "mobilenet-v2"]
    width: float = 1.0
    hidden: tuple[int, ...] = (1024, 1024)
    input_bits: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.width < math.inf:
            raise ValueError(f"width must be positive, got {self.width}")
        if self.hidden and min(self.hidden) < 1:
            raise ValueError(f"every hidden layer needs at least one feature, got {self.hidden}")
        if self.input_bits is not None and not 2 <= self.input_bits <= 8:
            raise ValueError(f"input_bits must be between 2 and 8, or null, got {self.input_bits}")

    def build(self, shape: tuple[int, ...], classes: int, mean: tuple[float, ...], std: tuple[float, ...]) -> nn.Module:
        """The network in full precision, for images of this shape and normalisation."""
        channels, height, columns = shape
        common = {"classes": classes, "width": self.width, "mean": mean, "std": std, "input_bits": self.input_bits}
        if self.name == "mlp":
            return models.MLP((channels, height, columns), hidden=self.hidden, **common)
        kind = {"vgg": models.VGG, "alexnet": models.AlexNet, "mobilenet-v2": models.MobileNetV2}[self.name]
        return kind((channels, height, columns), **common)


@dataclass(frozen=True)
class Annealing:
    """When the noise of each layer goes: windows of `duration` epochs each, after `delay`, by `law`.

    `per` says how often the noise is set: once an "epoch", as in the paper, or each "batch".
    """

    windows: Literal["hierarchical", "last-first", "same-start", "same-end", "all-at-once"] = "hierarchical"
    duration: float = 50.0
    delay: float = 0.0
    law: Law = annealing.Linear()  # noqa: RUF009 - frozen
    synchronous: bool = False
    backward_law: Law | None = None
    per: Literal["epoch", "batch"] = "epoch"

    def __post_init__(self) -> None:
        if not (0 <= self.duration < math.inf and 0 <= self.delay < math.inf):
            raise ValueError(f"duration and delay must not be negative, got {self.duration} and {self.delay}")
        if self.synchronous and self.backward_law is not None:
            raise ValueError("a synchronous backward noise is the forward noise: it takes no backward_law")

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
class Pretraining:
    """Train the full-precision twin for so many `epochs` first, and start from its weights.

    Its learning rate is `lr`, the recipe's own unless given.
    """

    epochs: int = 0
    lr: float | None = None

    def __post_init__(self) -> None:
        _at_least(0, **{"pretraining.epochs": self.epochs})
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ValueError(f"pretraining.lr must be positive, or null for the recipe's own, got {self.lr}")


@dataclass(frozen=True)
class Distillation:
    """Learn from another network too: `share` of the loss is the distance to its scores.

    The other is the run `teacher`, or with `epochs` the recipe's full-precision twin, trained for so many first, with
    the learning rate `lr` (the recipe's own unless given). By "scores" the distance is the squared difference, by
    "probabilities" that of the softmax at `temperature` (Hinton et al.), by "features" the squared difference of what
    the BatchNorm layers give, for a teacher of the same architecture.
    """

    teacher: Path | None = None
    epochs: int = 0
    lr: float | None = None
    share: float = 0.5
    by: Literal["scores", "probabilities", "features"] = "scores"
    temperature: float = 4.0

    def __post_init__(self) -> None:
        _at_least(0, **{"distillation.epochs": self.epochs})
        if self.epochs and self.teacher is not None:
            raise ValueError(f"a teacher is a run ({self.teacher}) or trained for {self.epochs} epochs, not both")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ValueError(f"distillation.lr must be positive, or null for the recipe's own, got {self.lr}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is the teacher's part of the loss, above 0 and at most 1, got {self.share}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be positive, got {self.temperature}")

    def build(self) -> nn.Module:
        """The distance as a module of scores (or lists of features) and the teacher's."""
        if self.by == "probabilities":
            return losses.TowardsProbabilities(self.temperature)
        return losses.TowardsScores() if self.by == "scores" else losses.TowardsFeatures()


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of torch, with the norm gradients are clipped to (None: not at all); `momentum` is sgd's.

    `norm_lr` is the learning rate of BatchNorm's parameters and of biases, `lr` unless given.
    """

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 1e-3
    norm_lr: float | None = None
    weight_decay: float = 0.0
    momentum: float = 0.9
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.norm_lr is not None and not 0 < self.norm_lr < math.inf:
            raise ValueError(f"norm_lr must be positive, or null for lr, got {self.norm_lr}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be positive, or null for no clipping, got {self.clip_norm}")

    def build(self, parameters: Iterable[nn.Parameter], *, fused: bool = True) -> torch.optim.Optimizer:
        """Torch's optimizer of these parameters; `fused` updates them in one pass."""
        common: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay, "fused": fused}
        every = list(parameters)
        groups: list[dict[str, Any]] = [{"params": every}]
        if self.norm_lr is not None:
            weights, rest = ([p for p in every if (p.ndim > 1) == weight] for weight in (True, False))
            groups = [{"params": weights}, {"params": rest, "lr": self.norm_lr}]
        if self.name == "sgd":
            return torch.optim.SGD(groups, momentum=self.momentum, **common)
        return (torch.optim.Adam if self.name == "adam" else torch.optim.AdamW)(groups, **common)


@dataclass(frozen=True)
class Schedule:
    """The learning rate over time, by torch's schedulers: `warmup` epochs in which it rises to `lr`, then by name.

    multi-step: times `gamma` at each of `milestones`, in epochs or "annealed", the end of the last annealing window;
    cosine: down to `final` times lr at the last epoch; one-cycle: up over 30 % of training, then down to almost 0.
    """

    name: Literal["constant", "multi-step", "cosine", "one-cycle"] = "constant"
    warmup: float = 0.0
    milestones: tuple[float | Literal["annealed"], ...] = ("annealed",)
    gamma: float = 0.1
    final: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < math.inf:
            raise ValueError(f"warmup must not be negative, got {self.warmup}")
        if self.warmup and self.name == "one-cycle":
            raise ValueError("the one-cycle schedule has its own warmup: leave warmup at 0")
        for milestone in self.milestones:
            if milestone != "annealed" and not 0 <= milestone < math.inf:
                raise ValueError(f'a milestone is an epoch, at least 0, or "annealed", got {milestone}')
        if not 0 < self.gamma < math.inf:
            raise ValueError(f"gamma must be positive, got {self.gamma}")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final is a share of the learning rate in [0, 1], got {self.final}")

    def build(
        self, optimizer: torch.optim.Optimizer, *, steps_per_epoch: int, epochs: int, annealed: float | None
    ) -> lr_scheduler.LRScheduler:
        """Torch's scheduler, to be stepped after each batch; `annealed` is the epoch by which all noise is gone."""
        rising = round(self.warmup * steps_per_epoch)
        steps = epochs * steps_per_epoch - rising
        scheduler: lr_scheduler.LRScheduler
        if self.name == "multi-step":
            if annealed is None and "annealed" in self.milestones:
                raise ValueError(
                    "the learning rate is to drop when annealing ends, but nothing is annealed: "
                    "give schedule.milestones in epochs"
                )
            drops = [annealed if milestone == "annealed" else milestone for milestone in self.milestones]
            at = [round(drop * steps_per_epoch) - rising for drop in drops if drop is not None]
            scheduler = lr_scheduler.MultiStepLR(optimizer, sorted(at), self.gamma)
        elif self.name == "cosine":
            # Torch's own has one last rate for all groups of parameters, whatever their first.
            scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: self._cosine(step / max(steps, 1)))
        elif self.name == "one-cycle":
            rates = [group["lr"] for group in optimizer.param_groups]
            scheduler = lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps, cycle_momentum=False)
        else:
            scheduler = lr_scheduler.ConstantLR(optimizer, factor=1.0)
        if not rising:
            return scheduler
        warmup = lr_scheduler.LinearLR(optimizer, start_factor=1 / (rising + 1), total_iters=rising)
        return lr_scheduler.SequentialLR(optimizer, [warmup, scheduler], milestones=[rising])

    def _cosine(self, progress: float) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


@dataclass(frozen=True)
class Recipe:
    """One experiment. `result` is what it gave or what the paper gives; `devices` to `compile` say on what it runs.

    `annealing` is for algorithms with noise. `batchnorm_batches`: how many batches of training images BatchNorm's
    statistics are estimated from anew, with the noise removed, for each validation (training goes on with its own) and
    at the end; 0: never. `averaging` is the decay, for each step, of a moving average of the weights, which is what is
    evaluated and kept (0: none); it needs `batchnorm_batches`. `start` is a full-precision run to start from
    (`--from RUN`). `deterministic` asks torch for kernels that give the same bits each time, as a CPU's do anyway.
    """

    data: Data
    model: Model
    epochs: int
    description: str = ""
    result: str = ""
    algorithm: Algorithm = ANA()  # noqa: RUF009 - frozen
    annealing: Annealing = field(default_factory=Annealing)
    loss: Loss = field(default_factory=Loss)
    pretraining: Pretraining = field(default_factory=Pretraining)
    distillation: Distillation = field(default_factory=Distillation)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    batchnorm_batches: int = 0
    averaging: float = 0.0
    seed: int = 0
    start: Path | None = None
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    accelerator: str = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = "32-true"
    channels_last: bool = True
    compile: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        _at_least(1, epochs=self.epochs, devices=self.devices, num_nodes=self.num_nodes)
        _at_least(0, seed=self.seed, batchnorm_batches=self.batchnorm_batches)
        if self.seed >= 2**64:
            raise ValueError(f"seed must be below 2**64, got {self.seed}")
        if not 0 <= self.averaging < 1:
            raise ValueError(f"averaging is a decay in [0, 1), 0 for none, got {self.averaging}")
        if self.averaging and not self.batchnorm_batches:
            raise ValueError("averaged weights need BatchNorm statistics of their own: give batchnorm_batches, say 20")
        if self.averaging and not self.algorithm.averages:
            raise ValueError(
                f"{type(self.algorithm).__name__} has its weights at levels while it trains, and their average is at "
                f"none: averaging must be 0, got {self.averaging}"
            )
        if self.schedule.warmup >= self.epochs:
            raise ValueError(f"warmup must end before the {self.epochs} epochs do, got {self.schedule.warmup:g}")
        if self.pretraining.epochs and self.distillation.epochs:
            raise ValueError(
                "one twin is trained: to start from (pretraining.epochs) or to teach (distillation.epochs)"
            )
        if self.pretraining.epochs and self.start is not None:
            raise ValueError(f"a run starts from another ({self.start}) or from its pretrained twin, not from both")
        if 0 < self.twin_epochs <= self.schedule.warmup:
            raise ValueError(
                f"warmup must end before the twin's {self.twin_epochs} epochs do too, got {self.schedule.warmup:g}"
            )
        if self.twin_epochs and self.devices * self.num_nodes > 1:
            raise ValueError(
                "on several devices train the full-precision twin before, and give it by --from or as "
                "distillation.teacher"
            )

    @property
    def anchored(self) -> Recipe:
        """With absolute paths, so that a run can be resumed from any working directory."""
        root, start, teacher = (
            path and path.expanduser().resolve() for path in (self.data.root, self.start, self.distillation.teacher)
        )
        return replace(
            self,
            data=replace(self.data, root=root),
            start=start,
            distillation=replace(self.distillation, teacher=teacher),
        )

    @property
    def twin_epochs(self) -> int:
        """For how many epochs the full-precision twin is trained first: 0 if it is not."""
        return self.pretraining.epochs or self.distillation.epochs

    @property
    def twin(self) -> Recipe:
        """The same network in full precision, as it is trained first."""
        lr = (self.pretraining if self.pretraining.epochs else self.distillation).lr
        milestones = tuple(milestone for milestone in self.schedule.milestones if milestone != "annealed")
        return replace(
            self,
            description="",
            result="",
            algorithm=FullPrecision(),
            annealing=Annealing(),
            epochs=self.twin_epochs,
            schedule=replace(self.schedule, milestones=milestones),
            optimizer=replace(self.optimizer, lr=lr or self.optimizer.lr, norm_lr=None),
            pretraining=Pretraining(),
            distillation=Distillation(),
            batchnorm_batches=0,
            averaging=0.0,
            start=None,
        )


def _at_least(least: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
