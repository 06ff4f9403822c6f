"""Images per second that a CIFAR-10 recipe trains with, and its full-precision twin: what an hour of training buys.

python benchmarks/budget.py [RECIPE] [--threads N] [--repetitions N]

A step is forward, backward and update on a batch that lies ready: in float32, in float32 compiled, and in bfloat16
compiled where the machine can (see benchmarks/processor.py for one that hides its AMX tiles).
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from lehr.algorithms import FullPrecision
from lehr.training.errors import RunError
from lehr.training.machine import check_bfloat16, compiled, keep_freed_memory
from lehr.training.recipe import Recipe
from lehr.training.recipes import named
from lehr.training.run import InputFormat, build
from measure import Row, report

CIFAR10 = InputFormat((3, 32, 32), tuple("0123456789"), (0.5,) * 3, (0.25,) * 3)


class Way(NamedTuple):
    """A way to compute the step."""

    name: str
    compiled: bool = False
    bfloat16: bool = False


WAYS = (Way("float32"), Way("float32 compiled", compiled=True), Way("bfloat16 compiled", compiled=True, bfloat16=True))


def training_step(recipe: Recipe, way: Way) -> Callable[[], None]:
    model = build(recipe, CIFAR10).train()
    network = compiled(model, torch.device("cpu")) if way.compiled else model
    optimizer = recipe.optimizer.build(model.parameters())
    loss = recipe.loss.build()
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        images = torch.randint(256, (recipe.data.batch_size, *CIFAR10.shape), dtype=torch.uint8, generator=generator)
        labels = torch.randint(10, (recipe.data.batch_size,), generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=way.bfloat16):
            cost = loss(network(images), labels)
        cost.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="cifar10-quick")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=60)
    arguments = parser.parse_args()
    ways = list(WAYS)
    try:
        check_bfloat16()
    except RunError as error:
        print(f"left out: {error}")
        ways.pop()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    quantized = named(arguments.recipe)
    twin = dataclasses.replace(quantized, algorithm=FullPrecision())
    rows: list[Row] = []
    for way in ways:
        steps = training_step(quantized, way), training_step(twin, way)
        seconds: list[list[float]] = [[], []]
        for _ in range(arguments.repetitions + 3):  # in turns, with three to warm up
            for step, taken in zip(steps, seconds, strict=True):
                began = time.perf_counter()
                step()
                taken.append(time.perf_counter() - began)
        fastest = [min(taken[3:]) for taken in seconds]
        usual = [sorted(taken[3:])[arguments.repetitions // 2] for taken in seconds]
        rows += [
            Row(f"{way.name}: images a second, fastest step", quantized.data.batch_size / fastest[0]),
            Row(f"{way.name}: images a second, median step", quantized.data.batch_size / usual[0]),
            Row(f"{way.name}: fastest step / its full-precision twin's", fastest[0] / fastest[1], 1.06),
            Row(f"{way.name}: median step / its full-precision twin's", usual[0] / usual[1]),
        ]
    report(rows)


if __name__ == "__main__":
    main()
