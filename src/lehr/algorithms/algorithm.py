"""The interface of training algorithms: how one quantizes a model, and what it does while the model trains.

An algorithm is a value: its settings, checked when it is made. It keeps its state during training (masks, scales,
momenta) in the model, as buffers or parameters, so that checkpoints contain it and a resumed run continues exactly. The
training loop calls, in this order::

    convert_(model)                          once, before training
    wrap(optimizer, model)                   once
    before_epoch_(model, epoch, epochs)      before each epoch
    after_step_(model)                       after each step of the optimizer
    after_training_(model)                   once, before the final evaluation

The recipe's schedule anneals the noise of its quantizers if `anneals` is True.
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
from lehr.layers import QuantizedWeight

_HAIR = 2.0**-20  # a few units in the last place of float32


class Algorithm(abc.ABC):
    """A way to train a quantized network; a subclass must implement `convert_` and may override the rest."""

    @property
    def anneals(self) -> bool:
        """Whether the recipe's schedule anneals its noise."""
        return True

    @property
    def averages(self) -> bool:
        """Whether its weights can be averaged: False if they are at levels during training."""
        return True

    def describe(self) -> Description:
        """Return the algorithm's row of a table.

        By default it is the name of the class and the effect of the algorithm on a small network.
        """
        return describe_by_trial(type(self).__name__, self.convert_)

    @property
    def takes_rules(self) -> bool:
        """Whether `convert_` takes `rules`, precisions by path, as `quantize_` does."""
        return False

    @abc.abstractmethod
    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion | None:
        """Quantize a full-precision model in place.

        Args:
            model: the network
            trained: whether its weights are trained and must be kept

        Returns:
            The changes, or None if the algorithm leaves the model in full precision.
        """

    def wrap(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer to train with: the recipe's, or one with other steps."""
        return optimizer

    def before_epoch_(self, model: nn.Module, epoch: int, epochs: int) -> None:  # noqa: B027 - most do nothing here
        """Change the model before epoch `epoch` (from 0) of `epochs`; for example, freeze more of its weights.

        A resumed run calls it again for the epoch it resumes at, so it may depend only on the model and the epoch.
        """

    def after_step_(self, model: nn.Module) -> None:  # noqa: B027
        """Change the model after each step of the optimizer; for example, clip its shadow weights."""

    def after_training_(self, model: nn.Module) -> None:  # noqa: B027
        """Turn the model into the one to deploy; for example, remove noise that no schedule removes. Idempotent."""


def check_choices(algorithm: Algorithm) -> None:
    """Raise ValueError if a setting is not one of its allowed words."""
    for name, hint in typing.get_type_hints(type(algorithm)).items():
        parts = (hint, *typing.get_args(hint))
        words = [word for part in parts if typing.get_origin(part) is Literal for word in typing.get_args(part)]
        choices = words + [None] * (type(None) in parts)
        if words and getattr(algorithm, name) not in choices:
            allowed = ", ".join(map(str, choices))
            raise ValueError(f"{name} must be one of {allowed}, got {getattr(algorithm, name)!r}")


def quantized_layers(model: nn.Module) -> Iterator[tuple[str, QuantizedWeight]]:
    """Yield path and module of each layer with quantized weights, in the model's order."""
    for path, module in model.named_modules():
        if isinstance(module, QuantizedWeight):
            yield path, module


def clip_(model: nn.Module, reach: float) -> None:
    """Clip the shadow weights of the quantized layers to +-reach, in units of their scale.

    `reach` is meant for levels that end at -1 and 1; weights with more levels may go as far beyond their last one.
    The upper end is slightly below +reach, since windows of uniform noise are half-open: at +reach, where the window of
    the backward noise often ends, a weight would never get a gradient again.
    """
    for _, layer in quantized_layers(model):
        beyond = max(max(map(abs, layer.quantizer.step.levels)) - 1, 0.0)  # how far the last level is from 1
        clip_weight_(layer.weight, reach + beyond, layer.quantizer.scale)


@torch.no_grad()
def clip_weight_(weight: Tensor, reach: float, scale: Tensor | None) -> None:
    """Clip one tensor of shadow weights, as `clip_` does.

    Args:
        weight: the shadow weights
        reach: the largest size, in units of the scale
        scale: the scale of their quantizer; None means 1
    """
    if scale is None:
        weight.clamp_(-reach, reach * (1 - _HAIR))
    else:
        weight.clamp_(-reach * scale, reach * scale * (1 - _HAIR))
