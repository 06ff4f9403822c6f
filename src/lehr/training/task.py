"""The one Lightning module: a network, its loss, its optimizer; Algorithm 1's inner loop.

Validation and test are always noise-free (`eval()` removes the noise of every quantizer) and in full precision: what
is evaluated is the network that will be deployed. The sums of an epoch stay on the device until its end.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from lehr.algorithms import Algorithm
from lehr.batchnorm import batchnorms_of, reestimated
from lehr.data import Steps
from lehr.layers import Quantizer
from lehr.training.errors import Diverged
from lehr.training.measures import noisy_quantizers
from lehr.training.recipe import Optimizer, Schedule
from lehr.training.tally import Tally
from lehr.training.teacher import Teacher

# How often an accelerator, or several processes, are asked whether the losses were finite: each time they wait. A
# single process on a CPU is asked each step, where it costs nothing.
_STEPS_BETWEEN_CHECKS = 50


class Task(L.LightningModule):
    """Trains `model` on uint8 images and labels.

    `annealed` is the epoch by which all noise is gone, None without noise. With `batchnorm`, batches of training
    images, validation runs with BatchNorm statistics estimated from them without noise, and with those of training
    beside it. With a `teacher` the network learns from it as well. `results` holds loss and accuracy of the present
    epoch: "train/loss", "val/accuracy", "val/noisy_accuracy" (with the noise of training),
    "val/running_accuracy" (with BatchNorm's statistics of training), "test/loss", ...
    """

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module,
        algorithm: Algorithm,
        optimizer: Optimizer,
        schedule: Schedule,
        *,
        annealed: float | None = None,
        seed: int = 0,
        batchnorm: Iterable[Tensor] = (),
        teacher: Teacher | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.algorithm = algorithm
        self.optimizer = optimizer
        self.schedule = schedule
        self.annealed = annealed
        self.seed = seed
        self.batchnorm = batchnorm
        self.teacher = teacher
        self.results: dict[str, float] = {}
        self._forward = torch.compile(model.forward) if compile else model.forward
        self._tallies: dict[str, Tally] = {}
        self._unchecked: list[Tensor] = []
        self._noisy: list[Quantizer] = []
        self._running: dict[str, Tensor] = {}
        self._reestimation = contextlib.ExitStack()

    def configure_optimizers(self) -> Any:
        """The optimizer and the schedule by their names in torch; the learning rate is set each step."""
        # Fused kernels unscale the gradients of float16 themselves, after they were measured; and where they might,
        # Lightning does not clip.
        mixed, clipped = self.trainer.precision.endswith("-mixed"), self.optimizer.clip_norm is not None
        fused = self.trainer.precision != "16-mixed" and not (mixed and clipped)
        optimizer = self.algorithm.wrap(self.optimizer.build(self.model.parameters(), fused=fused), self.model)
        epochs = self.trainer.max_epochs or 1
        steps_per_epoch = int(self.trainer.estimated_stepping_batches) // epochs
        schedule = self.schedule.build(
            optimizer, steps_per_epoch=steps_per_epoch, epochs=epochs, annealed=self.annealed
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        """The teacher comes to the device."""
        if self.teacher:
            self.teacher.to(self.device)

    def on_train_epoch_start(self) -> None:
        """What an epoch draws depends on seed, epoch and process alone, so that a resumed run draws the same."""
        torch.manual_seed(random.Random(f"{self.seed} {self.current_epoch} {self.global_rank}").getrandbits(63))
        batches = self.trainer.train_dataloader
        if isinstance(batches, Steps):
            batches.set_epoch(self.current_epoch)
        self.results = {}
        self._begin("train")
        self.algorithm.before_epoch_(self.model, self.current_epoch, self.trainer.max_epochs or 0)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Lines 6-17 of Algorithm 1; the backward pass is autograd's, with Theorem 2 inside."""
        images, labels = batch
        with self.teacher.watching() if self.teacher else contextlib.nullcontext(()) as seen:
            scores = _single(self._forward(images))
        loss = self.loss(scores, labels)
        if self.teacher:
            loss = self.teacher.add_to(loss, images, scores, seen)
        self._tallies["train"].add(loss, scores, labels)
        self._watch(loss.detach(), images)
        return loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Line 18, and what the algorithm does after it."""
        super().optimizer_step(*args, **kwargs)
        self.algorithm.after_step_(self.model)

    def on_validation_epoch_start(self) -> None:
        """All processes agree on BatchNorm's statistics; then, where wanted, these without noise, for a while."""
        self._begin("val")
        if self.trainer.state.fn != TrainerFn.FITTING:
            return
        if self.trainer.world_size > 1:
            for norm in batchnorms_of(self.model).values():
                for statistic in (norm.running_mean, norm.running_var):
                    assert statistic is not None
                    statistic.copy_(self.trainer.strategy.reduce(statistic, reduce_op="mean"))
        self._noisy = noisy_quantizers(self.model)
        images = (batch.to(self.device) for batch in self.batchnorm)
        self._running = self._reestimation.enter_context(reestimated(self.model, images))
        self._begin(*(stage for stage, there in (("running", self._running), ("noisy", self._noisy)) if there))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Without noise; for comparison with the noise of training, and with BatchNorm's statistics of training."""
        self._evaluate("val", batch)
        if self._running:
            self._evaluate("running", batch, self._running)
        if self._noisy:
            for quantizer in self._noisy:
                quantizer.train()
            self._evaluate("noisy", batch, self._running)
            for quantizer in self._noisy:
                quantizer.eval()

    def on_validation_epoch_end(self) -> None:
        """Read the sums of validation."""
        self.end_reestimation()
        self._noisy, self._running = [], {}
        self._read("val", "val/")
        self._read("running", "val/running_")
        self._read("noisy", "val/noisy_")

    def end_reestimation(self) -> None:
        """Go back to BatchNorm's statistics of training, if that has not been done."""
        self._reestimation.close()

    def on_train_epoch_end(self) -> None:
        """Read the sums of training."""
        self._check_finite(None)
        self._read("train", "train/")

    def on_test_epoch_start(self) -> None:
        """Count from 0."""
        self._begin("test")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Without noise."""
        self._evaluate("test", batch)

    def on_test_epoch_end(self) -> None:
        """Read the sums of the test."""
        self._read("test", "test/")

    def _evaluate(self, stage: str, batch: tuple[Tensor, Tensor], buffers: dict[str, Tensor] | None = None) -> None:
        images, labels = batch
        with torch.autocast(images.device.type, enabled=False):
            scores = torch.func.functional_call(self.model, buffers, images) if buffers else self.model(images)
            self._tallies[stage].add(self.loss(scores, labels), scores, labels)

    def _begin(self, *stages: str) -> None:
        """Count from 0; in every process, also in one that will find no image it can read."""
        self._tallies |= {stage: Tally(self.device) for stage in stages}

    def _read(self, stage: str, prefix: str) -> None:
        """Loss and accuracy over all samples of all processes."""
        if stage in self._tallies:
            add = self.trainer.strategy.reduce
            loss, accuracy = self._tallies.pop(stage).read(lambda sums: add(sums, reduce_op="sum"))
            self.results |= {f"{prefix}loss": loss, f"{prefix}accuracy": accuracy}

    def _watch(self, loss: Tensor, images: Tensor) -> None:
        if loss.device.type == "cpu" and self.trainer.world_size == 1:
            if not math.isfinite(loss.item()):
                self._unchecked = [loss]
                self._check_finite(images)
            return
        self._unchecked.append(loss)
        if len(self._unchecked) == _STEPS_BETWEEN_CHECKS:
            self._check_finite(images)

    def _check_finite(self, images: Tensor | None) -> None:
        """Raise in all processes if the loss of one of them was not finite in a step since the last check."""
        if not self._unchecked:
            return
        losses = torch.stack(self._unchecked)
        self._unchecked = []
        wrong = ~self.trainer.strategy.reduce(losses, reduce_op="sum").isfinite()
        if not bool(wrong.any()):
            return
        first = int(wrong.int().argmax())
        step = self.global_step - len(losses) + first + (images is not None)
        raise Diverged(
            f"the loss became {losses[first].item()} at step {step} (epoch {self.current_epoch}); "
            f"{first_not_finite(self.model, images)}; a smaller learning rate or gradient clipping "
            f"(--optimizer.lr, --optimizer.clip_norm) may help"
        )


@torch.no_grad()
def first_not_finite(model: nn.Module, images: Tensor | None) -> str:
    """Where a network first turns to NaN or infinity, in its parameters or on these images: part of a sentence."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            layer, _, kind = name.rpartition(".")
            return f"the {kind} of layer {layer} is not finite"
    found: list[str] = []

    def look(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not bool(output.isfinite().all()):
                found.append(path)

        return hook

    leaves = [(path, module) for path, module in model.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(look(path)) for path, module in leaves]
    try:
        if images is not None:
            model.forward(images)
    finally:
        for handle in handles:
            handle.remove()
    return f"the output of layer {found[0]} is not finite" if found else "the values of all layers are finite"


def _single(scores: Tensor) -> Tensor:
    """At least single precision: a loss in bfloat16 would be known to two digits."""
    return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
