"""An algorithm as a row of a table: its name, levels, end layers, estimator, and what it becomes.

Every algorithm describes itself (`Algorithm.describe`). By default, `describe_by_trial` converts a small network and
reads its quantizers.

>>> from lehr.algorithms import TWN
>>> TWN(first=False).describe().weights, TWN(first=False).describe().end_layers
('-α, 0, α', 'last')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lehr.quantizer import AbstractQuantizer, Quantizer

FLOATS = "32 bit"
STRAIGHT_THROUGH = "straight-through: the gradient of a quantized value is that of the value itself"
_LISTED = 5  # more levels are counted, not listed


@dataclass(frozen=True)
class Description:
    """An algorithm as a row of a table; unknown entries are empty.

    Args:
        name: its name, such as "ANA".
        variant: settings that differ from its usual form, such as "half-width 1".
        weights: the levels of the weights, such as "-1, 0, 1"; "32 bit" for floats.
        activations: the levels of the activations.
        end_layers: which of the first and the last layer are quantized: both, first, last or neither.
        estimator: how values and gradients of the weights are computed in training.
        becomes: what the trained network can be exported as, such as "integers".
        noisy: whether it has forward noise, which a recipe's schedule anneals.
    """

    name: str
    variant: str = ""
    weights: str = ""
    activations: str = ""
    end_layers: str = ""
    estimator: str = ""
    becomes: str = ""
    noisy: bool = False


def levels_in_words(levels: Sequence[float]) -> str:
    """Return the levels, or how many there are.

    >>> levels_in_words((-1, 0, 1)), levels_in_words(range(16))
    ('-1, 0, 1', '16 levels')
    """
    return ", ".join(f"{level:g}" for level in levels) if len(levels) <= _LISTED else f"{len(levels)} levels"


def end_layers(first: bool, last: bool) -> str:
    """Return which of the end layers are quantized.

    >>> end_layers(True, True), end_layers(False, True)
    ('both', 'last')
    """
    return {(True, True): "both", (True, False): "first", (False, True): "last", (False, False): "neither"}[first, last]


def becomes(*, weights: bool, activations: bool) -> str:
    """Return what a network is exported as if weights and activations are quantized, or only the weights."""
    if weights:
        return "integers" if activations else "quantized weights"
    return "floats"


def describe_by_trial(name: str, convert: Callable[[nn.Module], Any]) -> Description:
    """Describe an algorithm by its effect on a small network; if it refuses that network, only by its name.

    Args:
        name: of the algorithm.
        convert: quantizes a network in place.
    """
    with torch.random.fork_rng(devices=[]):
        inner = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()]
        model = nn.Sequential(*inner, nn.Linear(4, 4))
        try:
            convert(model)
        except (ValueError, TypeError, RuntimeError):  # the algorithm needs other networks
            return Description(name)
    quantizers = [model[at]._modules.get("quantizer") for at in (0, 3, 6)]
    first, inner, last = (one if isinstance(one, AbstractQuantizer) else None for one in quantizers)
    place: nn.Module = model[2]
    activation = place if isinstance(place, AbstractQuantizer) else None
    return Description(
        name,
        weights=FLOATS if inner is None else levels_in_words(inner.levels),
        activations=FLOATS if activation is None else levels_in_words(activation.levels),
        end_layers=end_layers(first is not None, last is not None),
        estimator=str(inner.estimator) if isinstance(inner, Quantizer) else "",
        becomes=becomes(weights=inner is not None, activations=activation is not None),
        noisy=any(isinstance(one, Quantizer) and bool((one.forward_std > 0).any()) for one in (inner, activation)),
    )
