"""How often a network takes images of one class for another.

>>> confusion = Confusion(("cat", "dog"), [[8, 2], [1, 9]])
>>> confusion.right, confusion.total
(17, 20)
>>> print(confusion.worst())
shows  taken for    times
cat    dog        2 of 10
dog    cat        1 of 10
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from lehr.data import AnyDataset, batches_of
from lehr.table import Table

_LARGEST_MATRIX = 20  # classes; a larger matrix is not drawn
_LISTED = 6  # the most frequent confusions


@dataclass(frozen=True)
class Confusion:
    """Counts of answers for each class: `counts[truth][answer]`."""

    classes: tuple[str, ...]
    counts: list[list[int]]

    @property
    def right(self) -> int:
        """How many images were classified correctly."""
        return sum(self.counts[label][label] for label in range(len(self.classes)))

    @property
    def total(self) -> int:
        """How many images there are."""
        return sum(map(sum, self.counts))

    @property
    def drawn(self) -> bool:
        """Whether the matrix is small enough to be drawn."""
        return len(self.classes) <= _LARGEST_MATRIX

    def share(self, truth: int, answer: int) -> float:
        """Return the share of the images of class `truth` that were answered with `answer`."""
        return self.counts[truth][answer] / max(sum(self.counts[truth]), 1)

    def look(self, truth: int, answer: int) -> str:
        """Return the style sheet's classes of a cell; "deep" is dark enough for light text."""
        kind, deep_from = ("right", 0.7) if truth == answer else ("wrong", 0.2)
        return f"{kind} deep" if self.share(truth, answer) > deep_from else kind

    def worst(self) -> Table:
        """Return the most frequent confusions."""
        mistakes = [
            (count, self.classes[truth], self.classes[answer], sum(row))
            for truth, row in enumerate(self.counts)
            for answer, count in enumerate(row)
            if truth != answer and count
        ]
        worst = sorted(mistakes, key=lambda mistake: -mistake[0])[:_LISTED]
        rows = [(truth, answer, f"{count} of {images}") for count, truth, answer, images in worst]
        return Table(("shows", "taken for", "times"), rows)


@torch.inference_mode()
def confuse(model: nn.Module, dataset: AnyDataset) -> Confusion:
    """Count what a network answers to each class of images.

    Args:
        model: the network, in evaluation mode.
        dataset: the images and their classes.
    """
    classes = len(dataset.classes)
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    for images, labels in batches_of(dataset, 200):
        answers = model(images).argmax(1)
        counts += torch.bincount(labels * classes + answers, minlength=classes**2).view(classes, classes)
    return Confusion(dataset.classes, counts.tolist())
