"""A moving average of the weights: what a run with `averaging` evaluates and keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """The exponential moving average of a model's parameters; buffers are not averaged.

    The noise is what it is, and BatchNorm's statistics are estimated anew.

    Args:
        model: the network that trains
        decay: what a step keeps of the average; the rest comes from the weights
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters = dict(model.named_parameters())
        self._average = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._steps = 0
        self._update = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of one more step in; the first step's are the average of one."""
        average, weights = list(self._average.values()), [weight.detach() for weight in self._parameters.values()]
        if self._steps:
            self._update(average, weights, self._steps)
        else:
            for value, weight in zip(average, weights, strict=True):
                value.copy_(weight)
        self._steps += 1

    @torch.no_grad()
    def copy_to_weights(self) -> None:
        """Make the average the model's weights."""
        for name, weight in self._parameters.items():
            weight.copy_(self._average[name])

    @contextlib.contextmanager
    def in_place_of_weights(self, model: nn.Module) -> Iterator[None]:
        """Let the model have the average for a while; its weights and buffers are as before afterwards."""
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.copy_to_weights()
        try:
            yield
        finally:
            model.load_state_dict(before)

    def state_dict(self) -> dict[str, Any]:
        """The average so far."""
        return {"steps": self._steps, "average": self._average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with an average of `state_dict`."""
        self._steps = state["steps"]
        for name, value in state["average"].items():
            self._average[name].copy_(value)

    @property
    def values(self) -> dict[str, Tensor]:
        """The average of each parameter, by name."""
        return dict(self._average)
