"""The optimizer of a recipe and its learning rate schedule: torch's and Muon, by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import lr_scheduler

from lehr.training.muon import Muon

_MUON_MOMENTUM, _MUON_NORM_LR = 0.6, 0.02  # best of short trials on CIFAR-10: see the lab notebook


@dataclass(frozen=True)
class Optimizer:
    """An optimizer by name.

    Args:
        name: one of torch's, or muon, which updates BatchNorm's parameters and biases by Adam.
        lr: the learning rate.
        norm_lr: the learning rate of BatchNorm's parameters and biases; default: `lr`, or 0.02 with muon, whose `lr`
            does not suit Adam.
        weight_decay: each step pulls the weights towards 0, in proportion to it and to the learning rate.
        momentum: for sgd (default 0.9) and muon (default 0.6).
        clip_norm: the norm that gradients are clipped to; default: no clipping.
    """

    name: Literal["adam", "adamw", "sgd", "muon"] = "adam"
    lr: float = 1e-3
    norm_lr: float | None = None
    weight_decay: float = 0.0
    momentum: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.norm_lr is not None and not 0 < self.norm_lr < math.inf:
            raise ValueError(f"norm_lr must be positive, or null for lr, got {self.norm_lr}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be positive, or null for no clipping, got {self.clip_norm}")

    def build(self, parameters: Iterable[nn.Parameter], *, fused: bool = True) -> torch.optim.Optimizer:
        """Return the optimizer of these parameters; `fused` selects torch's fused kernels."""
        if self.name == "muon":
            return Muon(
                parameters,
                self.lr,
                norm_lr=_MUON_NORM_LR if self.norm_lr is None else self.norm_lr,
                momentum=_MUON_MOMENTUM if self.momentum is None else self.momentum,
                weight_decay=self.weight_decay,
            )
        common: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay, "fused": fused}
        every = list(parameters)
        groups: list[dict[str, Any]] = [{"params": every}]
        if self.norm_lr is not None:
            weights, rest = ([p for p in every if (p.ndim > 1) == weight] for weight in (True, False))
            groups = [{"params": weights}, {"params": rest, "lr": self.norm_lr}]
        if self.name == "sgd":
            return torch.optim.SGD(groups, momentum=0.9 if self.momentum is None else self.momentum, **common)
        return (torch.optim.Adam if self.name == "adam" else torch.optim.AdamW)(groups, **common)


@dataclass(frozen=True)
class RateSchedule:
    """The learning rate over time, by torch's schedulers.

    Args:
        name: constant; multi-step: multiplied by `gamma` at each milestone; cosine and linear: falls to `final` times
            lr at the last epoch; one-cycle: rises for 30 % of training, then falls to almost 0.
        warmup: epochs at the start in which the rate rises to lr.
        milestones: of multi-step, in epochs, or "annealed": the end of the last annealing window.
        gamma: the factor of multi-step.
        final: the last rate of cosine and linear, as a share of lr.
    """

    name: Literal["constant", "multi-step", "cosine", "linear", "one-cycle"] = "constant"
    warmup: float = 0.0
    milestones: tuple[float | Literal["annealed"], ...] = ("annealed",)
    gamma: float = 0.1
    final: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < math.inf:
            raise ValueError(f"warmup must not be negative, got {self.warmup}")
        if self.warmup and self.name == "one-cycle":
            raise ValueError(f"the one-cycle schedule includes a warmup: leave warmup at 0, got {self.warmup:g}")
        for milestone in self.milestones:
            if milestone != "annealed" and not 0 <= milestone < math.inf:
                raise ValueError(f'a milestone is an epoch, at least 0, or "annealed", got {milestone}')
        if not 0 < self.gamma < math.inf:
            raise ValueError(f"gamma must be positive, got {self.gamma}")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final is a share of the learning rate in [0, 1], got {self.final}")

    def build(
        self, optimizer: torch.optim.Optimizer, *, steps_per_epoch: int, epochs: int, annealed: float | None
    ) -> lr_scheduler.LRScheduler:
        """Return torch's scheduler, to be stepped after each batch.

        Args:
            optimizer: the optimizer whose rates it sets
            steps_per_epoch: batches of an epoch
            epochs: of the run
            annealed: the epoch at which annealing ends; None if nothing is annealed
        """
        rising = round(self.warmup * steps_per_epoch)
        steps = epochs * steps_per_epoch - rising
        scheduler: lr_scheduler.LRScheduler
        if self.name == "multi-step":
            if annealed is None and "annealed" in self.milestones:
                raise ValueError(
                    "the learning rate is to drop when annealing ends, but nothing is annealed: "
                    "give schedule.milestones in epochs"
                )
            drops = [annealed if milestone == "annealed" else milestone for milestone in self.milestones]
            at = [round(drop * steps_per_epoch) - rising for drop in drops if drop is not None]
            scheduler = lr_scheduler.MultiStepLR(optimizer, sorted(at), self.gamma)
        elif self.name in ("cosine", "linear"):
            # Torch's schedulers end all parameter groups at one rate, not each at a share of its initial rate.
            falling = self._cosine if self.name == "cosine" else self._linear
            scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: falling(min(step / max(steps, 1), 1.0)))
        elif self.name == "one-cycle":
            rates = [group["lr"] for group in optimizer.param_groups]
            scheduler = lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps, cycle_momentum=False)
        else:
            scheduler = lr_scheduler.ConstantLR(optimizer, factor=1.0)
        if not rising:
            return scheduler
        warmup = lr_scheduler.LinearLR(optimizer, start_factor=1 / (rising + 1), total_iters=rising)
        return lr_scheduler.SequentialLR(optimizer, [warmup, scheduler], milestones=[rising])

    def _cosine(self, progress: float) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2

    def _linear(self, progress: float) -> float:
        return self.final + (1 - self.final) * (1 - progress)
