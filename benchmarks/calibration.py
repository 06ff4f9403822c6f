"""What a trained network loses when it is quantized and calibrated, without training: 8/8 and 4/4 bits.

    python benchmarks/calibration.py [--network CNN|ResNet] [--width 16] [--epochs 5] [--images N] [--seed 0]

A small CNN and a functional ResNet, with and without BatchNorm, are trained in float. Then `quantize_` gives weights
and activations 8 or 4 bits, with a scale per output channel for the weights. It fits power-of-two scales of the
activations to 512 training images, and corrects biases and BatchNorm; "scales alone" is without this correction. Goals
on the test images: 8/8 within 0.5 points of float, 4/4 within 2. Exits with 1 if one is missed.
"""

import argparse
import copy
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import lehr
from lehr.data import Dataset, load
from lehr.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from written_models import FunctionalResNet, plain_cnn  # pyright: ignore[reportMissingImports]

GOALS = {"8bit": 0.5, "4bit": 2.0}
CALIBRATION = 512  # images


def trained(model: nn.Module, data: Dataset, epochs: int) -> nn.Module:
    """Train with Adam and one cycle of the learning rate."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    steps = epochs * -(-len(data.images) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(data.images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(data.images[batch]), data.labels[batch]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset) -> float:
    """Percent of the images whose class is found."""
    found = torch.cat([model(images).argmax(1) for images in data.images.split(500)])
    return 100 * (found == data.labels).double().mean().item()


def main() -> int:
    """Train, quantize, measure and compare with the goals."""
    parser = argparse.ArgumentParser(description="what calibration without training loses")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--network", choices=["CNN", "ResNet"], help="both unless given")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--images", type=int, help="train with so many images alone")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train, _, test = load(arguments.data)
    if arguments.images:
        train = replace(train, images=train.images[: arguments.images], labels=train.labels[: arguments.images])
    batches = train.images[:CALIBRATION].split(128)
    rows, missed = [], 0
    for name, make in (("CNN", plain_cnn), ("ResNet", FunctionalResNet)):
        if arguments.network not in (None, name):
            continue
        for norm in (True, False):
            torch.manual_seed(arguments.seed)
            model = trained(make(arguments.width, norm=norm, size=test.images.shape[-1]), train, arguments.epochs)
            before = accuracy(model, test)
            losses = {}
            for word, is_corrected in itertools.product(GOALS, (False, True)):
                quantized = copy.deepcopy(model)
                lehr.quantize_(quantized, weights=word, activations=word, scale="channel", example=(batches[0],))
                lehr.calibrate_(quantized, batches, like=model if is_corrected else None)
                losses[word, is_corrected] = before - accuracy(quantized, test)
            missed += sum(losses[word, True] > goal for word, goal in GOALS.items())
            rows.append(
                (name, "yes" if norm else "no", f"{before:.2f}", *(f"{-loss:+.2f}" for loss in losses.values()))
            )
            print(*rows[-1], flush=True)
    columns = [name for word in GOALS for name in (f"{word[0]}/{word[0]}, scales alone", f"{word[0]}/{word[0]} bits")]
    print(Table(("network", "BatchNorm", "float %", *columns), rows))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
