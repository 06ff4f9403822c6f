"""A network that another learns from: its scores, or what its BatchNorm layers give, are part of the other's loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lehr.batchnorm import batchnorms_of
from lehr.training.recipe import Distillation


class Teacher:
    """Teaches `student` as `distillation` says; it is no module, and so no part of what is trained and saved."""

    def __init__(self, network: nn.Module, student: nn.Module, distillation: Distillation) -> None:
        self.network = network.eval().requires_grad_(False)
        self._share = distillation.share
        self._distance = distillation.build()
        self._features = None
        if distillation.by == "features":
            check_features(network, student)
            self._features = Features(network), Features(student)

    def to(self, device: torch.device) -> None:
        """Come to the student's device."""
        self.network.to(device)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Sequence[Tensor]]:
        """What it must see of the student, filled while the student runs."""
        with self._features[1].noted() if self._features else contextlib.nullcontext(()) as seen:
            yield seen

    def add_to(self, loss: Tensor, images: Tensor, scores: Tensor, seen: Sequence[Tensor]) -> Tensor:
        """The loss with its share in it, of the student's scores on these images and of what was `seen`."""
        with torch.no_grad(), self._features[0].noted() if self._features else contextlib.nullcontext(()) as shown:
            taught = self.network(images)
        distance = self._distance(seen, shown) if self._features else self._distance(scores, taught.to(scores.dtype))
        return torch.lerp(loss, distance.to(loss.dtype), self._share)


def check_features(network: nn.Module, student: nn.Module) -> None:
    """Whether `network` can teach `student` by features; ValueError if not."""
    widths = [[norm.num_features for norm in batchnorms_of(model).values()] for model in (network, student)]
    if widths[0] != widths[1] or not widths[0]:
        raise ValueError(
            "a teacher by features needs the student's BatchNorm layers: "
            f"the teacher's have {widths[0]} features, the student's {widths[1]}"
        )


class Features:
    """Notes what the BatchNorm layers of a network give, while asked to.

    The hooks stay, since a compiled network looks for them only once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._seen: list[Tensor] | None = None
        for norm in batchnorms_of(model).values():
            norm.register_forward_hook(self._note)

    @contextlib.contextmanager
    def noted(self) -> Iterator[list[Tensor]]:
        """The outputs of the layers that run meanwhile, in the order in which they do."""
        self._seen = seen = []
        try:
            yield seen
        finally:
            self._seen = None

    def _note(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self._seen is not None:
            self._seen.append(output)
