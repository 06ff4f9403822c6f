"""Holds samples out of a data set: a seed decides which, every class gives its share.

The paper trains on 45k of CIFAR-10's 50k training images and validates on 5k, without saying how they were
chosen. Here each class gives count * (its size) / (all), rounded by largest remainder: exactly 500 of each
for CIFAR-10.
"""

from typing import TypeVar

import torch

from .dataset import Dataset
from .image_files import ImageFiles

Labelled = TypeVar("Labelled", Dataset, ImageFiles)


def hold_out(dataset: Labelled, count: int, *, seed: int) -> tuple[Labelled, Labelled]:
    """Return (kept, held out); both keep the data set's order.

    >>> from lehr.data import load
    >>> train, validation, test = load("digits")
    >>> kept, held_out = hold_out(train, 100, seed=1)
    >>> len(kept) + len(held_out) == len(train), len(held_out)
    (True, 100)
    """
    total = len(dataset)
    if not 0 <= count < max(total, 1):
        raise ValueError(f"of {total} samples 0 to {max(total - 1, 0)} can be held out for validation, got {count}")
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.bincount(dataset.labels, minlength=len(dataset.classes)).tolist()
    shares = [size * count // max(total, 1) for size in sizes]
    remainders = [size * count % max(total, 1) for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda label: -remainders[label])
    for label in by_remainder[: count - sum(shares)]:
        shares[label] += 1
    held = torch.zeros(total, dtype=torch.bool)
    for label, (size, share) in enumerate(zip(sizes, shares, strict=True)):
        members = torch.nonzero(dataset.labels == label).flatten()
        held[members[torch.randperm(size, generator=generator)[:share]]] = True
    return dataset.take(torch.nonzero(~held).flatten()), dataset.take(torch.nonzero(held).flatten())
