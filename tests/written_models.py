"""Small networks written the way people write them: functional, with one shared ReLU, Hugging Face's, Lightning's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lehr.models import Input


def plain_cnn(width: int = 8, classes: int = 10, norm: bool = True, size: int = 8) -> nn.Sequential:
    """Two convolutions and two linear layers, of modules alone, for images of `size` pixels a side."""

    def block(channels: int, out: int) -> list[nn.Module]:
        normed = [nn.BatchNorm2d(out)] if norm else []
        return [nn.Conv2d(channels, out, 3, padding=1, bias=not norm), *normed, nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(2 * width * (size // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, classes)]
    return nn.Sequential(Input((0.5,), (0.5,), bits=8), *block(1, width), *block(width, 2 * width), *head)


class FunctionalBlock(nn.Module):
    """A residual block whose activations are calls."""

    def __init__(self, channels: int, out: int, stride: int = 1, norm: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=not norm)
        self.bn1 = nn.BatchNorm2d(out) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=not norm)
        self.bn2 = nn.BatchNorm2d(out) if norm else nn.Identity()
        self.down = nn.Sequential()
        if stride != 1 or channels != out:
            self.down = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=not norm), nn.BatchNorm2d(out) if norm else nn.Identity()
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.down(x)
        return F.relu(out)


class FunctionalResNet(nn.Module):
    """The functional style: `F.relu`, `torch.relu`, `x.relu()` and `F.dropout(..., training=self.training)`."""

    def __init__(self, width: int = 8, classes: int = 10, norm: bool = True, size: int = 8) -> None:
        super().__init__()
        self.input = Input((0.5,), (0.5,), bits=8)
        self.conv1 = nn.Conv2d(1, width, 3, 1, 1, bias=not norm)
        self.bn1 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.layer1 = FunctionalBlock(width, width, 1, norm)
        self.layer2 = FunctionalBlock(width, 2 * width, 2, norm)
        self.fc1 = nn.Linear(2 * width, 4 * width)
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x)
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)  # whatever the size of the images
        x = self.fc1(x).relu()
        return self.fc(F.dropout(x, 0.1, training=self.training))


class SharedBlock(nn.Module):
    """torchvision's BasicBlock: one `self.relu`, used twice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class SharedResNet(nn.Module):
    """torchvision's style."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.input = Input((0.5,), (0.5,), bits=8)
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(SharedBlock(width), SharedBlock(width))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(self.input(x))))
        x = self.avgpool(self.layer1(x))
        return self.fc(torch.flatten(x, 1))


class Conv1D(nn.Module):
    """Hugging Face's linear layer of GPT-2: transposed weights, and no subclass of nn.Linear."""

    def __init__(self, features: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, features) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class GELUActivation(nn.Module):
    """Hugging Face's wrapper of a function."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.functional.gelu

    def forward(self, input: Tensor) -> Tensor:
        return self.act(input)


class HuggingBlock(nn.Module):
    """A transformer block as in Hugging Face's transformers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.output = Conv1D(size, size)
        self.intermediate = nn.Linear(size, 2 * size)
        self.intermediate_act_fn = GELUActivation()
        self.dense = nn.Linear(2 * size, size)
        self.norm = nn.LayerNorm(size)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        scores = self.query(hidden_states) @ self.key(hidden_states).transpose(-1, -2)
        if attention_mask is not None:
            scores = scores + attention_mask
        mixed = torch.matmul(F.softmax(scores, dim=-1), self.value(hidden_states))
        hidden_states = self.norm(hidden_states + self.output(mixed))
        return (hidden_states + self.dense(self.intermediate_act_fn(self.intermediate(hidden_states))),)


class HuggingModel(nn.Module):
    """Takes `input_ids` by name and gives a dictionary."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(20, size)
        self.layer = nn.ModuleList([HuggingBlock(size) for _ in range(2)])
        self.classifier = nn.Linear(size, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden_states = self.embeddings(input_ids)
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask)[0]
        return {"probabilities": torch.sigmoid(self.classifier(hidden_states[:, 0]))}
