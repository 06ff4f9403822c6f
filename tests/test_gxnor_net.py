"""GXNOR-Net: weights that are always discrete and move with the paper's probabilities."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lehr
from lehr.algorithms.algorithm import quantized_layers
from lehr.algorithms.gxnor_net import GXNORNet, activation_step, states, transition


def network(algorithm: GXNORNet, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4), nn.BatchNorm1d(4))
    algorithm.convert_(model)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD], ids=["Adam", "SGD"])
@pytest.mark.parametrize("space", [0, 1, 2, 3])
def test_weights_in_memory_are_in_the_discrete_space_at_every_moment(
    space: int, optimizer: type[torch.optim.Optimizer]
) -> None:
    algorithm = GXNORNet(weights=space)
    model = network(algorithm)
    wrapped = algorithm.wrap(optimizer(model.parameters(), lr=0.2), model)
    moved = False
    for seed in range(10):
        before = [layer.weight.detach().clone() for _, layer in quantized_layers(model)]
        step(model, wrapped, seed)
        for (_, layer), old in zip(quantized_layers(model), before, strict=True):
            assert set(layer.weight.unique().tolist()) <= set(states(space))
            assert layer.quantized_weight is layer.weight
            moved |= not torch.equal(layer.weight, old)
    assert moved
    assert sum(parameter.numel() for parameter in model.parameters()) == 8 * 16 + 16 * 4 + 20 + 2 * 20, "no shadows"


@pytest.mark.parametrize(("space", "distance"), [(0, 2.0), (1, 1.0), (2, 0.5), (3, 0.25)])
@pytest.mark.parametrize("nonlinearity", [1.0, 3.0])
def test_a_transition_has_the_probabilities_of_the_paper(space: int, distance: float, nonlinearity: float) -> None:
    draws, generator = 20_000, torch.Generator().manual_seed(0)
    for start in states(space):
        for increment in (-2.5, -0.9, -0.1, -0.01, 0.0, 0.02, 0.3, 0.7, 1.2):
            bounded = min(1 - start, increment) if increment >= 0 else max(-1 - start, increment)
            whole = np.fix(bounded / distance)
            probability = np.tanh(nonlinearity * abs(bounded - whole * distance) / distance)
            expected = start + whole * distance, start + (whole + np.sign(bounded)) * distance
            new = transition(
                torch.full((draws,), start),
                torch.full((draws,), increment),
                distance,
                nonlinearity=nonlinearity,
                generator=generator,
            )
            assert set(new.unique().tolist()) <= set(expected) & set(states(space))
            if expected[0] != expected[1]:
                # Five standard deviations of the share, and what float32 makes of a probability of 0.
                slack = 5 * np.sqrt(probability * (1 - probability) / draws) + 1e-3
                assert abs((new == expected[1]).double().mean().item() - probability) < slack


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 4), st.floats(0, 100), st.integers(0, 2**31))
def test_no_increment_leads_out_of_the_space(space: int, size: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    there = torch.tensor(states(space))
    weight = there[torch.randint(len(there), (200,), generator=generator)]
    increment = size * torch.randn(200, generator=generator)
    new = transition(weight, increment, float(there[1] - there[0]), nonlinearity=3.0, generator=generator)
    assert set(new.tolist()) <= set(states(space))
    assert bool(((new - weight) * increment >= 0).all()), "it moves in the direction of the increment"


def test_transitions_depend_only_on_the_step_and_the_seed() -> None:
    algorithm = GXNORNet()
    results = []
    for other in (0, 1, 2):
        model = network(algorithm)
        optimizer = algorithm.wrap(torch.optim.Adam(model.parameters(), lr=0.1), model)
        for seed in range(3):
            torch.rand(100 * other)  # as another process would, with other noise
            step(model, optimizer, seed)
        results.append([layer.weight.detach().clone() for _, layer in quantized_layers(model)])
    assert all(torch.equal(a, b) for others in results[1:] for a, b in zip(results[0], others, strict=True))


def test_two_steps_and_two_seeds_draw_differently() -> None:
    algorithm = GXNORNet()
    moves = []
    for seed in (0, 1):
        model = network(algorithm)
        torch.manual_seed(seed)
        weight = next(quantized_layers(model))[1].weight
        optimizer = algorithm.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model)
        for _ in range(2):
            with torch.no_grad():
                weight.zero_()
            weight.grad = torch.full_like(weight, -0.2)
            optimizer.step()
            moves.append(weight.detach().clone())
    assert all(not torch.equal(a, b) for i, a in enumerate(moves) for b in moves[:i])


def test_a_loaded_optimizer_continues_its_random_numbers() -> None:
    algorithm = GXNORNet()
    model = network(algorithm)
    optimizer = algorithm.wrap(torch.optim.Adam(model.parameters(), lr=0.1), model)
    step(model, optimizer, 0)
    saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    step(model, optimizer, 1)

    resumed = network(algorithm, seed=7)
    again = algorithm.wrap(torch.optim.Adam(resumed.parameters(), lr=0.1), resumed)
    resumed.load_state_dict(saved[1])
    again.load_state_dict(saved[0])
    step(resumed, again, 1)
    for name, value in model.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


@pytest.mark.parametrize("derivative", ["rectangular", "triangular"])
@pytest.mark.parametrize(("window", "reach"), [(0.5, 0.5), (0.4, 0.2)])
def test_the_activation_and_its_derivative_are_those_of_the_paper(derivative: str, window: float, reach: float) -> None:
    model = network(GXNORNet(window=window, reach=reach, derivative=derivative))  # pyright: ignore[reportArgumentType]
    activation = model[2]
    assert isinstance(activation, lehr.Quantizer)
    x = torch.linspace(-1.2, 1.2, 241, requires_grad=True)
    y = activation(x)
    y.sum().backward()
    u = x.detach().numpy()
    assert np.array_equal(y.detach().numpy(), np.where(u >= window, 1, np.where(u < -window, -1, 0)))  # H(0) = 1
    distance = np.abs(np.abs(u) - window)
    if derivative == "rectangular":
        expected = np.where(distance <= reach, 1 / (2 * reach), 0)
    else:
        expected = np.maximum(0, reach - distance) / reach**2
    # At the windows' ends float32 decides.
    inside = np.abs(distance - reach) > 1e-5
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy()[inside], expected[inside], atol=1e-4)
    assert inside.mean() > 0.9


def test_more_states_are_more_steps_one_state_apart() -> None:
    assert activation_step(0, 0.3) == lehr.MultiStep.sign()
    assert activation_step(1, 0.5) == lehr.MultiStep.ternary()
    five = activation_step(2, 0.25)
    assert five.levels == states(2) == (-1, -0.5, 0, 0.5, 1)
    x = torch.linspace(-0.98, 0.98, 97)
    assert torch.equal(five(x), torch.round(2 * x) / 2), "with half a state for a window it rounds"


def test_of_trained_weights_the_nearest_state_is_kept_in_units_that_fit() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    weight = model[0].weight.detach().clone()
    GXNORNet().convert_(model, trained=True)
    assert isinstance(model[0], lehr.Linear)
    states_now: Tensor = model[0].weight.detach()
    assert set(states_now.unique().tolist()) == {-1.0, 0.0, 1.0}
    cut = weight.abs()[states_now == 0].max()
    assert bool((weight.abs()[states_now != 0] >= cut).all())
    assert bool((weight * states_now >= 0).all())
    assert 0.4 < (states_now != 0).float().mean() < 0.8


def test_ends_may_stay_in_full_precision() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    GXNORNet(first=False, last=False).convert_(model)
    assert [path for path, _ in quantized_layers(model)] == ["2"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GXNORNet(weights=-1), "weights, the N of Z_N, must be in 0..7, got -1"),
        (lambda: GXNORNet(activations=8), "activations, the N of Z_N, must be in 0..7, got 8"),
        (lambda: GXNORNet(window=0), "window must be positive and finite, got 0"),
        (lambda: GXNORNet(reach=-1), "reach must be positive and finite, got -1"),
        (lambda: GXNORNet(nonlinearity=0), "nonlinearity must be positive and finite, got 0"),
        (lambda: GXNORNet(derivative="round"), "derivative must be one of rectangular, triangular, got 'round'"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_settings_raise(make: Callable[[], GXNORNet], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
