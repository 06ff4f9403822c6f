# %% [markdown]
# # Fine-tuning a trained network
#
# A float network that is trained already is quantized and trained for a few more epochs. This is the way to the best
# accuracy for a given time, see docs/which-method.md.

# %%
import copy

import torch
from torch import nn

import lehr
import lehr.data

torch.manual_seed(0)
train, _, test = lehr.data.load("digits")


def fit(model: nn.Module, epochs: int, lr: float, annealer: lehr.Annealer | None = None) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        model.train()
        for batch in torch.randperm(len(train.images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train.images[batch]), train.labels[batch]).backward()
            optimizer.step()
        schedule.step()
        if annealer is not None:
            annealer.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    return (model.eval()(test.images).argmax(1) == test.labels).double().mean().item()


# %% [markdown]
# The float network. In your project it comes from a checkpoint.

# %%
model = nn.Sequential(
    lehr.models.Input(mean=train.mean, std=train.std, bits=8),
    nn.Flatten(),
    *(nn.Linear(64, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()),
    *(nn.Linear(256, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()),
    *(nn.Linear(256, 10, bias=False), nn.BatchNorm1d(10)),
)
fit(model, epochs=15, lr=1e-2)
print(f"float                  {accuracy(model):.1%}")

# %% [markdown]
# `quantize_` keeps the weights and fits a scale to them. The learning rate is smaller than that of the float
# network, because its weights are smaller than weights that are drawn for three levels.

# %%
ternary = copy.deepcopy(model)
lehr.quantize_(ternary)
print(f"ternary, not trained   {accuracy(ternary):.1%}")
annealer = lehr.Annealer(ternary, lehr.annealing.Hierarchical(duration=2), epochs=12)
fit(ternary, epochs=12, lr=2e-3, annealer=annealer)
print(f"ternary, fine-tuned    {accuracy(ternary):.1%}")

# %%
net = lehr.freeze(ternary, test.images, classes=test.classes)
net.save("fine-tuned.lehr")
print(net.summary())
