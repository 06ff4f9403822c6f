"""Losses: the squared hinge of the paper's CIFAR-10 experiments, and distances to a teacher.

For cross-entropy use torch's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class SquaredHinge(nn.Module):
    """The mean over samples and classes of max(0, margin - y s)², with y = +1 for the class and -1 for the others.

    The paper uses it, the "per-class hinge" of Hubara et al., with margin 1.

    >>> SquaredHinge()(torch.tensor([[2.0, 0.5]]), torch.tensor([0]))
    tensor(1.1250)
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(
        self,
        scores: Tensor,  # (batch, class)
        labels: Tensor,  # (batch,), int64
    ) -> Tensor:
        """Return the loss, a scalar."""
        signs = torch.full_like(scores, -1).scatter_(1, labels[:, None], 1)
        return (self.margin - signs * scores).clamp_min(0).square().mean()


class TowardsScores(nn.Module):
    """Distillation by scores: the mean squared difference to the teacher's; it suits losses with a margin."""

    def forward(
        self,
        scores: Tensor,  # (batch, class)
        taught: Tensor,  # (batch, class), the teacher's
    ) -> Tensor:
        """Return the loss, a scalar."""
        return functional.mse_loss(scores, taught)


class TowardsFeatures(nn.Module):
    """Distillation by features: the mean over layers of the mean squared difference to the teacher's."""

    def forward(
        self,
        features: Sequence[Tensor],  # one tensor per layer
        taught: Sequence[Tensor],  # the teacher's, of the same shapes
    ) -> Tensor:
        """Return the loss, a scalar."""
        pairs = zip(features, taught, strict=True)
        distances = [functional.mse_loss(ours.float(), theirs.float()) for ours, theirs in pairs]
        return torch.stack(distances).mean()


class TowardsProbabilities(nn.Module):
    """Distillation by probabilities (Hinton et al. 2015): T² KL(teacher || student), of softmax(scores / T).

    >>> TowardsProbabilities()(torch.tensor([[2.0, 0.5]]), torch.tensor([[2.0, 0.5]]))
    tensor(0.)
    """

    def __init__(self, temperature: float = 4.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(
        self,
        scores: Tensor,  # (batch, class)
        taught: Tensor,  # (batch, class), the teacher's
    ) -> Tensor:
        """Return the loss, a scalar."""
        t = self.temperature
        student, teacher = (functional.log_softmax(x / t, dim=1) for x in (scores, taught))
        return t**2 * functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
