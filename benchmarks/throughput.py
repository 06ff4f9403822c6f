"""Throughput of lehr's training loop beside a hand-written PyTorch loop: at least 0.97 of it, 0.90 for a tiny network.

    python benchmarks/throughput.py [--threads N] [--epochs N] [--steps N]

The same network, data, augmentation, optimizer and batch size; epochs of both alternate in one process, the minimum of
each is taken, in seconds of the processor, so that others on the machine disturb little. Two ratios: of the training
steps, and of whole epochs, in which the hand-written loop validates, and lehr's validates with and without noise
and writes metrics, TensorBoard's curves and a checkpoint.

VGG at width 1/4 on images like CIFAR-10's (batch 64) is a usual network; a small MLP on the digits (batch 64) shows
what the loop costs per step. Exits with 1 where the ratio of the steps is below its goal less a tenth, as that much may
be noise.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lehr.algorithms import ANA
from lehr.annealing import Constant
from lehr.data import Batches, CropFlip, Dataset, Splits, load
from lehr.training.loop import Step
from lehr.training.recipe import Annealing, Data, Model, Optimizer, Recipe
from lehr.training.run import InputFormat, build
from lehr.training.session import train

GOALS = {"vgg": 0.97, "mlp": 0.90}


class HandWritten:
    """What one would write without lehr's loop."""

    def __init__(self, recipe: Recipe, splits: Splits) -> None:
        self.model = build(recipe, InputFormat.of(splits.train))
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


class Alternate:
    """Runs an epoch of the hand-written loop at the first step of each of lehr's, and times both.

    A step of lehr's is what lies between two calls, so that an epoch of n steps shows n - 1 of them; a whole epoch is
    what lies between the first calls of two epochs.
    """

    def __init__(self, loop: HandWritten, steps: int) -> None:
        self.loop, self.steps = loop, steps
        self.by_hand: list[tuple[float, float]] = []
        self.lehr: list[tuple[float, float]] = []
        self._began = self._trained = 0.0

    def __call__(self, step: Step) -> None:
        number = step.step % self.steps
        if number == 0:
            if step.epoch:
                self.lehr.append((self._trained, time.process_time() - self._began))
            self.by_hand.append(self.loop.epoch())
            self._began = time.process_time()
        elif number == self.steps - 1:
            self._trained = (time.process_time() - self._began) * self.steps / (self.steps - 1)


def images_like_cifar10(count: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return Dataset(pixels, labels, tuple("0123456789"), (0.4914, 0.4822, 0.4465), (0.2470, 0.2430, 0.2610))


def measure(name: str, recipe: Recipe, splits: Splits) -> float:
    steps = len(splits.train) // recipe.data.batch_size
    alternate = Alternate(HandWritten(recipe, splits), steps)
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, Path(folder) / "run", splits=splits, watch=alternate)
    by_hand, ours = (
        [min(seconds) for seconds in zip(*both, strict=True)] for both in (alternate.by_hand, alternate.lehr)
    )
    print(
        f"{name}: a step by hand {by_hand[0] / steps * 1e3:.2f} ms, lehr's {ours[0] / steps * 1e3:.2f} ms, "
        f"{(ours[0] - by_hand[0]) / steps * 1e6:.0f} us more; "
        f"throughput {by_hand[0] / ours[0]:.3f} of steps, {by_hand[1] / ours[1]:.3f} of whole epochs",
        flush=True,
    )
    return by_hand[0] / ours[0]


def recipe(**settings: Any) -> Recipe:
    # Noise throughout: the most expensive phase.
    return Recipe(algorithm=ANA(clip=1.0), annealing=Annealing(law=Constant()), optimizer=Optimizer(), **settings)


def main() -> int:
    parser = argparse.ArgumentParser(description="throughput of lehr's training beside a hand-written loop")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, {options.epochs} epochs of each, the quickest counts")
    digits = recipe(data=Data("digits", batch_size=64), model=Model("mlp", hidden=(256, 256)), epochs=options.epochs)
    splits = load("digits")
    measure("MLP 256-256, digits, 19 steps an epoch", digits, splits)
    many = splits.train.take(torch.arange(len(splits.train)).repeat(40))
    mlp = measure("MLP 256-256, digits 40 times, 783 steps an epoch", digits, splits._replace(train=many))
    settings = recipe(
        data=Data("cifar10", batch_size=64, augment=True), model=Model("vgg", width=0.25), epochs=options.epochs
    )
    images = images_like_cifar10(64 * options.steps)
    held_out = images_like_cifar10(64 * options.steps // 9)  # the paper's proportion, 45k to 5k
    vgg = measure(f"VGG x1/4, {options.steps} steps an epoch", settings, Splits(images, held_out, held_out))
    return int(vgg < 0.9 * GOALS["vgg"] or mlp < 0.9 * GOALS["mlp"])


if __name__ == "__main__":
    sys.exit(main())
