"""A positive number that is learned beside the weights: the step of LSQ, the two levels of TTQ.

Such a number is as small as the weights it stands for. Stochastic gradient descent does not mind, but Adam moves every
parameter by about the learning rate, whatever the size of its gradient: a step of 0.005 would be gone at once. So the
parameter is the number over what it started with, and its gradient is divided by the square of that: then stochastic
gradient descent moves the number as it would have moved it itself, and Adam by so large a share of it.

>>> import torch
>>> scale = LearnedScale()
>>> scale.start_(torch.tensor(0.01))
>>> scale().backward()
>>> with torch.no_grad():
...     _ = scale.relative.sub_(1e-4 * scale.relative.grad)  # a step of gradient descent
>>> f"{scale.value:.4f}"  # 0.01 less learning rate times gradient
'0.0099'
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lehr.layers import gradient_of

_LEAST = 1e-3  # of the start: it must stay positive
_TINY = 1e-12  # for weights that are all 0


class LearnedScale(nn.Module):
    """`start` times the parameter `relative`; calling it gives the number with its gradient, `value` without."""

    start: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.relative = nn.Parameter(torch.ones(()))
        self.register_buffer("start", torch.ones(()))

    @property
    def value(self) -> Tensor:
        """The number."""
        return self.start * self.relative.detach()

    def forward(self, factor: float = 1.0) -> Tensor:
        """The number, its gradient multiplied with `factor`."""
        return self.value + gradient_of(self.relative) * (factor / self.start)

    @torch.no_grad()
    def start_(self, value: Tensor) -> None:
        """Begin here."""
        self.start.copy_(value).clamp_(min=_TINY)
        self.relative.fill_(1.0)

    @torch.no_grad()
    def keep_positive_(self) -> None:
        """Undo a step of the optimizer that went too far."""
        self.relative.clamp_(min=_LEAST)
