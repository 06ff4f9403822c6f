"""LSQ: values and the scaled gradients of eq. 3 and 5, restated; a step's initial value, and that it stays positive."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lehr.algorithms import LSQ
from lehr.algorithms.algorithm import quantized_layers
from lehr.algorithms.lsq import LearnedStep
from lehr.models import MLP


@pytest.mark.parametrize(("bits", "signed", "low", "high"), [(2, True, -2, 1), (3, False, 0, 7), (8, True, -128, 127)])
def test_values_and_gradients_are_the_papers(bits: int, signed: bool, low: int, high: int) -> None:
    torch.manual_seed(0)
    quantizer = LearnedStep(bits, signed=signed)
    with torch.no_grad():
        quantizer.learned.start.fill_(0.5)
        quantizer.learned.relative.fill_(0.6)
    v = (torch.randn(40, 50) * 0.3 * high).requires_grad_()
    gradient = torch.randn(40, 50)
    y = quantizer(v)
    (y * gradient).sum().backward()
    u = v.detach().double() / quantizer.scale.double()
    inside = (u > low) & (u < high)
    torch.testing.assert_close(y.detach().double(), u.clamp(low, high).round() * 0.3, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(v.grad, gradient * inside)
    slope = torch.where(inside, u.round() - u, u.clamp(low, high))
    count = v.numel() if signed else v[0].numel()
    expected = (slope * gradient).sum() / math.sqrt(count * high)
    assert quantizer.learned.relative.grad is not None
    moved = 0.5 * quantizer.learned.relative.grad.double()  # of the step, by a learning rate of -1
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-4)


def test_steps_start_at_twice_the_mean_size_over_the_root_of_the_highest_level() -> None:
    model = MLP((1, 4, 4), hidden=(8, 8))
    LSQ(bits=3, end_bits=8).convert_(model)
    layers = [layer for _, layer in quantized_layers(model)]
    assert [len(layer.quantizer.levels) for layer in layers] == [256, 8, 256]
    for layer in layers:
        size = 2 * layer.weight.abs().mean() / math.sqrt(layer.quantizer.levels[-1])
        torch.testing.assert_close(layer.quantizer.scale, size, check_dtype=False)
    activations = [module for path, module in model.named_modules() if path in ("layers.3", "layers.6")]
    normal = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).relu().mean()
    for quantizer, highest in zip(activations, (7, 255), strict=True):  # what the last layer reads has 8 bits too
        assert isinstance(quantizer, LearnedStep)
        assert len(quantizer.levels) == highest + 1
        size = 2 * normal / math.sqrt(highest)
        torch.testing.assert_close(quantizer.scale, size, rtol=0.02, atol=0, check_dtype=False)


def test_a_step_stays_positive() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    LSQ().convert_(model)
    steps = [module for module in model.modules() if isinstance(module, LearnedStep)]
    with torch.no_grad():
        for step in steps:
            step.learned.relative.fill_(-1.0)
    LSQ().after_step_(model)
    assert len(steps) == 3
    assert all(step.scale > 0 for step in steps)


def test_wrong_bits_raise() -> None:
    with pytest.raises(ValueError, match="bits must be between 2 and 8, got 1"):
        LSQ(bits=1)
    with pytest.raises(ValueError, match="end_bits must be between 2 and 8, got 9"):
        LSQ(end_bits=9)
