"""A positive number that is learned beside the weights: the step of LSQ, the two levels of TTQ.

Such a number is as small as the weights. Adam moves every parameter by about the learning rate, whatever its gradient,
so that a step size of 0.005 would soon vanish. So the parameter is the number divided by its initial value, and its
gradient is divided by the square of that. Then stochastic gradient descent moves the number as if it were the
parameter, and Adam moves it in proportion to its initial value.

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

from lehr.quantizer import gradient_of

_LEAST = 1e-3  # of the initial value, so that the number stays positive
_TINY = 1e-12  # for weights that are all 0


class LearnedScale(nn.Module):
    """`start` times the parameter `relative`; a call returns the number with its gradient, `value` without."""

    start: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.relative = nn.Parameter(torch.ones(()))
        self.register_buffer("start", torch.ones(()))

    @property
    def value(self) -> Tensor:
        """The number, without a gradient."""
        return self.start * self.relative.detach()

    def forward(self, factor: float = 1.0) -> Tensor:
        """Return the number, with its gradient times `factor`."""
        return self.value + gradient_of(self.relative) * (factor / self.start)

    @torch.no_grad()
    def start_(self, value: Tensor) -> None:
        """Set the initial value."""
        self.start.copy_(value).clamp_(min=_TINY)
        self.relative.fill_(1.0)

    @torch.no_grad()
    def keep_positive_(self) -> None:
        """Clamp the number after a step of the optimizer."""
        self.relative.clamp_(min=_LEAST)
