"""A recipe describes one experiment completely. It is typed, checked and saved as YAML; the command line sets any key.

>>> recipe = Recipe(data=Data("digits"), model=Model("mlp"), epochs=10)
>>> recipe.optimizer.lr
0.001
>>> Recipe(data=Data("digits"), model=Model("mlp"), epochs=0)
Traceback (most recent call last):
ValueError: epochs must be at least 1, got 0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from lehr.algorithms import ANA, Algorithm, FullPrecision
from lehr.annealing import Hierarchical, Law, LinearDecay, Schedule
from lehr.data import CropFlip
from lehr.precision import step_of
from lehr.training.model import Model
from lehr.training.objective import Distillation, Loss
from lehr.training.optimizer import Optimizer, RateSchedule


@dataclass(frozen=True)
class Data:
    """The images, or signals, of an experiment.

    Args:
        name: of a data set, or `folder` for your own images, in class folders below `root`.
        root: the folder of the data; default: LEHR_DATA.
        batch_size: images of a training step, on all devices together.
        augment: change training images at random, by the four keys below; images streamed from files (imagenet) are
            cropped and recoloured at random instead; signals are not augmented.
        padding: shift images by up to this many pixels.
        flip: mirror half of the images, at random; or alternate, which mirrors each image every other epoch.
        cutout: blacken a square of this many pixels a side at a random place; 0: none.
        reflect: fill the edges of shifted images by reflection, not with black.
        validation: how many training images to hold out for validation.
        size: pixels a side of your own images (default 32) and of streamed ones (default 224).
        workers: processes that read image files, for each device.
    """

    name: str
    root: Path | None = None
    batch_size: int = 128
    augment: bool = False
    padding: int = 4
    flip: bool | Literal["alternate"] = True
    cutout: int = 0
    reflect: bool = False
    validation: int | None = None
    size: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        _at_least(2, batch_size=self.batch_size)  # BatchNorm needs two images
        _at_least(0, padding=self.padding, cutout=self.cutout)
        for name in ("cutout", "reflect"):
            if getattr(self, name) and not self.augment:
                value = getattr(self, name)
                raise ValueError(f"data.{name} needs data.augment, got {value} without it")
        if self.flip == "alternate" and not self.augment:
            raise ValueError("data.flip alternate needs data.augment")
        if self.validation is not None:
            _at_least(1, validation=self.validation)
        if self.size is not None:
            _at_least(1, size=self.size)
        if self.workers is not None:
            _at_least(0, workers=self.workers)

    @property
    def augmentation(self) -> CropFlip | None:
        """The augmentation of training images in memory; None without `augment`."""
        return CropFlip(self.padding, self.flip is True, self.cutout, self.reflect) if self.augment else None

    @property
    def alternates(self) -> bool:
        """Whether each training image is mirrored every other epoch."""
        return self.flip == "alternate"


@dataclass(frozen=True)
class Annealing:
    """When and how the noise of each layer decays: the arguments of `lehr.Annealer`.

    Args:
        schedule: the windows of the layers
        law: how the forward noise decays within a window
        synchronous: use the forward noise as the backward noise
        backward_law: how the backward noise decays; default: it stays constant
        per: how often the noise is set: once an "epoch", as in the paper, or each "batch"
    """

    schedule: Schedule = Hierarchical(duration=50.0)  # noqa: RUF009 - frozen
    law: Law = LinearDecay()  # noqa: RUF009 - frozen
    synchronous: bool = False
    backward_law: Law | None = None
    per: Literal["epoch", "batch"] = "epoch"

    def __post_init__(self) -> None:
        if self.synchronous and self.backward_law is not None:
            raise ValueError("synchronous backward noise equals the forward noise: leave backward_law out")


@dataclass(frozen=True)
class Pretraining:
    """Train the full-precision twin first, and start from its weights.

    Args:
        epochs: of the twin; 0: no twin.
        lr: the twin's learning rate; default: the recipe's.
        batch_size: images of a training step of the twin; default: the recipe's.
        optimizer: the twin's optimizer; default: the recipe's, with `lr`.
        schedule: the twin's learning rate over time; default: the recipe's.
        calibration: fit the scales of the activations to this many batches of training images before going on from the
            twin, or from the run given by `--from`; 0: leave them at 1.
    """

    epochs: int = 0
    lr: float | None = None
    batch_size: int | None = None
    optimizer: Optimizer | None = None
    schedule: RateSchedule | None = None
    calibration: int = 0

    def __post_init__(self) -> None:
        _at_least(0, **{"pretraining.epochs": self.epochs, "pretraining.calibration": self.calibration})
        if self.batch_size is not None:
            _at_least(2, **{"pretraining.batch_size": self.batch_size})
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ValueError(f"pretraining.lr must be positive, or null for the recipe's rate, got {self.lr}")
        if self.lr is not None and self.optimizer is not None:
            raise ValueError(f"pretraining.optimizer sets the learning rate: leave pretraining.lr out, got {self.lr}")


@dataclass(frozen=True)
class Recipe:
    """One experiment.

    Args:
        data: the images.
        model: the network.
        epochs: how many to train.
        description: a sentence for readers.
        result: what the experiment measured, or what the paper reports.
        algorithm: the method that quantizes the network.
        precision_rules: precisions by path, as those of `lehr.quantize_`: {conv1: int8, ends: float}.
        annealing: how the noise decays, for algorithms with noise.
        loss: what training minimises.
        pretraining: train the full-precision twin first and start from it.
        distillation: learn from a teacher.
        optimizer: the optimizer and its learning rate.
        schedule: the learning rate over time.
        batchnorm_batches: re-estimate BatchNorm's statistics without noise from this many batches of training images,
            for each validation (training keeps its running statistics) and at the end; 0: never.
        averaging: the decay per step of a moving average of the weights, which is evaluated and kept; 0: none. It needs
            `batchnorm_batches`.
        seed: of weights, order, augmentation and held-out images.
        start: a run to start from (`--from RUN`): of full precision, or of the same algorithm.
        devices: how many on each node.
        num_nodes: how many machines.
        strategy: Lightning Fabric's: auto or ddp.
        accelerator: Lightning Fabric's: auto, cpu, cuda, mps.
        precision: Lightning Fabric's float type, of activations and gradients; levels are `precision_rules`'.
        channels_last: store filters in torch's channels_last format.
        compile: use torch.compile.
        deterministic: make torch use deterministic kernels on an accelerator; those of a CPU always are.
    """

    data: Data
    model: Model
    epochs: int
    description: str = ""
    result: str = ""
    algorithm: Algorithm = ANA()  # noqa: RUF009 - frozen
    precision_rules: dict[str, str] | None = field(default=None, hash=False)
    annealing: Annealing = field(default_factory=Annealing)
    loss: Loss = field(default_factory=Loss)
    pretraining: Pretraining = field(default_factory=Pretraining)
    distillation: Distillation = field(default_factory=Distillation)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: RateSchedule = field(default_factory=RateSchedule)
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
            raise ValueError("averaging needs re-estimated BatchNorm statistics: set batchnorm_batches, say to 20")
        if self.averaging and not self.algorithm.averages:
            raise ValueError(
                f"{type(self.algorithm).__name__} keeps weights at levels during training, and their average is not at "
                f"a level: averaging must be 0, got {self.averaging}"
            )
        if self.precision_rules and not self.algorithm.takes_rules:
            raise ValueError(
                f"{type(self.algorithm).__name__} chooses the precision of each layer itself: precision_rules go with "
                f"ANA and Estimated, got {self.precision_rules}"
            )
        for word in (self.precision_rules or {}).values():
            step_of(word)
        if self.schedule.warmup >= self.epochs:
            raise ValueError(f"warmup must end before the {self.epochs} epochs do, got {self.schedule.warmup:g}")
        if self.pretraining.epochs and self.distillation.epochs:
            raise ValueError(
                "a run trains one twin: to start from (pretraining.epochs) or to learn from (distillation.epochs)"
            )
        if self.pretraining.epochs and self.start is not None:
            raise ValueError(f"start from another run ({self.start}) or from a twin (pretraining.epochs), not both")
        warmup = self.twin_schedule.warmup
        if 0 < self.twin_epochs <= warmup:
            raise ValueError(f"warmup must end before the twin's {self.twin_epochs} epochs do too, got {warmup:g}")
        if self.twin_epochs and self.devices * self.num_nodes > 1:
            raise ValueError(
                "several devices cannot train a twin: train it before, and give it by --from or as distillation.teacher"
            )

    @property
    def anchored(self) -> Recipe:
        """The recipe with absolute paths, so that a run can be resumed from any working directory."""
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
    def unused(self) -> dict[str, str]:
        """The keys that have no effect in this recipe, and the key that each of them needs."""
        keys = {}
        if not self.pretraining.epochs:
            keys |= dict.fromkeys(
                (f"pretraining.{name}" for name in ("lr", "batch_size", "optimizer", "schedule")),
                "pretraining.epochs",
            )
            if self.start is None:
                keys["pretraining.calibration"] = "pretraining.epochs, or a run to start from"
        if not self.distillation.epochs:
            keys["distillation.lr"] = "distillation.epochs"
            if self.distillation.teacher is None:
                names = ("share", "by", "temperature")
                keys |= dict.fromkeys((f"distillation.{name}" for name in names), "distillation.teacher, or its epochs")
        return keys

    @property
    def twin_epochs(self) -> int:
        """The number of epochs of the full-precision twin; 0: no twin."""
        return self.pretraining.epochs or self.distillation.epochs

    @property
    def twin_schedule(self) -> RateSchedule:
        """The learning rate schedule of the full-precision twin, which anneals nothing."""
        schedule = self.pretraining.schedule or self.schedule
        return replace(schedule, milestones=tuple(drop for drop in schedule.milestones if drop != "annealed"))

    @property
    def twin(self) -> Recipe:
        """The recipe of the full-precision twin, which is trained first."""
        lr = (self.pretraining if self.pretraining.epochs else self.distillation).lr
        optimizer = replace(self.optimizer, lr=lr or self.optimizer.lr, norm_lr=None)
        return replace(
            self,
            description="",
            result="",
            algorithm=FullPrecision(),
            data=replace(self.data, batch_size=self.pretraining.batch_size or self.data.batch_size),
            precision_rules=None,
            annealing=Annealing(),
            epochs=self.twin_epochs,
            schedule=self.twin_schedule,
            optimizer=self.pretraining.optimizer or optimizer,
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
