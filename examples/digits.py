"""A ternary network on scikit-learn's digits with a plain PyTorch loop: float model, quantize_, anneal, done."""

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import lehr
from lehr.annealing import Hierarchical

EPOCHS, BATCH = 40, 64


def network() -> nn.Sequential:
    hidden = [nn.Linear(64, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()]
    hidden += [nn.Linear(256, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(256, 10, bias=False), nn.BatchNorm1d(10))


def train(model: nn.Sequential, x: Tensor, y: Tensor, name: str, annealer: lehr.Annealer | None = None) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in track(range(EPOCHS), f"{name:15}"):
        model.train()
        for batch in torch.randperm(len(x)).split(BATCH)[:-1]:
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        if annealer is not None:
            annealer.step()
    model.eval()  # removes the noise; here none is left


torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
split = train_test_split(pixels, labels, test_size=0.25, stratify=labels, random_state=0)
x, x_test, y, y_test = (torch.tensor(part) for part in split)
x, x_test = x.float() / 8 - 1, x_test.float() / 8 - 1

full, ternary = network(), network()
train(full, x, y, "full precision")
print(lehr.quantize_(ternary))
annealer = lehr.Annealer(ternary, Hierarchical(duration=8), epochs=EPOCHS)
train(ternary, x, y, "ternary", annealer)

table = Table("network", "held-out accuracy", "weight levels", "noise left")
for name, model in (("full precision", full), ("ternary", ternary)):
    accuracy = (model(x_test).argmax(1) == y_test).float().mean()
    layers = [module for module in model if isinstance(module, lehr.Linear)]
    levels = max((len(layer.quantized_weight.unique()) for layer in layers), default=None)
    noise = max((float(m.forward_std) for m in model.modules() if isinstance(m, lehr.Quantizer)), default=0.0)
    table.add_row(name, f"{accuracy:.2%}", str(levels or "float"), f"{noise:g}")
Console().print(table)
