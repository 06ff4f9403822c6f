"""Loss and accuracy over many batches, summed on the device and read once: no step waits for an accelerator."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


class Tally:
    """A running sum over samples, on `device`.

    >>> tally = Tally()
    >>> tally.add(torch.tensor(0.5), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    >>> tally.read()
    (0.5, 0.5)
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.count = 0
        self._loss = torch.zeros((), device=device)
        self._correct = torch.zeros((), dtype=torch.int64, device=device)

    def add(
        self,
        loss: Tensor,  # scalar, the mean over the batch
        scores: Tensor,  # (batch, class)
        labels: Tensor,  # (batch,)
    ) -> None:
        """Count a batch."""
        size = len(labels)
        self._loss.add_(loss.detach(), alpha=size)
        self._correct.add_((scores.argmax(1) == labels).sum())
        self.count += size

    def read(self, total: Callable[[Tensor], Tensor] = lambda sums: sums) -> tuple[float, float]:
        """Mean loss and accuracy, NaN of nothing; `total` adds the sums of several processes."""
        sums = torch.stack([self._loss, self._correct, torch.full_like(self._loss, self.count)])
        loss, correct, count = total(sums).tolist()
        return (loss / count, correct / count) if count else (math.nan, math.nan)
