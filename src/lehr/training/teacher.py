"""Distillation: a teacher's scores, or the outputs of its BatchNorm layers, are part of the student's loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lehr.batchnorm import batchnorms_of
from lehr.training.objective import Distillation


class Teacher:
    """Adds the distance between a student and a frozen network to the student's loss.

    It is not a module, so the student does not train or save it.

    Args:
        network: the teacher's network
        student: the network that trains
        distillation: the recipe's settings
    """

    def __init__(self, network: nn.Module, student: nn.Module, distillation: Distillation) -> None:
        self.network = network.eval().requires_grad_(False)
        self._share = distillation.share
        self._distance = distillation.build()
        self._features = None
        if distillation.by == "features":
            check_features(network, student)
            self._features = Features(network), Features(student)

    def to(self, device: torch.device) -> None:
        """Move the teacher to a device."""
        self.network.to(device)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Sequence[Tensor]]:
        """Yield a list that collects the student's features while the student runs in the block."""
        with self._features[1].noted() if self._features else contextlib.nullcontext(()) as seen:
            yield seen

    def add_to(self, loss: Tensor, images: Tensor, scores: Tensor, seen: Sequence[Tensor]) -> Tensor:
        """Return the loss with the teacher's share added.

        Args:
            loss: the student's
            images: the batch
            scores: the student's scores
            seen: the student's features, from `watching`
        """
        with torch.no_grad(), self._features[0].noted() if self._features else contextlib.nullcontext(()) as shown:
            taught = self.network(images)
        distance = self._distance(seen, shown) if self._features else self._distance(scores, taught.to(scores.dtype))
        return torch.lerp(loss, distance.to(loss.dtype), self._share)


def check_features(network: nn.Module, student: nn.Module) -> None:
    """Raise ValueError if `network` cannot teach `student` by features."""
    widths = [[norm.num_features for norm in batchnorms_of(model).values()] for model in (network, student)]
    if widths[0] != widths[1] or not widths[0]:
        raise ValueError(
            "distillation by features needs the same BatchNorm layers in both networks: "
            f"the teacher's have {widths[0]} features, the student's {widths[1]}"
        )


class Features:
    """Collects the outputs of a network's BatchNorm layers inside a `noted` block.

    The hooks stay registered, since a compiled network looks for them only once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._seen: list[Tensor] | None = None
        for norm in batchnorms_of(model).values():
            norm.register_forward_hook(self._note)

    @contextlib.contextmanager
    def noted(self) -> Iterator[list[Tensor]]:
        """Yield a list that collects the outputs of the layers that run in the block, in order."""
        self._seen = seen = []
        try:
            yield seen
        finally:
            self._seen = None

    def _note(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self._seen is not None:
            self._seen.append(output)
