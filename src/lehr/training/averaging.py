"""An exponential moving average of the weights, which a run with `averaging` evaluates and keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """The exponential moving average of a model's parameters.

    Buffers are not averaged: the noise follows its schedule, and BatchNorm's statistics are re-estimated.

    Args:
        model: the network that trains
        decay: the weight of the old average in each update; the new weights count 1 - decay
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._average = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._steps = 0
        self._update = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the weights after a step; the first call copies the weights."""
        average, weights = list(self._average.values()), [weight.detach() for weight in self._parameters.values()]
        if self._steps:
            self._update(average, weights, self._steps)
        else:
            for value, weight in zip(average, weights, strict=True):
                value.copy_(weight)
        self._steps += 1

    @torch.no_grad()
    def copy_to_weights(self) -> None:
        """Overwrite the model's weights with the average."""
        for name, weight in self._parameters.items():
            weight.copy_(self._average[name])

    @contextlib.contextmanager
    def in_place_of_weights(self, model: nn.Module) -> Iterator[None]:
        """Replace the model's weights by the average inside the block; restore weights and buffers afterwards."""
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.copy_to_weights()
        try:
            yield
        finally:
            model.load_state_dict(before)

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the number of updates."""
        return {"steps": self._steps, "average": self._average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the average in `state`, which `state_dict` returned."""
        self._steps = state["steps"]
        for name, value in state["average"].items():
            self._average[name].copy_(value)

    @property
    def values(self) -> dict[str, Tensor]:
        """The average of each parameter, by name."""
        return dict(self._average)
