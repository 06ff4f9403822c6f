"""The activations of networks, by name: a ramp is a ReLU moved by -1, whose values -1, 0, 1 stand for 0, 1, 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lehr
from lehr.models import VGG, AirBench, ResNet
from lehr.models.activation import activation_named

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "vgg": lambda **settings: VGG(width=1 / 8, input_bits=8, **settings),
    "airbench": lambda **settings: AirBench(width=1 / 8, input_bits=8, **settings),
    "resnet": lambda **settings: ResNet(width=1 / 2, input_bits=8, **settings),
    "resnet of sums": lambda **settings: ResNet(width=1 / 2, input_bits=8, shortcuts="sums", **settings),
}


def pixels(*shape: int) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_a_ramp_is_a_relu_moved_by_a_level():
    x = torch.linspace(-3, 3, 25)
    assert torch.equal(activation_named("ramp")()(x - 1), activation_named("relu")()(x) - 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_new_network_of_ramps_computes_what_it_would_with_relus(name: str):
    """But at the edges, where 0 is padded: with nothing but the middle of each filter there are none."""
    scores = []
    for kind in ("relu", "ramp"):
        torch.manual_seed(0)
        model = NETWORKS[name](activation=kind)
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
                middle = torch.zeros_like(module.weight.data)
                middle[..., 1, 1] = module.weight.data[..., 1, 1]
                module.weight.data = middle
        scores.append(model(pixels(16, 3, 32, 32)).detach())
    torch.testing.assert_close(*scores, rtol=0, atol=1e-4)


@pytest.mark.parametrize("precision", ["ternary", "8bit"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_ramps_becomes_integers_that_equal_torch(name: str, precision: str):
    torch.manual_seed(0)
    model = NETWORKS[name](activation="ramp")
    images: Any = pixels(32, 3, 32, 32)
    lehr.quantize_(model, weights=precision, activations=precision, data=[images])
    lehr.Annealer(model, lehr.annealing.Window(0, 1)).seek(1)
    net = lehr.freeze(model.eval(), images[:1])
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(net.run(images.numpy())), model(images), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_unknown_activation_is_refused(name: str):
    with pytest.raises(ValueError, match="activation must be relu, hardtanh or ramp, got 'gelu'"):
        NETWORKS[name](activation="gelu")
