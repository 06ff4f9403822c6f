"""The one Lightning module: a network, its loss, its optimizer; Algorithm 1's inner loop.

Validation and test are always noise-free (`eval()` removes the noise of every quantizer). Sums are kept on the device
and read once an epoch, so that no step waits for an accelerator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from lehr.algorithms import Algorithm
from lehr.batchnorm import reestimated
from lehr.layers import Quantizer
from lehr.training.recipe import Optimizer

# How often an accelerator is asked whether the loss is still finite; a CPU is asked each step, where it costs nothing.
_STEPS_BETWEEN_CHECKS = 50


class Diverged(RuntimeError):
    """The loss is no longer a number."""


class Task(L.LightningModule):
    """Trains `model` on uint8 images and labels.

    `factor(epoch)` is what the learning rate is multiplied with, at whole epochs and between them. With `batchnorm`,
    batches of training images, validation runs with BatchNorm statistics estimated from them without noise.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module,
        algorithm: Algorithm,
        optimizer: Optimizer,
        factor: Callable[[float], float],
        *,
        seed: int = 0,
        batchnorm: Iterable[Tensor] = (),
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.algorithm = algorithm
        self.optimizer_settings = optimizer
        self.factor = factor
        self.seed = seed
        self.batchnorm = batchnorm
        self._reestimation = contextlib.ExitStack()
        # Not a submodule: a compiled twin would double every key of the state.
        self._network: list[Callable[[Tensor], Tensor]] = [torch.compile(model) if compile else model]
        self._tallies: dict[str, Tensor] = {}
        self.results: dict[str, float] = {}

    def forward(self, images: Tensor) -> Tensor:
        """Scores, (batch, class)."""
        return self._network[0](images)

    def on_train_epoch_start(self) -> None:
        """Draws of this epoch depend on seed, epoch and process alone, so that a resumed run draws the same."""
        torch.manual_seed(self.seed * 1_000_003 + self.current_epoch * 1009 + self.global_rank)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Lines 6-17 of Algorithm 1; the backward pass is autograd's, with Theorem 2 inside."""
        images, labels = batch
        scores = self(images)
        loss = self.loss(scores, labels)
        self._count("train", loss, scores, labels)
        if loss.device.type == "cpu" or (batch_idx + 1) % _STEPS_BETWEEN_CHECKS == 0:
            self._check_finite(loss, images)
        return loss

    def on_validation_epoch_start(self) -> None:
        """BatchNorm without the noise, for as long as validation takes."""
        if self.trainer.training:
            images = (batch.to(self.device) for batch in self.batchnorm)
            self._reestimation.enter_context(reestimated(self.model, images))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Without noise; and with the noise of training, while there is some, for comparison."""
        images, labels = batch
        scores = self(images)
        self._count("val", self.loss(scores, labels), scores, labels)
        noisy = noisy_quantizers(self.model)
        if noisy:
            for quantizer in noisy:
                quantizer.train()
            scores = self.model(images)
            self._count("noisy", self.loss(scores, labels), scores, labels)
            for quantizer in noisy:
                quantizer.eval()

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Without noise."""
        images, labels = batch
        scores = self(images)
        self._count("test", self.loss(scores, labels), scores, labels)

    def configure_optimizers(self) -> Any:
        """The optimizer by its name in torch; the learning rate is set each step."""
        settings = self.optimizer_settings
        common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
        parameters = self.model.parameters()
        if settings.name == "sgd":
            optimizer = torch.optim.SGD(parameters, momentum=settings.momentum, **common)
        else:
            kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
            optimizer = kind(parameters, fused=True, **common)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.factor(self._epochs(step)))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Line 18, and what the algorithm does after it."""
        super().optimizer_step(*args, **kwargs)
        self.algorithm.after_step_(self.model)

    def on_validation_epoch_end(self) -> None:
        """Read the sums of validation."""
        self._reestimation.close()
        self.results |= self._read("val") | {
            name.replace("noisy/", "val/noisy_"): value for name, value in self._read("noisy").items()
        }
        self.log("val/accuracy", self.results["val/accuracy"], prog_bar=True, logger=False)

    def on_train_epoch_end(self) -> None:
        """Read the sums of training."""
        self.results |= self._read("train")

    def on_test_epoch_end(self) -> None:
        """Read the sums of the test."""
        self.results |= self._read("test")

    def _epochs(self, step: int) -> float:
        """Steps in epochs; how many make one is known once training has begun."""
        return step / self.trainer.num_training_batches if step else 0.0

    def _count(self, stage: str, loss: Tensor, scores: Tensor, labels: Tensor) -> None:
        n = len(labels)
        correct = (scores.argmax(1) == labels).sum()
        sums = torch.stack([loss.detach().double() * n, correct.double(), torch.full_like(correct, n).double()])
        self._tallies[stage] = self._tallies[stage] + sums if stage in self._tallies else sums

    def _read(self, stage: str) -> dict[str, float]:
        """Loss and accuracy over all samples of all processes."""
        if stage not in self._tallies:
            return {}
        total, correct, count = self.trainer.strategy.reduce(self._tallies.pop(stage), reduce_op="sum").tolist()
        return {f"{stage}/loss": total / count, f"{stage}/accuracy": correct / count}

    def _check_finite(self, loss: Tensor, images: Tensor) -> None:
        if torch.isfinite(loss):
            return
        raise Diverged(
            f"the loss became {loss.item()} at step {self.global_step} (epoch {self.current_epoch}); "
            f"{first_not_finite(self.model, images)}; a smaller learning rate or gradient clipping "
            f"(--optimizer.lr, --optimizer.clip_norm) may help"
        )


def noisy_quantizers(model: nn.Module) -> list[Quantizer]:
    """The quantizers that still have forward noise."""
    quantizers = [module for module in model.modules() if isinstance(module, Quantizer)]
    return [quantizer for quantizer in quantizers if bool((quantizer.forward_std > 0).any())]


@torch.no_grad()
def first_not_finite(model: nn.Module, images: Tensor) -> str:
    """Which module first turns to NaN or infinity on these images: a sentence for an error."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"parameter {name} is not finite"
    found: list[str] = []

    def look(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(path)

        return hook

    leaves = [(path, module) for path, module in model.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(look(path)) for path, module in leaves]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return (
        f"the first layer with a value that is not finite is {found[0]}" if found else "all layers' values are finite"
    )
