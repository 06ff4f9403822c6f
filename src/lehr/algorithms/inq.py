"""Incremental Network Quantization (Zhou et al., ICLR 2017): weights are frozen at powers of two, group by group.

A layer whose largest weight has size s gets the levels ±2^n1, ..., ±2^n2 and 0 (eq. 1-3)::

    n1 = floor(log2(4 s / 3)),    n2 = n1 + 1 - 2^(bits-2)

so 2 bits are ternary, and a weight goes to the nearest level (eq. 4). With 2 bits this n1 leaves almost all weights at
0; `top="least-error"` chooses the n1 with the least squared error instead.

Training begins in full precision (or from a trained network, with `delay=0`). Then a growing share of each layer's
weights is frozen at its levels while the rest continues to learn and compensates (Section 2.2): the largest weights
first ("magnitude", the paper's pruning-inspired partition), or random ones ("random"). Frozen weights never change.
Evaluation always uses all weights at their levels. Activations stay floats.

>>> INQ(portions=(0.5, 1.0), delay=0.5).share(4, 10), INQ(portions=(0.5, 1.0), delay=0.5).share(8, 10)
(0.0, 1.0)
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lehr.algorithms.algorithm import Algorithm, check_choices, quantized_layers
from lehr.algorithms.description import FLOATS, Description, becomes, end_layers
from lehr.convert import Conversion, quantize_
from lehr.multistep import MultiStep
from lehr.quantizer import AbstractQuantizer

Partition = Literal["magnitude", "random"]
Top = Literal["largest", "least-error"]
_LOWER_TOPS = 8  # candidates of "least-error": the highest level is between 2^n1 and 2^(n1 - 7)


class PowersOfTwo(AbstractQuantizer):
    """Weights at 0 and ±scale/2^k, where scale is a power of two.

    `frozen` holds the frozen weights, and NaN for the others; `seed` is for the random partition.
    """

    scale: Tensor  # pyright: ignore[reportIncompatibleVariableOverride] - there always is one
    frozen: Tensor
    seed: Tensor

    def __init__(self, bits: int) -> None:
        super().__init__()
        sizes = [2.0**-k for k in reversed(range(2 ** (bits - 2)))]
        levels = [*(-size for size in reversed(sizes)), 0.0, *sizes]
        self.step = MultiStep(tuple((a + b) / 2 for a, b in itertools.pairwise(levels)), tuple(levels))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("frozen", torch.full((), torch.nan))
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return, in training, frozen and free weights; in eval mode, all weights at their levels."""
        if self.training:
            return torch.where(self.frozen.isnan(), x, self.frozen)
        return self.step(x / self.scale) * self.scale

    @torch.no_grad()
    def fit_(self, weight: Tensor, top: Top) -> None:
        """Choose n1 for these weights, unless some are frozen."""
        if self.frozen.shape != weight.shape:
            self.frozen = torch.full_like(weight, torch.nan)
        if not bool(self.frozen.isnan().all()):
            return
        largest = weight.abs().max().double().clamp(min=2.0**-60)
        tops = torch.exp2(torch.floor(torch.log2(4 * largest / 3)) - torch.arange(_LOWER_TOPS, device=weight.device))
        tops = tops.to(self.scale.dtype)
        if top == "least-error":
            errors = [(weight - self.step(weight / unit) * unit).square().sum() for unit in tops]
            tops = tops[torch.stack(errors).argmin() :]
        self.scale.copy_(tops[0])

    @torch.no_grad()
    def freeze_(self, weight: Tensor, share: float, order: Tensor) -> None:
        """Freeze a share of the weights, counting those already frozen; those with the highest `order` come first."""
        count = round(share * weight.numel())
        first = torch.where(self.frozen.isnan(), order, torch.inf).flatten().topk(count).indices
        chosen = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
        chosen[first] = True
        levels = self.step(weight / self.scale) * self.scale
        new = chosen.reshape(weight.shape) & self.frozen.isnan()
        self.frozen.copy_(torch.where(new, levels, self.frozen))
        self.hold_(weight)

    @torch.no_grad()
    def hold_(self, weight: Tensor) -> None:
        """Restore the frozen weights, which momentum and weight decay move even without a gradient."""
        weight.copy_(torch.where(self.frozen.isnan(), weight, self.frozen))

    def extra_repr(self) -> str:
        """Return levels, scale and the frozen share."""
        share = 1 - self.frozen.isnan().float().mean()
        return f"{len(self.levels)} levels up to {self.scale:g}, {share:.1%} frozen"


@dataclass(frozen=True)
class INQ(Algorithm):
    """Weights at powers of two, frozen step by step.

    Args:
        bits: of a weight.
        partition: freeze the largest weights first ("magnitude") or random ones.
        top: choose n1, the highest level, by the "largest" weight (eq. 2) or by "least-error".
        portions: the accumulated shares of frozen weights (Section 3.1).
        delay: the share of training before the first portion; the others follow at equal distances.
        first: quantize the first layer.
        last: quantize the last layer.
    """

    bits: int = 5
    partition: Partition = "magnitude"
    top: Top = "largest"
    portions: tuple[float, ...] = (0.5, 0.75, 0.875, 1.0)
    delay: float = 0.5
    first: bool = True
    last: bool = True

    def __post_init__(self) -> None:
        check_choices(self)
        if not 2 <= self.bits <= 6:
            raise ValueError(f"bits must be between 2 (ternary) and 6, got {self.bits}")
        rising = all(a < b for a, b in itertools.pairwise((0.0, *self.portions)))
        if not self.portions or not rising or self.portions[-1] != 1:
            raise ValueError(f"portions must be above 0, rise and end at 1, got {self.portions}")
        if not 0 <= self.delay < 1:
            raise ValueError(f"delay, a share of training, must be in [0, 1), got {self.delay}")

    def share(self, epoch: int, epochs: int) -> float:
        """Return the share of weights that are frozen in `epoch`, counted from 0."""
        pause = (1 - self.delay) / len(self.portions)
        begun = [share for k, share in enumerate(self.portions) if epoch >= int((self.delay + k * pause) * epochs)]
        return begun[-1] if begun else 0.0

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description(
            "INQ",
            "" if self.partition == "magnitude" else self.partition,
            "-2ⁿ, 0, 2ⁿ" if self.bits == 2 else f"{2 ** (self.bits - 1)} powers of 2, 0",
            FLOATS,
            end_layers(self.first, self.last),
            estimator="none: weights are floats until they are frozen at a level",
            becomes=becomes(weights=True, activations=False),
        )

    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Prepare the layers for freezing; the weights are kept."""
        conversion = quantize_(
            model,
            weights=PowersOfTwo(self.bits),
            activations=None,
            skip_first=not self.first,
            skip_last=not self.last,
            scale="fixed",
        )
        for _, quantizer, weight in _quantizers(model):
            quantizer.fit_(weight, self.top)
            quantizer.seed.fill_(torch.initial_seed() % 2**63)
        return conversion

    @property
    def averages(self) -> bool:
        """False: averages of frozen weights and earlier ones are not at levels."""
        return False

    def before_epoch_(self, model: nn.Module, epoch: int, epochs: int) -> None:
        """Freeze the share of the weights for this epoch."""
        share = self.share(epoch, epochs)
        for path, quantizer, weight in _quantizers(model):
            quantizer.fit_(weight, self.top)
            if share:
                quantizer.freeze_(weight, share, self._order(quantizer, weight, f"{path} {epoch}"))

    def after_step_(self, model: nn.Module) -> None:
        """Restore the frozen weights."""
        for _, quantizer, weight in _quantizers(model):
            quantizer.hold_(weight)

    def _order(self, quantizer: PowersOfTwo, weight: Tensor, name: str) -> Tensor:
        """Return numbers whose highest are frozen first; random ones are the same in every process."""
        if self.partition == "magnitude":
            return weight.detach().abs()
        seed = random.Random(f"{int(quantizer.seed)} {name}").getrandbits(63)
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(weight.shape, generator=generator).to(weight.device)


def _quantizers(model: nn.Module) -> list[tuple[str, PowersOfTwo, Tensor]]:
    layers = quantized_layers(model)
    return [(p, layer.quantizer, layer.weight) for p, layer in layers if isinstance(layer.quantizer, PowersOfTwo)]
