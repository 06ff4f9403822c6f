"""INQ: levels of eq. 1-4, partitions, a schedule, and frozen weights that never move."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lehr
from lehr.algorithms import INQ
from lehr.algorithms.algorithm import quantized_layers
from lehr.algorithms.inq import PowersOfTwo

EPOCHS = 8


def network() -> tuple[nn.Sequential, list[tuple[lehr.Linear, PowersOfTwo]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))
    INQ().convert_(model)
    return model, of(model)


def of(model: nn.Module) -> list[tuple[Any, PowersOfTwo]]:
    return [
        (layer, layer.quantizer) for _, layer in quantized_layers(model) if isinstance(layer.quantizer, PowersOfTwo)
    ]


def restated(w: float, bits: int, largest: float) -> float:
    """Eq. 1-4, number by number; with n2 = n1 + 1 - 2^(b-1)/2."""
    n1 = math.floor(math.log2(4 * largest / 3))
    n2 = n1 + 1 - 2 ** (bits - 1) // 2
    for lower, upper in itertools.pairwise([0.0, *(2.0**n for n in range(n2, n1 + 1))]):
        if (lower + upper) / 2 <= abs(w) < 3 * upper / 2:
            return math.copysign(upper, w)
    return 0.0


@pytest.mark.parametrize("bits", [2, 3, 5])
def test_weights_go_to_the_powers_of_two_of_equation_4(bits: int) -> None:
    torch.manual_seed(bits)
    model = nn.Sequential(nn.Linear(30, 40))
    INQ(bits=bits).convert_(model)
    weight = model[0].weight.detach()
    expected = [restated(w, bits, weight.abs().max().item()) for w in weight.flatten().tolist()]
    np.testing.assert_array_equal(model.eval()[0].quantized_weight.flatten().numpy(), np.array(expected))


def test_the_least_error_is_not_above_any_other_top() -> None:
    torch.manual_seed(0)
    weight = torch.randn(50, 60)
    weight[0, 0] = 30.0  # which alone decides on the paper's n1
    errors = {}
    for top in ("largest", "least-error"):
        quantizer = PowersOfTwo(2)
        quantizer.fit_(weight, top)
        errors[top] = (quantizer.eval()(weight) - weight).square().sum()
    assert errors["least-error"] < errors["largest"]


def test_shares_are_frozen_when_the_schedule_says() -> None:
    model, layers = network()
    shares = []
    for epoch in range(EPOCHS):
        INQ().before_epoch_(model, epoch, EPOCHS)
        shares.append([round(1 - quantizer.frozen.isnan().float().mean().item(), 6) for _, quantizer in layers])
    assert shares == [[share] * 2 for share in (0, 0, 0, 0, 0.5, 0.75, 0.875, 1)]
    assert [INQ().share(epoch, 2) for epoch in range(2)] == [0.0, 1.0]
    assert INQ(delay=0).share(0, 40) == 0.5


def test_the_largest_are_frozen_first_or_any_at_random() -> None:
    for partition in ("magnitude", "random"):
        model, [(layer, quantizer), _] = network()
        size = layer.weight.detach().abs().clone()
        INQ(partition=partition).before_epoch_(model, 4, EPOCHS)
        frozen = ~quantizer.frozen.isnan()
        assert bool(size[frozen].min() >= size[~frozen].max()) == (partition == "magnitude")


def test_random_freezing_depends_only_on_the_seed() -> None:
    def frozen(seed: int, drawn: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))
        INQ().convert_(model)
        torch.rand(drawn)
        INQ(partition="random").before_epoch_(model, 4, EPOCHS)
        return ~of(model)[0][1].frozen.isnan()

    assert torch.equal(frozen(0, 0), frozen(0, 7))
    assert not torch.equal(frozen(0, 0), frozen(1, 0))


@pytest.mark.parametrize("partition", ["magnitude", "random"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_frozen_weights_never_move_and_the_others_do(partition: Any, optimizer: str) -> None:
    model, layers = network()
    algorithm = INQ(partition=partition)
    parameters = model.parameters()
    stepper = (
        torch.optim.Adam(parameters, lr=0.1, weight_decay=0.1)
        if optimizer == "adam"
        else torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)
    )
    kept: dict[nn.Module, torch.Tensor] = {}
    for epoch in range(EPOCHS):
        algorithm.before_epoch_(model, epoch, EPOCHS)
        before = [layer.weight.detach().clone() for layer, _ in layers]
        for _ in range(3):
            stepper.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.arange(8)).backward()
            for layer, quantizer in layers:
                assert layer.weight.grad is not None
                assert not layer.weight.grad[~quantizer.frozen.isnan()].any()
            stepper.step()
            algorithm.after_step_(model)
        for (layer, quantizer), then in zip(layers, before, strict=True):
            frozen = ~quantizer.frozen.isnan()
            assert torch.equal(layer.weight[frozen], then[frozen])
            assert bool((layer.weight != then)[~frozen].all())
            old = kept.get(layer, torch.full_like(then, torch.nan))
            assert torch.equal(quantizer.frozen[~old.isnan()], old[~old.isnan()])
            kept[layer] = quantizer.frozen.clone()
    for layer, quantizer in layers:
        assert not quantizer.frozen.isnan().any()
        trained = layer.train().quantized_weight.detach().clone()
        assert torch.equal(layer.eval().quantized_weight, trained)


def test_asking_twice_for_an_epoch_freezes_no_more() -> None:
    model, [(_, quantizer), _] = network()
    for _ in range(2):
        INQ(partition="random").before_epoch_(model, 4, EPOCHS)
        assert (~quantizer.frozen.isnan()).float().mean() == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 1}, r"bits must be between 2 \(ternary\) and 6, got 1"),
        ({"portions": (0.5, 0.4, 1.0)}, "portions must be above 0, rise and end at 1"),
        ({"portions": (0.5,)}, "portions must be above 0, rise and end at 1"),
        ({"partition": "largest"}, "partition must be one of magnitude, random, got 'largest'"),
        ({"top": "least_error"}, "top must be one of largest, least-error, got 'least_error'"),
        ({"delay": 1.0}, r"delay, a share of training, must be in \[0, 1\), got 1.0"),
    ],
)
def test_wrong_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        INQ(**settings)
