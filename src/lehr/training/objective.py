"""What training minimises: a loss, and with a teacher the distance to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from lehr import losses


@dataclass(frozen=True)
class Loss:
    """What training minimises.

    Args:
        name: cross-entropy, or the squared hinge of the paper's CIFAR-10 experiments.
        label_smoothing: the share of each label that is spread over all classes, with cross-entropy.
    """

    name: Literal["squared-hinge", "cross-entropy"] = "cross-entropy"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")
        if self.label_smoothing and self.name != "cross-entropy":
            raise ValueError(f"label_smoothing needs the cross-entropy loss, got {self.name}")

    def build(self) -> nn.Module:
        """Return the loss as a module of scores and labels."""
        if self.name == "squared-hinge":
            return losses.SquaredHinge()
        return nn.CrossEntropyLoss(label_smoothing=self.label_smoothing)


@dataclass(frozen=True)
class Distillation:
    """Learn from another network too: `share` of the loss is the distance to it.

    Args:
        teacher: the run to learn from.
        epochs: instead of `teacher`, train the full-precision twin for this many epochs first, and learn from it.
        lr: the twin's learning rate; default: the recipe's.
        share: the share of the distance in the loss.
        by: "scores": the squared difference of the scores; "probabilities": the KL divergence of the softmax at
            `temperature` (Hinton et al.); "features": the squared difference of the outputs of the BatchNorm layers,
            for a teacher of the same architecture.
        temperature: divides the scores, for "probabilities".
    """

    teacher: Path | None = None
    epochs: int = 0
    lr: float | None = None
    share: float = 0.5
    by: Literal["scores", "probabilities", "features"] = "scores"
    temperature: float = 4.0

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ValueError(f"distillation.epochs must be at least 0, got {self.epochs}")
        if self.epochs and self.teacher is not None:
            raise ValueError(
                f"give distillation.teacher ({self.teacher}) or distillation.epochs ({self.epochs}), not both"
            )
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ValueError(f"distillation.lr must be positive, or null for the recipe's rate, got {self.lr}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is the teacher's part of the loss, above 0 and at most 1, got {self.share}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be positive, got {self.temperature}")

    def build(self) -> nn.Module:
        """Return the distance as a module of the student's and the teacher's scores (or lists of features)."""
        if self.by == "probabilities":
            return losses.TowardsProbabilities(self.temperature)
        return losses.TowardsScores() if self.by == "scores" else losses.TowardsFeatures()
