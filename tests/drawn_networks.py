"""Networks put together by chance, as people build them, and what their quantizers give for a batch of images.

`python tests/drawn_networks.py FOLDER` runs the networks saved there in the present process, whose environment decides
with which instructions and in which order torch adds, and fails unless every quantizer gives what the file says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import lehr
from frozen_networks import POWERS, SIGN, UNEVEN, hard
from lehr.models import Input

Choose = Callable[[Sequence[Any]], Any]
CLASSES = 5
TERNARY, FOUR_BITS = lehr.MultiStep.ternary(), lehr.MultiStep.uniform(4)


# What a block does with its levels besides: moves, joins and products.
AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda y: y,
    "a slice": lambda y: y[:, :, 1:],
    "its mirror image behind it": lambda y: torch.cat((y, y.flip(3)), 1),
    "twice as large": lambda y: nn.functional.interpolate(y, scale_factor=2.0, mode="nearest"),
    "times its mirror image": lambda y: y * y.flip(2),
    "channels backwards": lambda y: y.flip(1),
}


class Block(nn.Module):
    """Convolution, bias or BatchNorm, pool, activation; perhaps with a shortcut around it, or moves after it."""

    def __init__(self, channels: int, choose: Choose) -> None:
        super().__init__()
        out = choose((channels, 8, 12))
        groups = choose((1, channels)) if out == channels else 1
        scale = choose((None, 0.1, "channel"))  # tenths: many sums of them lie at a threshold
        self.conv = lehr.Conv2d(
            *(channels, out, choose((1, 3, 5))),
            stride=choose((1, 1, 2)),
            padding=choose((0, 1, 2)),
            groups=groups,
            bias=choose((False, True)),
            quantizer=hard(choose((TERNARY, TERNARY, SIGN, FOUR_BITS, POWERS))),
        )
        if scale is not None:
            tenths = torch.arange(1, out + 1).reshape(-1, 1, 1, 1) % 5 + 1
            self.conv.quantizer.scale = torch.tensor(0.1) if scale == 0.1 else tenths / 10
        if self.conv.bias is not None:
            self.conv.bias.mul_(10).round_().div_(10)
        pools = (*[nn.Identity()] * 3, *[nn.MaxPool2d(2)] * 2, nn.AvgPool2d(2), nn.AvgPool2d(3, 1, 1))
        norms = (nn.BatchNorm2d(out), nn.BatchNorm2d(out), nn.Sequential(nn.BatchNorm2d(out), nn.ReLU()), nn.Identity())
        self.between = nn.Sequential(*choose(((choose(pools), choose(norms)), (choose(norms), choose(pools)))))
        self.step = hard(choose((TERNARY, UNEVEN, POWERS)), choose((1.0, 1.0, 1.0, 0.5, 0.25, 0.3)))
        self.shortcut: bool = out == channels and choose((False, True))
        self.after: str = choose((*["nothing"] * 4, *AFTER))

    def forward(self, x: Tensor) -> Tensor:
        y = self.step(self.between(self.conv(x)))
        return x + y if self.shortcut else AFTER[self.after](y)


def network(choose: Choose) -> tuple[nn.Module, Tensor]:
    """Pixels, some blocks, and a classifier, with weights and statistics as training might leave them; 64 images."""
    shape = 3, choose((8, 9, 12)), choose((8, 11))
    layers: list[nn.Module] = [Input((0.5, 0.4, 0.45), (0.25, 0.3, 0.28), bits=8)]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(choose(range(2**16)))
        images = (torch.rand(64, 3, 1, 1) * torch.randint(0, 256, (64, *shape))).to(torch.uint8)
        value, channels = layers[0](images), 3
        for _ in range(choose((1, 2, 3))):
            if min(value.shape[2:]) < 7:
                break
            block = Block(channels, choose)
            for module in block.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.weight.normal_()
                    module.bias.normal_()
                    module.momentum = 1.0
            before, shortcut, block.shortcut = value, block.shortcut, False
            value = block.train()(before)
            if not value.numel():  # a slice of a map with one row
                block.after = "nothing"
                value = block(before)
            block.shortcut = shortcut and block.after == "nothing" and value.shape == before.shape
            value = before + value if block.shortcut else value
            channels = value.shape[1]
            layers.append(block)
        if choose((True, False)):
            layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
            value = value.mean((2, 3))
        else:
            layers.append(nn.Flatten())
        layers.append(lehr.Linear(value.flatten(1).shape[1], CLASSES, choose((False, True)), quantizer=hard()))
        layers.append(choose((nn.Identity(), nn.BatchNorm1d(CLASSES))))
    return nn.Sequential(*layers).eval(), images


@torch.no_grad()
def seen(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What each quantizer of activations gives, by path, and the logits."""
    results: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, result, path=path: results.update({path: result.contiguous()}))
        for path, module in model.named_modules()
        if isinstance(module, lehr.Quantizer) and not path.endswith(".quantizer")
    ]
    results["logits"] = model(images)
    for hook in hooks:
        hook.remove()
    return results


def orders(model: nn.Module, images: Tensor) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """What the quantizers give however torch is asked: threads, memory layout, batch size; the first images alone."""
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for layout in (torch.contiguous_format, torch.channels_last):
            laid = model.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
            for batches in (images[:3].split(1), [images]):
                parts = [seen(laid, batch.contiguous(memory_format=layout)) for batch in batches]
                joined = {path: torch.cat([part[path] for part in parts]) for path in parts[0]}
                yield f"{threads} threads, {layout}, {len(batches)} batches", joined
    torch.set_num_threads(before)
    model.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]


def _main(folder: Path) -> int:
    failures = 0
    for file in sorted(folder.glob("*.pt")):
        saved = torch.load(file, weights_only=True)
        model, _ = network(Random(saved["seed"]).choice)
        model.load_state_dict(saved["state"])
        for order, results in orders(model, saved["images"]):
            different = [
                path
                for path, value in saved["results"].items()
                if not torch.equal(value[: len(results[path])], results[path])
            ]
            failures += bool(different)
            if different:
                print(f"{file.stem}, {order}: {', '.join(different)} differ")
    return failures


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
