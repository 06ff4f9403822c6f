"""Stop a run whose loss becomes NaN or infinite, with an error that names the step and the layer.

A single process on a CPU checks each loss before the optimizer step. On an accelerator or with several processes a
check would synchronize them, so losses are checked every 50 steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lehr.training.errors import Diverged

_STEPS_BETWEEN_CHECKS = 50


class FiniteLoss:
    """Raises `Diverged` in all processes if the loss of one of them was not finite.

    Args:
        model: the network that trains
        total: adds a tensor over all processes
        every_step: check every loss; cheap for a single process on a CPU
    """

    def __init__(self, model: nn.Module, total: Callable[[Tensor], Tensor], *, every_step: bool) -> None:
        self._model, self._total, self._every_step = model, total, every_step
        self._losses: list[Tensor] = []

    def add(self, loss: Tensor, images: Tensor, epoch: int, step: int) -> None:
        """Record the loss of these images; `step` counts from the start of the run."""
        loss = loss.detach()
        if self._every_step and math.isfinite(loss.item()):
            return
        self._losses.append(loss)
        if self._every_step or len(self._losses) == _STEPS_BETWEEN_CHECKS:
            self.check(epoch, step, images)

    def check(self, epoch: int, step: int, images: Tensor | None = None) -> None:
        """Check the losses since the last check; the newest is that of `step`."""
        if not self._losses:
            return
        losses, self._losses = torch.stack(self._losses), []
        wrong = ~self._total(losses.clone()).isfinite()
        if not bool(wrong.any()):
            return
        first = int(wrong.int().argmax())
        raise Diverged(
            f"the loss became {losses[first].item()} at step {step - len(losses) + 1 + first} (epoch {epoch}); "
            f"{first_not_finite(self._model, images)}; try a smaller learning rate or gradient clipping "
            f"(--optimizer.lr, --optimizer.clip_norm)"
        )


@torch.no_grad()
def first_not_finite(model: nn.Module, images: Tensor | None) -> str:
    """Return a clause that names the first parameter, or the first output on these images, that is not finite."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            layer, _, kind = name.rpartition(".")
            return f"the {kind} of layer {layer} is not finite"
    found: list[str] = []

    def checking(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(path)

        return hook

    leaves = [(path, module) for path, module in model.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(checking(path)) for path, module in leaves]
    try:
        if images is not None:
            model.forward(images)
    finally:
        for handle in handles:
            handle.remove()
    return f"the output of layer {found[0]} is not finite" if found else "the values of all layers are finite"
