"""Annealing: the noise of every layer as a function of time (Algorithm 1, lines 2-5).

A *schedule* gives each layer a *window*, the epochs during which its noise decays. A *law* falls in a window from 1 to
its final value, 0 unless asked otherwise; a layer's noise is its initial noise times the law.

>>> import torch, lehr
>>> from lehr.annealing import Hierarchical
>>> model = torch.nn.Sequential(lehr.Linear(4, 8), lehr.Quantizer(), lehr.Linear(8, 2))
>>> annealer = lehr.Annealer(model, Hierarchical(duration=10))
>>> for epoch in range(15):
...     annealer.step()  # after each epoch of training
>>> print(annealer)
layer  quantizers      window    forward std  backward std
1      0.quantizer, 1  [0, 10]             0        0.2887
2      2.quantizer     [10, 20]       0.1443        0.2887
"""

from lehr.annealing.annealer import Annealer, AnnealingWarning, layers_of
from lehr.annealing.schedule import (
    AllAtOnce,
    Constant,
    CosineDecay,
    Hierarchical,
    LastFirst,
    Law,
    LinearDecay,
    PowerDecay,
    SameEnd,
    SameStart,
    Schedule,
    Window,
)

__all__ = [
    "AllAtOnce",
    "Annealer",
    "AnnealingWarning",
    "Constant",
    "CosineDecay",
    "Hierarchical",
    "LastFirst",
    "Law",
    "LinearDecay",
    "PowerDecay",
    "SameEnd",
    "SameStart",
    "Schedule",
    "Window",
    "layers_of",
]
