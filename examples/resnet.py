"""Your own ResNet: residual blocks written by hand, quantized, trained and frozen.

A residual block computes relu(branch(x) + x). `quantize_` gives both sides of the sum one quantizer of 8 bits, so that
they have one scale: the frozen network adds integers, and is integers from the pixels to the logits.
"""

import torch
from torch import Tensor, nn

import lehr
import lehr.data


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(conv(inputs, outputs, stride), nn.ReLU(), conv(outputs, outputs))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv(inputs, outputs, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.branch(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, three blocks and a classifier."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(lehr.models.Input(mean, std, bits=8), conv(1, 16), nn.ReLU())
        self.blocks = nn.Sequential(Block(16, 16), Block(16, 32, stride=2), Block(32, 32))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(512, 10, bias=False), nn.BatchNorm1d(10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


torch.manual_seed(0)
train, _, test = lehr.data.load("digits")
model = ResNet(train.mean, train.std)
print(lehr.quantize_(model))

EPOCHS = 8
annealer = lehr.Annealer(model, lehr.annealing.AllAtOnce(duration=4), epochs=EPOCHS)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(EPOCHS):
    for batch in torch.randperm(len(train.images)).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train.images[batch]), train.labels[batch]).backward()
        optimizer.step()
    annealer.step()

net = lehr.freeze(model.eval(), test.images, classes=test.classes)
print(net.summary())
accuracy = (net.predict(test.images) == test.labels).double().mean().item()
print(f"{accuracy:.1%} of the test images; the same integers as torch: {net.exact}")
for place in net.inexact:
    print("  rounding may matter at", place)
net.save("resnet.lehr")
