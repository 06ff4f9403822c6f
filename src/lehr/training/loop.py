"""Algorithm 1 of the paper, top to bottom, on Lightning Fabric.

    training = Training(fabric, recipe, model, splits)
    training.run(folder)               # each remaining epoch: train, validate, record, checkpoint
    results = training.finish(folder)  # the algorithm's last step, validation and test

`lehr.training.session` runs it: from a recipe, in a folder, and again after an interruption. The random numbers of an
epoch depend only on seed, epoch and process, so a resumed run draws the same ones.
"""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from lehr.annealing import Annealer
from lehr.batchnorm import batchnorms_of, reestimate_
from lehr.data import Splits, Steps, StreamedSplits
from lehr.training import measures
from lehr.training.averaging import Average
from lehr.training.divergence import FiniteLoss
from lehr.training.errors import RunWarning
from lehr.training.evaluation import Tally, batchnorm_images, evaluate_each, validate
from lehr.training.folder import RunFolder, save_checkpoint
from lehr.training.loaders import Loaders
from lehr.training.machine import compiled
from lehr.training.progress import Progress, progress
from lehr.training.recipe import Recipe
from lehr.training.record import Record
from lehr.training.run import MODEL
from lehr.training.teacher import Teacher

Results = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A training step as your `watch` function sees it: after the backward pass, before the optimizer step."""

    epoch: int
    step: int  # counted from the start of the run
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Tensor


class Training:
    """The training of a network: the loop, and the state that a checkpoint holds.

    Args:
        fabric: devices, processes and precision
        recipe: the experiment
        model: the network, already quantized by the recipe's algorithm
        splits: the images
        teacher: a network to distill from
        watch: called with each `Step`
    """

    def __init__(
        self,
        fabric: Fabric,
        recipe: Recipe,
        model: nn.Module,
        splits: Splits | StreamedSplits,
        *,
        teacher: Teacher | None = None,
        watch: Callable[[Step], None] | None = None,
    ) -> None:
        self.fabric, self.recipe, self.model, self.teacher, self.watch = fabric, recipe, model, teacher, watch
        self.loss = recipe.loss.build()
        loaders = Loaders(
            splits,
            recipe.data,
            seed=recipe.seed,
            device=fabric.device,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        )
        self.batches, self.validation, self.test = loaders.training(), loaders.validation(), loaders.test()
        self.batchnorm = batchnorm_images(recipe, splits)
        self.annealer = _annealer(recipe, model, len(self.batches))
        self.network = fabric.setup_module(compiled(model, fabric.device) if recipe.compile else model)
        if teacher:
            teacher.to(fabric.device)
        # Fused optimizers unscale float16 gradients in `step`, too late to measure them.
        optimizer = recipe.optimizer.build(model.parameters(), fused=recipe.precision != "16-mixed")
        self.optimizer: Any = fabric.setup_optimizers(recipe.algorithm.wrap(optimizer, model))
        self.schedule = recipe.schedule.build(
            self.optimizer.optimizer,
            steps_per_epoch=len(self.batches),
            epochs=recipe.epochs,
            annealed=self.annealer.end if self.annealer else None,
        )
        self.average = Average(model, recipe.averaging) if recipe.averaging else None
        self.epoch = 0  # the next epoch
        self.seconds = 0.0  # of training, summed over all sessions

    def run(self, folder: RunFolder) -> None:
        """Train the remaining epochs; write a row of metrics.csv and a checkpoint after each."""
        first = self.fabric.is_global_zero
        steps, epochs = len(self.batches), self.recipe.epochs
        codes = measures.level_codes(self.model)
        self.model.train()
        with contextlib.ExitStack() as stack:
            record = stack.enter_context(Record(folder, self.epoch)) if first else None
            shown = progress(folder.path, steps=steps, epochs=epochs, done=steps * self.epoch) if first else None
            if shown:
                stack.enter_context(shown)
            clock = time.perf_counter()
            for epoch in range(self.epoch, epochs):
                trained, last_step = self._train_epoch(epoch, shown)
                row = self._validate() | trained | last_step
                if shown:
                    shown.validated(row["val/accuracy"])
                if self.annealer:
                    self.annealer.seek(epoch + 1)  # the checkpoint holds the noise at the end of the epoch
                before, codes = codes, measures.level_codes(self.model)
                row |= measures.level_shares(self.model, codes) | measures.changed_shares(codes, before)
                now = time.perf_counter()
                self.epoch, self.seconds, clock = epoch + 1, self.seconds + now - clock, now
                if record:
                    record.add(epoch, row)
                    save_checkpoint(self.state_dict(), folder.checkpoint(self.epoch))
                    folder.prune()

    def _train_epoch(self, epoch: int, shown: Progress | None) -> tuple[dict[str, float], dict[str, float]]:
        """Run lines 1 to 20 of Algorithm 1 on each batch; return loss and accuracy, and measures of the last step."""
        fabric, recipe, model, optimizer, annealer = self.fabric, self.recipe, self.model, self.optimizer, self.annealer
        steps, last_step = len(self.batches), {}
        alone = fabric.device.type == "cpu" and fabric.world_size == 1
        finite, tally = FiniteLoss(model, self._total, every_step=alone), Tally(fabric.device)
        torch.manual_seed(random.Random(f"{recipe.seed} {epoch} {fabric.global_rank}").getrandbits(63))
        recipe.algorithm.before_epoch_(model, epoch, recipe.epochs)
        self.batches.set_epoch(epoch)
        for number, (images, labels) in enumerate(self.batches):
            step = epoch * steps + number

            # 2-5: for l = 1..L, μ_f, μ_b <- get_noise(t)                          compute noise
            if annealer and (number == 0 or recipe.annealing.per == "batch"):
                annealer.seek(epoch + number / steps)

            # 6-9: for l = 1..L, w~ <- E_μf[ζ(ω)], x <- E_μf[σ(w~ x + β)]           infer
            with self.teacher.watching() if self.teacher else contextlib.nullcontext(()) as seen:
                scores = self.network(images)
            loss = self.loss(scores, labels)
            if self.teacher:
                with fabric.autocast():
                    loss = self.teacher.add_to(loss, images, scores, seen)
            tally.add(loss, scores, labels)
            finite.add(loss, images, epoch, step)

            # 10-17: for l = L..1, g_s <- g_x ∇E_μb[σ(s + β)], g_w <- ...           backpropagate
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.strategy.precision.unscale_gradients(optimizer.optimizer)
            if number + 1 == steps:
                last_step = {"lr": optimizer.param_groups[0]["lr"]} | measures.noise(model)
                last_step |= {name: float(norm) for name, norm in measures.gradient_norms(model).items()}
            if recipe.optimizer.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.clip_norm)
            if self.watch:
                self.watch(Step(epoch, step, model, optimizer, loss))

            # 18: m <- optim(λ, m, g)
            optimizer.step()
            recipe.algorithm.after_step_(model)

            # 19: λ <- lr_sched(t, λ)
            self.schedule.step()

            if self.average:
                self.average.update()
            if shown:
                shown.step(epoch, number, loss)
        finite.check(epoch, (epoch + 1) * steps - 1)
        loss_of_epoch, accuracy = tally.read(self._total)
        return {"train/loss": loss_of_epoch, "train/accuracy": accuracy}, last_step

    def _validate(self) -> dict[str, float]:
        """Return the validation results; average BatchNorm's statistics over the processes first."""
        if self.fabric.world_size > 1:
            for norm in batchnorms_of(self.model).values():
                for statistic in (norm.running_mean, norm.running_var):
                    assert statistic is not None
                    statistic.copy_(self._total(statistic.clone()) / self.fabric.world_size)
        with self.average.in_place_of_weights(self.model) if self.average else contextlib.nullcontext():
            if self.average:
                self.recipe.algorithm.after_step_(self.model)  # fits scales to the averaged weights
            return validate(self.model, self.loss, self.validation, self.batchnorm, self._total, self.fabric.device)

    def finish(self, folder: RunFolder) -> Results:
        """Run line 21: finish and save the network, evaluate it on validation and test data, return the results."""
        model, algorithm = self.model, self.recipe.algorithm
        results: Results = self._skipped("train", self.batches)
        if self.average:
            self.average.copy_to_weights()
            algorithm.after_step_(model)
        algorithm.after_training_(model)
        model.eval()
        if self.recipe.batchnorm_batches:
            results |= self._evaluate("val/running_", self.validation)
            reestimate_(model, (images.to(self.fabric.device) for images in self.batchnorm))
        results |= self._evaluate("val/", self.validation) | self._skipped("val", self.validation)
        results |= self._evaluate("test/", self.test) | self._skipped("test", self.test)
        results |= measures.level_shares(model, measures.level_codes(model))
        results |= {name: std for name, std in measures.noise(model).items() if name.startswith("std/forward")}
        if self.fabric.is_global_zero:
            save_checkpoint({"state_dict": self._network_state(), "epoch": self.recipe.epochs}, folder.final)
        return results

    def state_dict(self) -> dict[str, Any]:
        """Return the content of a checkpoint; with averaging, its `state_dict` holds the averaged weights."""
        state = {
            "state_dict": self._network_state(),
            "epoch": self.epoch,
            "seconds": self.seconds,
            "optimizer": self.optimizer.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
        }
        if self.annealer:
            state["annealer"] = self.annealer.state_dict()
        if self.average:
            state["weights"] = state["state_dict"]
            average = {f"{MODEL}{name}": value for name, value in self.average.values.items()}
            state["state_dict"] = state["state_dict"] | average
            state["average"] = self.average.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        weights = state.get("weights", state["state_dict"])
        self.model.load_state_dict({name.removeprefix(MODEL): value for name, value in weights.items()})
        self.epoch, self.seconds = state["epoch"], state["seconds"]
        self.optimizer.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        if self.annealer:
            self.annealer.load_state_dict(state["annealer"])
        if self.average:
            self.average.load_state_dict(state["average"])

    def _network_state(self) -> dict[str, Tensor]:
        return {f"{MODEL}{name}": value.cpu() for name, value in self.model.state_dict().items()}

    def _evaluate(self, name: str, batches: Steps) -> dict[str, float]:
        return evaluate_each({name: self.model}, self.loss, batches, self.fabric.device, self._total)

    def _total(self, tensor: Tensor) -> Tensor:
        return self.fabric.all_reduce(tensor, reduce_op="sum")  # pyright: ignore[reportReturnType]

    def _skipped(self, part: str, batches: Steps) -> Results:
        """Return the number of images that could not be read, if any, as a result; warn of them."""
        names = set(batches.skipped.reasons)
        if self.fabric.world_size > 1:
            gathered: list[set[str]] = [set()] * self.fabric.world_size
            torch.distributed.all_gather_object(gathered, names)
            names = set().union(*gathered)
        if not names:
            return {}
        if self.fabric.is_global_zero:
            message = f"{len(names)} of {batches.skipped.total} images of {part} data cannot be read and were skipped"
            warnings.warn(message, RunWarning, stacklevel=2)
        return {f"{part}/skipped": len(names)}


def _annealer(recipe: Recipe, model: nn.Module, steps: int) -> Annealer | None:
    """Return the annealer of the recipe's schedule; None if there is no noise to anneal."""
    settings = recipe.annealing
    decays = bool(measures.noisy_quantizers(model)) or settings.backward_law is not None
    if not (recipe.algorithm.anneals and decays):
        return None
    return Annealer(
        model,
        settings.schedule,
        settings.law,
        synchronous=settings.synchronous,
        backward_law=settings.backward_law,
        steps_per_epoch=steps if settings.per == "batch" else 1,
        epochs=recipe.epochs,
    )
