"""The losses against their formulas in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lehr.losses import SquaredHinge
from lehr.training.objective import Loss

SCORES = np.array([[2.0, 0.5, -3.0], [-1.0, 1.0, 0.0], [0.25, -0.5, 1.0]])
LABELS = np.array([0, 1, 2])


@given(margin=st.floats(0.1, 3), seed=st.integers(0, 99))
def test_squared_hinge_is_the_mean_of_the_squared_margin_not_reached(margin: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.normal(size=(7, 5)), rng.integers(5, size=7)
    signs = np.where(np.arange(5) == labels[:, None], 1.0, -1.0)
    expected = np.mean(np.maximum(0, margin - signs * scores) ** 2)
    loss = SquaredHinge(margin)(torch.tensor(scores), torch.tensor(labels))
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_squared_hinge_has_the_gradient_of_its_formula() -> None:
    scores = torch.tensor(SCORES, requires_grad=True)
    SquaredHinge()(scores, torch.tensor(LABELS)).backward()
    signs = np.where(np.arange(3) == LABELS[:, None], 1.0, -1.0)
    expected = -2 * signs * np.maximum(0, 1 - signs * SCORES) / SCORES.size
    assert scores.grad is not None
    np.testing.assert_allclose(scores.grad.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_smooths_the_labels_towards_all_classes(smoothing: float) -> None:
    shifted = SCORES - SCORES.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    targets = np.full((3, 3), smoothing / 3) + (1 - smoothing) * np.eye(3)[LABELS]
    expected = -np.mean((targets * log_probabilities).sum(1))
    loss = Loss("cross-entropy", smoothing).build()(torch.tensor(SCORES), torch.tensor(LABELS))
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_a_recipe_names_its_loss() -> None:
    assert isinstance(Loss("squared-hinge").build(), SquaredHinge)
    with pytest.raises(ValueError, match="label_smoothing needs the cross-entropy loss, got squared-hinge"):
        Loss("squared-hinge", 0.1)
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\), got 1"):
        Loss("cross-entropy", 1.0)
