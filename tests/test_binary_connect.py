"""BinaryConnect: P(+1) is the hard sigmoid, activations stay, weights are clipped, the noise stays to the end."""

from __future__ import annotations

import torch
from torch import nn

import lehr
from lehr.algorithms import BinaryConnect
from lehr.algorithms.algorithm import quantized_layers
from lehr.models import MLP


def converted(algorithm: BinaryConnect) -> MLP:
    torch.manual_seed(0)
    model = MLP((1, 4, 4), hidden=(8, 8))
    algorithm.convert_(model)
    return model


def test_a_stochastic_weight_is_plus_one_with_the_probability_of_the_hard_sigmoid() -> None:
    quantizer = next(layer for _, layer in quantized_layers(converted(BinaryConnect(stochastic=True)))).quantizer
    w = torch.linspace(-1.5, 1.5, 13)
    drawn = quantizer(w.repeat(40_000, 1))
    assert set(drawn.unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close((drawn == 1).float().mean(0), ((w + 1) / 2).clamp(0, 1), atol=0.01, rtol=0)  # eq. 2, 3
    assert torch.equal(quantizer.eval()(w), torch.where(w >= 0, 1.0, -1.0))


def test_activations_stay_and_weights_are_clipped() -> None:
    model = converted(BinaryConnect())
    assert sum(isinstance(module, nn.ReLU) for module in model.modules()) == 2
    with torch.no_grad():
        for _, layer in quantized_layers(model):
            layer.weight.mul_(1000)
    BinaryConnect().after_step_(model)
    assert all(layer.weight.abs().max() <= 1 for _, layer in quantized_layers(model))


def test_the_gradient_passes_sign_as_it_is() -> None:
    layer = next(layer for _, layer in quantized_layers(converted(BinaryConnect())))
    gradient = torch.randn(layer.weight.shape)
    (layer.quantized_weight * gradient).sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, gradient)


def test_the_noise_is_not_annealed_and_goes_when_training_ends() -> None:
    algorithm = BinaryConnect(stochastic=True)
    model = converted(algorithm)
    assert not algorithm.anneals
    quantizers = [module for module in model.modules() if isinstance(module, lehr.Quantizer)]
    assert all(quantizer.forward_std > 0 for quantizer in quantizers)
    algorithm.after_training_(model)
    assert all(quantizer.forward_std == 0 for quantizer in quantizers)
