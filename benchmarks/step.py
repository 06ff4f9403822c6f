"""Training step of the paper's VGG-like network at width 1/4, batch 64: quantized against its fp32 Hardtanh twin.

python benchmarks/step.py [--quick]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import torch
from torch import nn

import lehr
from lehr.training.machine import keep_freed_memory
from measure import Row, fastest, report


def vgg() -> nn.Sequential:
    """The table of the paper's appendix with a quarter of its channels; max-pool before BatchNorm."""
    layers: list[nn.Module] = []
    before = 3
    for number, channels in enumerate((32, 32, 64, 64, 128, 128), 1):
        layers.append(nn.Conv2d(before, channels, 3, padding=1, bias=False))
        layers += [nn.MaxPool2d(2)] if number % 2 == 0 else []
        layers += [nn.BatchNorm2d(channels), nn.Hardtanh()]
        before = channels
    layers.append(nn.Flatten())
    for inputs, outputs in ((128 * 16, 256), (256, 256)):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.Hardtanh()]
    return nn.Sequential(*layers, nn.Linear(256, 10, bias=False), nn.BatchNorm1d(10))


def training_step(model: nn.Module, compiled: bool, layout: torch.memory_format) -> Callable[[], None]:
    model = copy.deepcopy(model).to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.randn(64, 3, 32, 32).contiguous(memory_format=layout)
    generator = torch.Generator().manual_seed(0)
    forward = torch.compile(model) if compiled else model

    def step() -> None:
        optimizer.zero_grad()
        labels = torch.randint(10, (64,), generator=generator)  # the same ones would be learned, and gradients denormal
        nn.functional.cross_entropy(forward(images), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    repetitions = 3 if parser.parse_args().quick else 25
    torch.set_num_threads(1)
    keep_freed_memory()  # as `lehr train` does
    torch.manual_seed(0)
    twin = vgg()
    quantized = copy.deepcopy(twin)
    lehr.quantize_(quantized)

    rows: list[Row] = []
    for name, layout in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last)):
        seconds = fastest(
            {
                f"{kind} {mode}": training_step(model, mode == "compiled", layout)
                for kind, model in (("twin", twin), ("quantized", quantized))
                for mode in ("eager", "compiled")
            },
            repetitions,
        )
        rows += [
            Row(f"{name}: fp32 twin eager, ms", 1000 * seconds["twin eager"]),
            Row(f"{name}: fp32 twin compiled, ms", 1000 * seconds["twin compiled"]),
            Row(f"{name}: eager / twin eager", seconds["quantized eager"] / seconds["twin eager"], 1.10),
            Row(f"{name}: compiled / twin compiled", seconds["quantized compiled"] / seconds["twin compiled"], 1.06),
            Row(f"{name}: compiled / twin eager", seconds["quantized compiled"] / seconds["twin eager"]),
        ]
    report(rows)


if __name__ == "__main__":
    main()
