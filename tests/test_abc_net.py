"""ABC-Net: bases, scales and shifts, and the sum of binary convolutions they become."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lehr
from lehr.algorithms.abc_net import ABCNet, ApproxConv2d, ApproxLinear
from lehr.composed import taken_apart
from lehr.deploy import operations as deploy
from lehr.deploy.operations import Weights


def layer(algorithm: ABCNet, *, bias: bool = True) -> ApproxConv2d:
    torch.manual_seed(0)
    inner = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=bias)
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), inner, nn.Flatten(), nn.Linear(6, 2))
    nn.init.normal_(inner.weight, mean=0.02, std=0.1)
    algorithm.convert_(model)
    assert isinstance(inner, ApproxConv2d)
    assert isinstance(model[1], nn.Identity)
    return inner


def spread(count: int) -> np.ndarray:
    return np.zeros(1) if count == 1 else -1 + 2 * np.arange(count) / (count - 1)


def bases(weight: np.ndarray, count: int, scale: str) -> np.ndarray:
    axes = (1, 2, 3) if scale == "channel" else (0, 1, 2, 3)
    centred = weight - weight.mean(axes, keepdims=True)
    return np.stack([np.where(centred + u * weight.std(axes, keepdims=True) >= 0, 1, -1) for u in spread(count)])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("scale", ["tensor", "channel"])
def test_bases_are_shifted_signs_and_scales_are_least_squares(count: int, scale: str) -> None:
    approximated = layer(ABCNet(bases=count, scale=scale))  # pyright: ignore[reportArgumentType]
    weight = approximated.weight.detach().numpy().astype(np.float64)
    expected = bases(weight, count, scale)
    assert np.array_equal(approximated.bases().numpy(), expected)
    rows = weight.reshape(6, -1) if scale == "channel" else weight.reshape(1, -1)
    columns = expected.reshape(count, len(rows), -1)
    for index, row in enumerate(rows):
        alpha, *_ = np.linalg.lstsq(columns[:, index].T.astype(np.float64), row, rcond=None)
        found = approximated.scales.reshape(count, len(rows))[:, index].numpy()
        if np.linalg.matrix_rank(columns[:, index]) == count:
            np.testing.assert_allclose(found, alpha, atol=1e-6)
        np.testing.assert_allclose(found @ columns[:, index], alpha @ columns[:, index], atol=1e-6)


def test_more_bases_are_closer_to_the_weights() -> None:
    errors = []
    for count in (1, 2, 3, 5):
        approximated = layer(ABCNet(bases=count))
        errors.append((approximated.approximate_weight() - approximated.weight).norm().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.5 * errors[0]


def test_bases_that_coincide_share_their_scale() -> None:
    approximated = layer(ABCNet(bases=3))
    with torch.no_grad():
        approximated.weight.copy_(torch.where(approximated.weight >= 0, 0.5, -0.5))
    approximated.fit_()
    assert bool(approximated.scales.isfinite().all())
    torch.testing.assert_close(approximated.approximate_weight(), approximated.weight, atol=0.02, rtol=0)


def test_the_weight_gets_the_gradient_of_all_bases_straight_through() -> None:
    approximated = layer(ABCNet(bases=3, scale="channel"))
    grad = torch.randn_like(approximated.weight)
    approximated.approximate_weight().backward(grad)
    assert approximated.weight.grad is not None
    torch.testing.assert_close(approximated.weight.grad, grad * approximated.scales.sum(0))


def test_the_scales_follow_the_weights() -> None:
    algorithm = ABCNet()
    approximated = layer(algorithm)
    before = approximated.scales.clone()
    with torch.no_grad():
        approximated.weight.mul_(3)
    algorithm.after_step_(nn.Sequential(approximated))
    torch.testing.assert_close(approximated.scales, 3 * before)


def test_activations_are_shifted_and_learn_their_shifts_and_scales() -> None:
    approximated = layer(ABCNet(activations=3))
    with torch.no_grad():
        approximated.shifts.copy_(torch.tensor([-0.25, 0.5, 1.0]))
        approximated.input_scales.copy_(torch.tensor([0.7, -0.2, 1.5]))
    x = torch.linspace(-2, 2, 401)[:, None].requires_grad_()  # with its ties: 0.75, 0.0, -0.5
    grad = torch.randn(401, 1, generator=torch.Generator().manual_seed(0))
    y = approximated.approximate_input(x)
    y.backward(grad)
    u, g = x.detach().numpy(), grad.numpy()
    v, beta = approximated.shifts.detach().numpy(), approximated.input_scales.detach().numpy()
    binary = np.where(np.clip(u + v, 0, 1) >= 0.5, 1, -1)
    np.testing.assert_allclose(y.detach().numpy(), (beta * binary).sum(1, keepdims=True), rtol=1e-6)
    window = (u + v >= 0) & (u + v < 1)
    assert x.grad is not None
    assert approximated.shifts.grad is not None
    assert approximated.input_scales.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), g * (beta * window).sum(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(approximated.shifts.grad.numpy(), (g * beta * window).sum(0), rtol=1e-4)
    np.testing.assert_allclose(approximated.input_scales.grad.numpy(), (g * binary).sum(0), rtol=1e-4)


@pytest.mark.parametrize("scale", ["tensor", "channel"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_the_sum_of_its_binary_layers(scale: str, bias: bool) -> None:
    approximated = layer(ABCNet(bases=2, activations=3, scale=scale), bias=bias)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        approximated.scales[1].neg_()  # the least squares have seldom a negative one
        approximated.input_scales.copy_(torch.tensor([0.5, -0.3, 0.8]))
    x = torch.randn(5, 4, 7, 7)
    total: Tensor | float = 0.0
    for alpha, basis in zip(approximated.scales, approximated.bases(), strict=True):
        for beta, v in zip(approximated.input_scales, approximated.shifts, strict=True):
            binary = torch.where(x >= 0.5 - v, 1.0, -1.0)
            sums = nn.functional.conv2d(binary, basis, None, 2, 1)
            total = total + beta * alpha.reshape(1, -1, 1, 1) * sums
    if approximated.bias is not None:
        total = total + approximated.bias[:, None, None]
    assert isinstance(total, Tensor)
    with torch.no_grad():
        torch.testing.assert_close(approximated(x), total, rtol=1e-4, atol=1e-5)
        parts = taken_apart(nn.Sequential(approximated)).eval()
        torch.testing.assert_close(parts(x), total, rtol=1e-4, atol=1e-5)
    layers = [module for module in parts.modules() if isinstance(module, lehr.Conv2d)]
    assert len(layers) == 2
    for module in layers:
        assert set(module.weight.unique().tolist()) == {-1.0, 1.0}


def test_it_freezes_to_m_times_n_binary_convolutions() -> None:
    torch.manual_seed(0)
    model = lehr.models.VGG((3, 16, 16), width=1 / 16)
    ABCNet(bases=2, activations=3).convert_(model)
    images = torch.randint(0, 256, (16, 3, 16, 16), dtype=torch.uint8)
    model(images)
    net = lehr.freeze(model.eval(), images)
    layers = [operation for operation in net.operations if isinstance(operation, deploy.Conv | deploy.Linear)]
    binary = [operation for operation in layers if isinstance(operation.weights, Weights)]
    assert len(binary) == 2 * 3 * 7
    assert len(layers) == 2 + len(binary)
    for operation in binary:
        assert isinstance(operation.weights, Weights)
        assert operation.weights.levels == (-1, 1)
        assert net.values[operation.name].kind == "integer"
    with torch.no_grad():
        torch.testing.assert_close(net.run(images), model(images), rtol=1e-4, atol=1e-4)


def test_a_user_model_of_other_dimensions_is_converted() -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3),
        nn.Tanh(),
        nn.Conv1d(4, 4, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 8),
        nn.ReLU(),
        nn.Linear(8, 2),
    )
    conversion = ABCNet().convert_(model)
    assert [change.now for change in conversion.converted] == ["Identity", "ApproxConv1d", "Identity", "ApproxLinear"]
    assert isinstance(model[5], ApproxLinear)
    x = torch.randn(3, 2, 8)
    torch.testing.assert_close(model.eval()(x), taken_apart(model)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ABCNet(bases=0), "bases must be at least 1, got 0"),
        (lambda: ABCNet(activations=0), "activations must be at least 1, got 0"),
        (lambda: ABCNet(scale="fixed"), "scale must be one of tensor, channel, got 'fixed'"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_settings_raise(make: Callable[[], ABCNet], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
