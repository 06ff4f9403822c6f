"""Loss and accuracy of the network that will be deployed: without noise, in float32 arithmetic.

During training two variants are measured too: with the noise of training, and, if BatchNorm's statistics are
re-estimated, with the running statistics of training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lehr.batchnorm import reestimated
from lehr.data import Splits, Steps, StreamedSplits, examples_of
from lehr.quantizer import Quantizer
from lehr.training.measures import noisy_quantizers
from lehr.training.recipe import Recipe

_BATCHNORM_BATCH = 256  # images

Forward = Callable[[Tensor], Tensor]
Total = Callable[[Tensor], Tensor]


def _of_one_process(tensor: Tensor) -> Tensor:
    """Return the tensor: the total of a single process."""
    return tensor


class Tally:
    """Loss and accuracy over many batches, summed on `device`, so that no step waits for an accelerator.

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
        """Add a batch."""
        size = len(labels)
        self._loss.add_(loss.detach(), alpha=size)
        self._correct.add_((scores.argmax(1) == labels).sum())
        self.count += size

    def read(self, total: Total = _of_one_process) -> tuple[float, float]:
        """Return the mean loss and accuracy, NaN without samples; `total` adds the sums of several processes."""
        sums = torch.stack([self._loss, self._correct, torch.full_like(self._loss, self.count)])
        loss, correct, count = total(sums).tolist()
        return (loss / count, correct / count) if count else (math.nan, math.nan)


def mirrored(forward: Forward) -> Forward:
    """Return the mean of a function's scores for images and for their mirror images: two passes.

    >>> scores = mirrored(lambda images: images[:, 0, 0, :2])
    >>> scores(torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 3))
    tensor([[2., 2.]])
    """

    def both(images: Tensor) -> Tensor:  # (batch, channel, height, width)
        return (forward(images) + forward(images.flip(3))) / 2

    return both


@torch.no_grad()
def evaluate_each(
    forwards: dict[str, Forward], loss: nn.Module, batches: Steps, device: torch.device, total: Total = _of_one_process
) -> dict[str, float]:
    """Return loss and accuracy of several forward functions, over all samples of all processes.

    Args:
        forwards: functions from images to scores, by the prefix of their results' names ("val/")
        loss: a module of scores and labels
        batches: the batches of this process
        device: the device that accumulates the sums
        total: adds a tensor over all processes
    """
    tallies = {name: Tally(device) for name in forwards}
    for images, labels in batches:
        for name, forward in forwards.items():
            scores = forward(images)
            tallies[name].add(loss(scores, labels), scores, labels)
    results = {}
    for name, tally in tallies.items():
        results[f"{name}loss"], results[f"{name}accuracy"] = tally.read(total)
    return results


@torch.no_grad()
def validate(
    model: nn.Module,
    loss: nn.Module,
    batches: Steps,
    batchnorm: Sequence[Tensor],
    total: Total,
    device: torch.device,
) -> dict[str, float]:
    """Validate a network during training and leave it in training mode.

    Args:
        model: the network
        loss: a module of scores and labels
        batches: validation images of this process
        batchnorm: batches of training images to re-estimate BatchNorm's statistics from, without noise; may be empty
        total: adds a tensor over all processes
        device: the device of the network
    """
    model.eval()
    noisy = noisy_quantizers(model)
    with reestimated(model, (images.to(device) for images in batchnorm)) as running:

        def with_running_statistics(images: Tensor) -> Tensor:
            return torch.func.functional_call(model, running, images) if running else model(images)

        def with_noise(images: Tensor) -> Tensor:
            _set_training(noisy, True)
            scores = with_running_statistics(images)
            _set_training(noisy, False)
            return scores

        forwards: dict[str, Forward] = {"val/": model}
        if running:
            forwards["val/running_"] = with_running_statistics
        if noisy:
            forwards["val/noisy_"] = with_noise
        results = evaluate_each(forwards, loss, batches, device, total)
    model.train()
    return results


def batchnorm_images(recipe: Recipe, splits: Splits | StreamedSplits) -> Sequence[Tensor]:
    """Return the augmented training images that BatchNorm's statistics are re-estimated from.

    Every process gets the same images, and so the same statistics.
    """
    if not recipe.batchnorm_batches:
        return ()
    images = examples_of(splits.train, _BATCHNORM_BATCH * recipe.batchnorm_batches)
    # Data may be sorted by class, but each batch must hold many classes.
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(recipe.seed))]
    augment = recipe.data.augmentation
    if augment and isinstance(splits, Splits):
        images = augment(images, torch.Generator().manual_seed(recipe.seed))
    return [batch for batch in images.split(_BATCHNORM_BATCH) if len(batch) > 1]  # BatchNorm needs two images


def _set_training(quantizers: Sequence[Quantizer], training: bool) -> None:
    for quantizer in quantizers:
        quantizer.train(training)
