"""What augmentation costs beside a training step; the goal is at most 3 %.

    python benchmarks/augment.py [--threads N] [--repetitions N]

One step of the VGG-like network at width 1/4 (convolutions of 32-32-64-64-128-128 channels, fully connected
256-256-10, input 3 x 32 x 32, batch 64, float32, Adam) and one `CropFlip` of the same batch alternate in one
process; the minimum of each is taken. Exits with 1 where the ratio is above twice the goal, as less may be
noise.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lehr.data import CropFlip

GOAL = 0.03
BATCH = 64


def vgg(width: int = 32) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for i, factor in enumerate((1, 1, 2, 2, 4, 4)):
        layers.append(nn.Conv2d(channels, factor * width, 3, padding=1, bias=False))
        channels = factor * width
        layers += [nn.MaxPool2d(2)] if i % 2 else []
        layers += [nn.BatchNorm2d(channels), nn.Hardtanh()]
    layers.append(nn.Flatten())
    features = channels * 4 * 4
    for size in (8 * width, 8 * width):
        layers += [nn.Linear(features, size, bias=False), nn.BatchNorm1d(size), nn.Hardtanh()]
        features = size
    return nn.Sequential(*layers, nn.Linear(features, 10))


def training_step() -> Callable[[Tensor, Tensor], None]:
    network = vgg()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def step(images: Tensor, labels: Tensor) -> None:
        loss = nn.functional.cross_entropy(network(images.float().sub(127.5).div(64)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description="cost of augmentation beside a training step")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(10, (BATCH,))
    step, augment = training_step(), CropFlip(padding=4)
    steps, augmentations = [], []
    for _ in range(options.repetitions):
        steps.append(seconds(lambda: step(images, labels)))
        augmentations.append(seconds(lambda: augment(images, generator)))
    ratio = min(augmentations) / min(steps)
    print(
        f"{options.threads} threads: step {min(steps) * 1e3:.2f} ms, "
        f"augmentation {min(augmentations) * 1e3:.3f} ms, {ratio:.2%} of it (goal: at most {GOAL:.0%})"
    )
    return int(ratio > 2 * GOAL)


if __name__ == "__main__":
    sys.exit(main())
