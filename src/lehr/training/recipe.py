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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from torch import nn

from lehr import losses
from lehr.algorithms import ANA, Algorithm, FullPrecision
from lehr.annealing import Hierarchical, Law, LinearDecay, Schedule
from lehr.data import CropFlip
from lehr.training.model import Model
from lehr.training.optimizer import Optimizer, RateSchedule


@dataclass(frozen=True)
class Data:
    """Which images to train on, and how they are augmented.

    Args:
        name: a data set by name, such as cifar10; or folder, for your own images in class folders below `root`.
        root: the folder that data sets are in; LEHR_DATA unless given.
        batch_size: how many images a batch has.
        augment: change each training image at random: move it; of streamed images (imagenet), take a random part in
            random colours.
        padding: how many pixels an image is moved at most.
        flip: mirror half of the images, with `augment`.
        cutout: blacken a square of so many pixels a side at a random place, with `augment`; 0 for none.
        reflect: fill what comes in at the edges of a moved image with reflections instead of black.
        validation: how many training images to hold out for validation; the data set's own number unless given.
        size: scale images to so many pixels a side; 32 for folder and 224 for imagenet unless given.
        workers: how many processes read streamed images for each device; chosen by the machine unless given.
    """

    name: str
    root: Path | None = None
    batch_size: int = 128
    augment: bool = False
    padding: int = 4
    flip: bool = True
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
                raise ValueError(f"data.{name} is part of augmentation: it needs data.augment, got {value} without")
        if self.validation is not None:
            _at_least(1, validation=self.validation)
        if self.size is not None:
            _at_least(1, size=self.size)
        if self.workers is not None:
            _at_least(0, workers=self.workers)

    @property
    def augmentation(self) -> CropFlip | None:
        """What becomes of the images of a training batch: nothing without `augment`."""
        return CropFlip(self.padding, self.flip, self.cutout, self.reflect) if self.augment else None


@dataclass(frozen=True)
class Annealing:
    """When and how the noise of each layer decays: the arguments of `lehr.Annealer`.

    Args:
        schedule: the windows of the layers
        law: how the forward noise decays within a window
        synchronous: whether the backward noise is the forward noise
        backward_law: how the backward noise decays; constant unless given
        per: how often the noise is set, once an "epoch", as in the paper, or each "batch"
    """

    schedule: Schedule = Hierarchical(duration=50.0)  # noqa: RUF009 - frozen
    law: Law = LinearDecay()  # noqa: RUF009 - frozen
    synchronous: bool = False
    backward_law: Law | None = None
    per: Literal["epoch", "batch"] = "epoch"

    def __post_init__(self) -> None:
        if self.synchronous and self.backward_law is not None:
            raise ValueError("a synchronous backward noise is the forward noise: it takes no backward_law")


@dataclass(frozen=True)
class Loss:
    """What training minimises.

    Args:
        name: cross-entropy, or the squared hinge of the paper's CIFAR-10 experiments.
        label_smoothing: the share of each label that is spread over all classes, with cross-entropy.
    """

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
    """Train the full-precision twin first, and start from its weights.

    Args:
        epochs: how many; 0: there is no twin.
        lr: its learning rate; the recipe's own unless given.
        optimizer: its whole optimizer, in place of the recipe's own with `lr`.
        schedule: its learning rate over time; the recipe's own unless given.
    """

    epochs: int = 0
    lr: float | None = None
    optimizer: Optimizer | None = None
    schedule: RateSchedule | None = None

    def __post_init__(self) -> None:
        _at_least(0, **{"pretraining.epochs": self.epochs})
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ValueError(f"pretraining.lr must be positive, or null for the recipe's own, got {self.lr}")
        if self.lr is not None and self.optimizer is not None:
            raise ValueError(
                f"pretraining.optimizer has a learning rate of its own: pretraining.lr goes, got {self.lr}"
            )


@dataclass(frozen=True)
class Distillation:
    """Learn from another network too: part of the loss is the distance to its scores.

    Args:
        teacher: the run folder of the other network.
        epochs: train the recipe's full-precision twin as the teacher, for so many epochs; 0 for no twin.
        lr: the twin's learning rate; the recipe's own unless given.
        share: the teacher's part of the loss, above 0 and at most 1.
        by: the distance: squared difference of the scores; difference of the probabilities at `temperature` (Hinton et
            al.); squared difference of the features after each BatchNorm, for a teacher of the same architecture.
        temperature: the temperature of the softmax, for probabilities.
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
class Recipe:
    """One experiment.

    Args:
        data: which images.
        model: which network.
        epochs: how many epochs to train.
        description: what the recipe is for.
        result: what it gave, or what the paper gives.
        algorithm: how the network is quantized.
        annealing: when the noise of each layer decays, for algorithms with noise.
        loss: what training minimises.
        pretraining: the full-precision twin that is trained first.
        distillation: another network to learn from.
        optimizer: how the weights are updated.
        schedule: the learning rate over time.
        batchnorm_batches: re-estimate the statistics of BatchNorm from so many batches without noise, before each
            validation and at the end; 0 for never.
        averaging: the decay at each step of a moving average of the weights, which is what is evaluated and kept; 0
            for none. It needs batchnorm_batches.
        seed: the seed of all random numbers.
        start: a full-precision run whose weights to start from; --from is another name for it.
        devices: how many processors or GPUs on each machine.
        num_nodes: how many machines.
        strategy: how Lightning Fabric distributes the work, such as ddp.
        accelerator: what to train on, such as cpu or cuda; auto takes the best there is.
        precision: the numbers to compute with; bf16 and 16 are mixed with 32 bits.
        channels_last: keep images with the channels last in memory, which is often faster.
        compile: compile the network with torch.compile.
        deterministic: use only kernels that give the same bits each time, as those of a CPU do anyway.
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
        warmup = self.twin_schedule.warmup
        if 0 < self.twin_epochs <= warmup:
            raise ValueError(f"warmup must end before the twin's {self.twin_epochs} epochs do too, got {warmup:g}")
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
    def unused(self) -> dict[str, str]:
        """The keys that do nothing in this recipe, and what would make them do something."""
        keys = {}
        if not self.pretraining.epochs:
            keys |= dict.fromkeys(
                (f"pretraining.{name}" for name in ("lr", "optimizer", "schedule")), "pretraining.epochs"
            )
        if not self.distillation.epochs:
            keys["distillation.lr"] = "distillation.epochs"
            if self.distillation.teacher is None:
                names = ("share", "by", "temperature")
                keys |= dict.fromkeys((f"distillation.{name}" for name in names), "distillation.teacher, or its epochs")
        return keys

    @property
    def twin_epochs(self) -> int:
        """For how many epochs the full-precision twin is trained first: 0 if it is not."""
        return self.pretraining.epochs or self.distillation.epochs

    @property
    def twin_schedule(self) -> RateSchedule:
        """The learning rate over time of the full-precision twin, in which nothing is annealed."""
        schedule = self.pretraining.schedule or self.schedule
        return replace(schedule, milestones=tuple(drop for drop in schedule.milestones if drop != "annealed"))

    @property
    def twin(self) -> Recipe:
        """The same network in full precision, as it is trained first."""
        lr = (self.pretraining if self.pretraining.epochs else self.distillation).lr
        optimizer = replace(self.optimizer, lr=lr or self.optimizer.lr, norm_lr=None)
        return replace(
            self,
            description="",
            result="",
            algorithm=FullPrecision(),
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
