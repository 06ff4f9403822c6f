"""A ternary network trained in a second, on which the figures and tests measure Theorem 3.

64-48-48-10 with ternary weights and activations and BatchNorm, on two thirds of scikit-learn's digits; asynchronous
ANA, layer after layer, with cross-entropy and Adam.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import lehr
from lehr.annealing import Hierarchical

_WIDTH, _BATCH, _RATE = 48, 100, 1e-2
_DURATION, _AFTERWARDS = 8, 4  # epochs a layer anneals, and epochs without noise


@dataclass(frozen=True)
class Trained:
    """The network in evaluation mode, the inputs it was tested on and its accuracy there."""

    model: nn.Module
    inputs: Tensor
    accuracy: float


def digits_network(seed: int = 0) -> Trained:
    """Train it; the global random state is left alone."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float() / 8 - 1, torch.from_numpy(labels).long()
    train = torch.arange(len(x)) % 3 > 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _network()
        _train(model, x[train], y[train])
    model.eval()
    with torch.no_grad():
        accuracy = (model(x[~train]).argmax(1) == y[~train]).double().mean().item()
    return Trained(model, x[~train], accuracy)


def _network() -> nn.Sequential:
    return nn.Sequential(
        lehr.Linear(64, _WIDTH, bias=False),
        nn.BatchNorm1d(_WIDTH),
        lehr.Quantizer(),
        lehr.Linear(_WIDTH, _WIDTH, bias=False),
        nn.BatchNorm1d(_WIDTH),
        lehr.Quantizer(),
        lehr.Linear(_WIDTH, 10, bias=False),
        nn.BatchNorm1d(10),
    )


def _train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    annealer = lehr.Annealer(model, Hierarchical(_DURATION))
    optimizer = torch.optim.Adam(model.parameters(), _RATE)
    for _ in range(3 * _DURATION + _AFTERWARDS):
        for batch in torch.randperm(len(x)).split(_BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        annealer.step()
