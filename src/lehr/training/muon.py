"""Muon (Jordan et al. 2024): steepest descent in the spectral norm, for the weights of layers.

The momentum of a weight's gradient, as a matrix (output, all else), is replaced by the nearest matrix with orthonormal
rows or columns, so that a step moves all directions of a layer equally. Newton-Schulz iterations compute it with matrix
products only. Adam updates BatchNorm's parameters and biases, which are not matrices.

`torch.optim.Muon` takes only matrices, and computes in bfloat16; this one takes filters of any dimension and keeps
their precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)  # the authors' polynomial: steep at 0, it brings all singular values near 1
_BETAS, _EPS = (0.9, 0.999), 1e-8  # Adam's defaults


class Muon(torch.optim.Optimizer):
    """Muon for parameters of two or more dimensions, Adam for the others; one optimizer, one state.

    Args:
        parameters: the network's.
        lr: Muon's learning rate: the spectral norm of a step.
        norm_lr: Adam's learning rate, for BatchNorm's parameters and biases.
        momentum: Nesterov momentum.
        weight_decay: each step multiplies the weights by 1 - lr * weight_decay.
        iterations: the number of Newton-Schulz iterations.
        normalize: keep the norm of each weight at √outputs, so that the effective learning rate stays the same;
            for networks with BatchNorm after every layer, which cancels the norm.

    >>> _ = torch.manual_seed(0)
    >>> layer = nn.Linear(4, 2)
    >>> optimizer = Muon(layer.parameters(), lr=0.1, norm_lr=0.01, iterations=12)
    >>> before = layer.weight.detach().clone()
    >>> layer(torch.eye(4)).square().sum().backward()
    >>> optimizer.step()
    >>> moved = (before - layer.weight) / 0.1
    >>> bool(((moved @ moved.T - torch.eye(2)).abs() < 0.4).all())  # orthonormal rows, nearly
    True
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        *,
        norm_lr: float,
        momentum: float = 0.6,
        weight_decay: float = 0.0,
        iterations: int = 3,
        normalize: bool = False,
    ) -> None:
        every = list(parameters)
        weights, rest = ([p for p in every if (p.ndim > 1) == weight] for weight in (True, False))
        defaults = {"momentum": momentum, "weight_decay": weight_decay, "iterations": iterations}
        groups = [{"params": weights, "lr": lr}, {"params": rest, "lr": norm_lr}]
        super().__init__([group for group in groups if group["params"]], defaults | {"normalize": normalize})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters; with a closure, compute the loss and the gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.ndim > 1:
                    self._muon(parameter, group)
                else:
                    self._adam(parameter, group)
        return loss

    def _muon(self, weight: Tensor, group: dict[str, Any]) -> None:
        state, grad, momentum = self.state[weight], weight.grad, group["momentum"]
        assert grad is not None
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        kept = state["momentum"].mul_(momentum).add_(grad)
        towards = grad.add(kept, alpha=momentum).flatten(1)
        if group["normalize"]:
            weight.mul_(math.sqrt(len(weight)) / weight.norm())
        elif group["weight_decay"]:
            weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(orthogonal(towards, group["iterations"]).view(weight.shape), alpha=-group["lr"])

    def _adam(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, grad = self.state[parameter], parameter.grad
        assert grad is not None
        if not state:
            state["step"] = torch.zeros(())
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        count = float(state["step"])
        state["mean"].lerp_(grad, 1 - _BETAS[0])
        state["square"].mul_(_BETAS[1]).addcmul_(grad, grad, value=1 - _BETAS[1])
        spread = state["square"].sqrt().div_(math.sqrt(1 - _BETAS[1] ** count)).add_(_EPS)
        parameter.addcdiv_(state["mean"], spread, value=-group["lr"] / (1 - _BETAS[0] ** count))


def orthogonal(
    matrix: Tensor,  # (row, column)
    iterations: int,
) -> Tensor:
    """Return the matrix with its singular values brought near 1 by Newton-Schulz iterations."""
    a, b, c = _QUINTIC
    x = matrix / matrix.norm().clamp(min=1e-7)
    if tall := len(x) > x.shape[1]:  # transposed, the product is smaller
        x = x.T
    for _ in range(iterations):
        product = x @ x.T
        x = torch.addmm(x, torch.addmm(product, product, product, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
