"""What every training algorithm answers: how it quantizes a model, and what it does while the model trains.

An algorithm is a value: its settings, checked when it is made. What it needs to remember while training (masks, scales,
momenta of its own) it keeps in the model, as buffers or parameters, so that checkpoints hold it and a resumed run goes
on exactly. The engine calls, in this order::

    convert_(model)                          once, before training
    wrap(optimizer, model)                   once
    before_epoch_(model, epoch, epochs)      before each epoch
    after_step_(model)                       after each step of the optimizer
    after_training_(model)                   once, before the network is evaluated for good

The noise of its quantizers is annealed by the recipe's schedule, unless `anneals` says that it stays.
"""

from __future__ import annotations

import abc
import typing
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from lehr.algorithms.description import Description, describe_by_trial
from lehr.convert import Conversion
from lehr.layers import Conv1d, Conv2d, Conv3d, Linear

_HAIR = 2.0**-20  # some units in the last place of float32


class Algorithm(abc.ABC):
    """A way to train a quantized network; all but `convert_` may be left as they are."""

    @property
    def anneals(self) -> bool:
        """Whether its noise is annealed by the recipe's schedule, or stays as it is."""
        return True

    @property
    def averages(self) -> bool:
        """Whether an average of its weights is a network of its kind: not where they stay at levels while training."""
        return True

    def describe(self) -> Description:
        """Return what tables say of the algorithm.

        Unless a subclass says it, what happens to a small network is described, under the name of the class.
        """
        return describe_by_trial(type(self).__name__, self.convert_)

    @abc.abstractmethod
    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion | None:
        """Quantize a full-precision model in place; `trained` says that its weights are worth keeping.

        Returns what was done, or None if the algorithm leaves the model in full precision.
        """

    def wrap(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer to train with: the recipe's own, or one that changes what a step does to the weights."""
        return optimizer

    def before_epoch_(self, model: nn.Module, epoch: int, epochs: int) -> None:  # noqa: B027 - most do nothing here
        """Change the model before epoch `epoch` (from 0) of `epochs`, such as quantizing more of its weights for good.

        A resumed run calls it again for the epoch it resumes at: what it does must depend on the model and the epoch
        alone.
        """

    def after_step_(self, model: nn.Module) -> None:  # noqa: B027
        """Change the model after each step of the optimizer, such as clipping its shadow weights."""

    def after_training_(self, model: nn.Module) -> None:  # noqa: B027
        """Make the model what will be deployed, such as removing noise that no schedule removes; idempotent."""


def check_choices(algorithm: Algorithm) -> None:
    """Raise ValueError for a setting that is none of the words it can be."""
    for name, hint in typing.get_type_hints(type(algorithm)).items():
        parts = (hint, *typing.get_args(hint))
        words = [word for part in parts if typing.get_origin(part) is Literal for word in typing.get_args(part)]
        choices = words + [None] * (type(None) in parts)
        if words and getattr(algorithm, name) not in choices:
            told = ", ".join(map(str, choices))
            raise ValueError(f"{name} must be one of {told}, got {getattr(algorithm, name)!r}")


def quantized_layers(model: nn.Module) -> Iterator[tuple[str, Linear | Conv1d | Conv2d | Conv3d]]:
    """The layers with quantized weights and their paths, in the model's order."""
    for path, module in model.named_modules():
        if isinstance(module, Linear | Conv1d | Conv2d | Conv3d):
            yield path, module


def clip_(model: nn.Module, reach: float) -> None:
    """Keep the shadow weights of the quantized layers within +-reach, in units of their scale.

    The upper end is a hair below, since windows of uniform noise are half-open: at +reach itself, where the window
    of the backward noise often ends, a weight would never again get a gradient.
    """
    for _, layer in quantized_layers(model):
        clip_weight_(layer.weight, reach, layer.quantizer.scale)


@torch.no_grad()
def clip_weight_(weight: Tensor, reach: float, scale: Tensor | None) -> None:
    """Keep one tensor of shadow weights within +-reach, in units of its scale, as `clip_` does."""
    if scale is None:
        weight.clamp_(-reach, reach * (1 - _HAIR))
    else:
        weight.clamp_(-reach * scale, reach * scale * (1 - _HAIR))
