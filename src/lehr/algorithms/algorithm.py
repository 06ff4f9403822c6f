"""What every training algorithm answers: how it quantizes a model, and what it does while the model trains."""

from __future__ import annotations

import abc
from collections.abc import Iterator

from torch import nn

from lehr.convert import Conversion
from lehr.layers import Conv1d, Conv2d, Conv3d, Linear


class Algorithm(abc.ABC):
    """A way to train a quantized network. An algorithm is a value: its settings, checked when it is made."""

    @abc.abstractmethod
    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion | None:
        """Quantize a full-precision model in place; `trained` says that its weights are worth keeping.

        Returns what was done, or None if the algorithm leaves the model in full precision.
        """

    def after_step_(self, model: nn.Module) -> None:  # noqa: B027 - most algorithms have nothing to do here
        """Change the model after each step of the optimizer, such as clipping its shadow weights."""


def quantized_layers(model: nn.Module) -> Iterator[tuple[str, Linear | Conv1d | Conv2d | Conv3d]]:
    """The layers with quantized weights and their paths, in the model's order."""
    for path, module in model.named_modules():
        if isinstance(module, Linear | Conv1d | Conv2d | Conv3d):
            yield path, module
