"""The paper's formulas, restated in numpy and scipy, and helpers for the tests of the core."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import torch
from hypothesis import settings
from hypothesis import strategies as st

import lehr

# The same numbers at each run: a test that fails today failed yesterday.
numbers = settings(derandomize=True, deadline=None, max_examples=60)
few_numbers = settings(numbers, max_examples=15)

NOISES = (lehr.Uniform, lehr.Triangular, lehr.Normal, lehr.Logistic)
BY_SCIPY: dict[type, Callable[[float], Any]] = {
    lehr.Uniform: lambda std: scipy.stats.uniform(-math.sqrt(3) * std, 2 * math.sqrt(3) * std),
    lehr.Triangular: lambda std: scipy.stats.triang(0.5, -math.sqrt(6) * std, 2 * math.sqrt(6) * std),
    lehr.Normal: lambda std: scipy.stats.norm(0, std),
    lehr.Logistic: lambda std: scipy.stats.logistic(0, math.sqrt(3) * std / math.pi),
}


def step_value(x: np.ndarray, step: lehr.MultiStep) -> np.ndarray:
    """Return the level of the interval that contains x (eq. 4); a threshold belongs to the interval above it."""
    return np.asarray(step.levels)[np.searchsorted(step.thresholds, x, side="right")]


def expected_value(x: np.ndarray, step: lehr.MultiStep, law: Any) -> np.ndarray:
    """Σ_k q_k P(θ_k <= x + ν < θ_{k+1}): over the levels, where lehr sums over the jumps."""
    reached = law.sf(np.asarray(step.thresholds)[:, None] - np.ravel(x))  # P(x + ν >= θ_k)
    edges = np.vstack([np.ones((1, np.size(x))), reached, np.zeros((1, np.size(x)))])
    return (np.asarray(step.levels) @ (edges[:-1] - edges[1:])).reshape(np.shape(x))


def expected_slope(x: np.ndarray, step: lehr.MultiStep, law: Any) -> np.ndarray:
    """Σ_k δq_k f(θ_k - x), f symmetric."""
    density = law.pdf(np.asarray(step.thresholds)[:, None] - np.ravel(x))
    return (np.diff(step.levels) @ density).reshape(np.shape(x))


@st.composite
def steps(draw: st.DrawFn, most: int = 12) -> lehr.MultiStep:
    """Multi-step functions with unevenly spaced thresholds and levels."""
    count = draw(st.integers(1, most))
    gaps = st.floats(0.01, 2)
    thresholds = np.cumsum([draw(st.floats(-3, 3)), *(draw(gaps) for _ in range(count - 1))])
    levels = np.cumsum([draw(st.floats(-3, 3)), *(draw(gaps) for _ in range(count))])
    return lehr.MultiStep(tuple(thresholds), tuple(levels))


def value_and_gradient(x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the value of `lehr.quantize`, and the gradient of its sum."""
    x = x.detach().clone().requires_grad_()
    y = lehr.quantize(x, *args, **kwargs)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    return y.detach(), x.grad
