"""Throughput of lehr's engine beside a hand-written PyTorch loop; the goal is at least 0.95 of it.

    python benchmarks/throughput.py [--threads N] [--epochs N] [--steps N]

The same network, data, augmentation, optimizer and batch size; epochs of both alternate in one process, the minimum of
each is taken, in seconds of the processor, so that others on the machine disturb little. Two ratios: of the training
steps, and of whole epochs, in which the hand-written loop validates, and the engine validates with and without noise
and writes metrics, TensorBoard's curves and a checkpoint.

VGG at width 1/4 on images like CIFAR-10's (batch 64) is the goal's; a small MLP on the digits (batch 64) shows what the
engine costs per step. Exits with 1 where VGG's first ratio is below 0.95 less a tenth, as that much may be noise.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn

from lehr.algorithms import ANA
from lehr.annealing import Constant
from lehr.data import Batches, CropFlip, Dataset, Splits, load
from lehr.training import engine
from lehr.training.recipe import Annealing, Data, Model, Optimizer, Recipe
from lehr.training.run import Images, build

GOAL = 0.95


class HandWritten:
    """What one would write without lehr's engine."""

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        self.model = build(recipe, Images.of(splits.train))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=recipe.optimizer.lr, fused=True)
        augment = CropFlip() if recipe.data.augment else None
        self.train = Batches(splits.train, recipe.data.batch_size, shuffle=True, augment=augment, drop_last=True)
        self.validation = Batches(splits.validation, 500)

    def epoch(self) -> tuple[float, float]:
        """Train and validate; the seconds of training, and of both."""
        began = time.process_time()
        self.model.train()
        for images, labels in self.train:
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        trained = time.process_time()
        self.model.eval()
        with torch.inference_mode():
            sum((self.model(images).argmax(1) == labels).sum() for images, labels in self.validation)
        return trained - began, time.process_time() - began


class Alternate(L.Callback):
    """Runs an epoch of the hand-written loop before each of the engine's, and times both."""

    def __init__(self, loop: HandWritten) -> None:
        self.loop = loop
        self.by_hand: list[tuple[float, float]] = []
        self.engine: list[tuple[float, float]] = []
        self._began = self._trained = 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The engine's epoch ends where its next begins, or its training ends."""
        if trainer.current_epoch > 0:
            self.on_train_end(trainer, pl_module)
        self.by_hand.append(self.loop.epoch())
        self._began = time.process_time()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """All steps are done."""
        self._trained = time.process_time()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The last epoch."""
        self.engine.append((self._trained - self._began, time.process_time() - self._began))


def images_like_cifar10(count: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return Dataset(pixels, labels, tuple("0123456789"), (0.4914, 0.4822, 0.4465), (0.2470, 0.2430, 0.2610))


def measure(name: str, recipe: Recipe, splits: Splits) -> float:
    alternate = Alternate(HandWritten(recipe, splits))
    with tempfile.TemporaryDirectory() as folder:
        engine.train(recipe, Path(folder) / "run", splits=splits, callbacks=[alternate])
    by_hand, ours = (
        [min(seconds) for seconds in zip(*both, strict=True)] for both in (alternate.by_hand, alternate.engine)
    )
    steps = len(splits.train) // recipe.data.batch_size
    print(
        f"{name}: a step by hand {by_hand[0] / steps * 1e3:.2f} ms, the engine's {ours[0] / steps * 1e3:.2f} ms, "
        f"{(ours[0] - by_hand[0]) / steps * 1e6:.0f} us more; "
        f"throughput {by_hand[0] / ours[0]:.3f} of steps, {by_hand[1] / ours[1]:.3f} of whole epochs",
        flush=True,
    )
    return by_hand[0] / ours[0]


def recipe(**settings: Any) -> Recipe:
    # Noise throughout: the most expensive phase.
    return Recipe(algorithm=ANA(clip=1.0), annealing=Annealing(law=Constant()), optimizer=Optimizer(), **settings)


def main() -> int:
    parser = argparse.ArgumentParser(description="throughput of the engine beside a hand-written loop")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, {options.epochs} epochs of each, the quickest counts")
    digits = recipe(data=Data("digits", batch_size=64), model=Model("mlp", hidden=(256, 256)), epochs=options.epochs)
    measure("MLP 256-256, digits, 19 steps an epoch", digits, load("digits"))
    train, validation, test = load("digits")
    many = train.take(torch.arange(len(train)).repeat(40))
    measure("MLP 256-256, digits 40 times, 783 steps an epoch", digits, Splits(many, validation, test))
    vgg = recipe(
        data=Data("cifar10", batch_size=64, augment=True), model=Model("vgg", width=0.25), epochs=options.epochs
    )
    images = images_like_cifar10(64 * options.steps)
    held_out = images_like_cifar10(64 * options.steps // 9)  # the paper's proportion, 45k to 5k
    ratio = measure(f"VGG x1/4, {options.steps} steps an epoch", vgg, Splits(images, held_out, held_out))
    return int(ratio < 0.9 * GOAL)


if __name__ == "__main__":
    sys.exit(main())
