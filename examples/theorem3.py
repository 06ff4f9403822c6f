"""Theorem 3 in numbers: train a ternary network, put noise of each size back in, and watch it vanish.

The network is 64-48-48-10 with ternary weights and activations, trained on scikit-learn's digits by asynchronous ANA.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import lehr
from lehr.annealing import Hierarchical
from lehr.table import Table
from lehr.theory import collapse, margin

WIDTH, BATCH, RATE = 48, 100, 1e-2
DURATION, AFTERWARDS = 8, 4  # epochs in which a layer anneals, and epochs without noise at the end


@dataclass(frozen=True)
class Trained:
    """A network in evaluation mode, the inputs it was tested on, and its accuracy on them."""

    model: nn.Module
    inputs: Tensor
    accuracy: float


def digits_network(seed: int = 0) -> Trained:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float() / 8 - 1, torch.from_numpy(labels).long()
    train = torch.arange(len(x)) % 3 > 0
    with torch.random.fork_rng(devices=[]):  # leaves the global random state alone
        torch.manual_seed(seed)
        sizes = (64, WIDTH, WIDTH, 10)
        layers = [(lehr.Linear(a, b, bias=False), nn.BatchNorm1d(b), lehr.Quantizer()) for a, b in pairwise(sizes)]
        model = nn.Sequential(*(part for layer in layers for part in layer))[:-1]  # the last layer gives logits
        annealer = lehr.Annealer(model, Hierarchical(DURATION))
        optimizer = torch.optim.Adam(model.parameters(), RATE)
        for _ in range(len(layers) * DURATION + AFTERWARDS):
            for batch in torch.randperm(int(train.sum())).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[train][batch]), y[train][batch]).backward()
                optimizer.step()
            annealer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x[~train]).argmax(1) == y[~train]).double().mean().item()
    return Trained(model, x[~train], accuracy)


if __name__ == "__main__":
    trained = digits_network()
    measured = collapse(trained.model, trained.inputs, lehr.Uniform, [10.0**-k for k in range(8)])
    rows = zip(measured.stds, measured.mean, measured.agreement, strict=True)
    print(f"{trained.accuracy:.1%} of the test images, without noise")
    print(
        Table(("std of the noise", "mean gap", "same class"), [(f"{s:g}", f"{g:.4f}", f"{a:.1%}") for s, g, a in rows])
    )
    nearest = margin(trained.model, trained.inputs)
    print(f"no argument of a step function is nearer to a threshold than {nearest:.1e}")
