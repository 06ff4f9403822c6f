"""The optimizer of a recipe and its learning rate over time: torch's own, by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import lr_scheduler


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of torch, with the norm gradients are clipped to (None: not at all); `momentum` is sgd's.

    `norm_lr` is the learning rate of BatchNorm's parameters and of biases, `lr` unless given.
    """

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 1e-3
    norm_lr: float | None = None
    weight_decay: float = 0.0
    momentum: float = 0.9
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.norm_lr is not None and not 0 < self.norm_lr < math.inf:
            raise ValueError(f"norm_lr must be positive, or null for lr, got {self.norm_lr}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be positive, or null for no clipping, got {self.clip_norm}")

    def build(self, parameters: Iterable[nn.Parameter], *, fused: bool = True) -> torch.optim.Optimizer:
        """Torch's optimizer of these parameters; `fused` updates them in one pass."""
        common: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay, "fused": fused}
        every = list(parameters)
        groups: list[dict[str, Any]] = [{"params": every}]
        if self.norm_lr is not None:
            weights, rest = ([p for p in every if (p.ndim > 1) == weight] for weight in (True, False))
            groups = [{"params": weights}, {"params": rest, "lr": self.norm_lr}]
        if self.name == "sgd":
            return torch.optim.SGD(groups, momentum=self.momentum, **common)
        return (torch.optim.Adam if self.name == "adam" else torch.optim.AdamW)(groups, **common)


@dataclass(frozen=True)
class RateSchedule:
    """The learning rate over time, by torch's schedulers: `warmup` epochs in which it rises to `lr`, then by name.

    multi-step: times `gamma` at each of `milestones`, in epochs or "annealed", the end of the last annealing window;
    cosine: down to `final` times lr at the last epoch; one-cycle: up over 30 % of training, then down to almost 0.
    """

    name: Literal["constant", "multi-step", "cosine", "one-cycle"] = "constant"
    warmup: float = 0.0
    milestones: tuple[float | Literal["annealed"], ...] = ("annealed",)
    gamma: float = 0.1
    final: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < math.inf:
            raise ValueError(f"warmup must not be negative, got {self.warmup}")
        if self.warmup and self.name == "one-cycle":
            raise ValueError("the one-cycle schedule has its own warmup: leave warmup at 0")
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
        """Torch's scheduler, to be stepped after each batch; `annealed` is the epoch by which all noise is gone."""
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
        elif self.name == "cosine":
            # Torch's own has one last rate for all groups of parameters, whatever their first.
            scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: self._cosine(step / max(steps, 1)))
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
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
