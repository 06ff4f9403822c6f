"""MLPerf Tiny's networks and a U-Net: the figures of their names, and from training to integers that equal torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lehr
from lehr.models import DSCNN, Autoencoder, MobileNetV1, UNet
from lehr.summary import summarize

Loss = Callable[[nn.Module, Tensor], Tensor]


def pixels(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("model", "image", "layers", "weights", "macs"),
    [
        (DSCNN(), pixels(1, 1, 49, 10), 10, 22_016, 2_656_768),
        (MobileNetV1((3, 96, 96), classes=2, width=0.25), pixels(1, 3, 96, 96), 28, 208_112, 7_489_664),
        (Autoencoder(), torch.zeros(1, 640), 10, 264_192, 264_192),
    ],
    ids=["ds-cnn", "mobilenet-v1", "autoencoder"],
)
def test_a_network_has_the_layers_weights_and_macs_of_mlperf_tiny(
    model: nn.Module, image: Tensor, layers: int, weights: int, macs: int
):
    summary = summarize(model, image)
    assert (len(summary.layers), summary.weights, summary.macs) == (layers, weights, macs)


def test_the_first_convolution_of_ds_cnn_has_half_as_many_outputs_rounded_up():
    model = DSCNN((1, 49, 10))
    assert model.conv(model.pad(torch.zeros(1, 1, 49, 10))).shape == (1, 64, 25, 5)


def test_a_u_net_refuses_images_that_cannot_be_halved_so_often():
    with pytest.raises(ValueError, match=r"3 levels halve an image 2 times: .* multiples of 4, got \(30, 32\)"):
        UNet((3, 30, 32))


def classified(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), (x.float().mean((1, 2, 3)) > 128).long())


def masked(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), (x[:, 0] > 128).long())


def rebuilt(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x), model.get_submodule("input")(x))


BRIGHT = (pixels(64, 1, 1, 1) * torch.rand(64, 1, 12, 12, generator=torch.Generator().manual_seed(0))).to(torch.uint8)
GREY = {"mean": (0.3,), "std": (0.25,), "input_bits": 8}
NETWORKS: dict[str, tuple[nn.Module, Tensor, Loss]] = {
    "ds-cnn": (DSCNN((1, 12, 12), 2, width=0.125, **GREY), BRIGHT, classified),
    "mobilenet-v1": (MobileNetV1((1, 12, 12), 2, width=1 / 16, **GREY), BRIGHT, classified),
    "autoencoder": (Autoencoder(12, hidden=16, code=6, depth=1), torch.randn(64, 3) @ torch.randn(3, 12), rebuilt),
    "u-net": (UNet((1, 12, 12), 2, channels=(4, 8, 8), **GREY), BRIGHT, masked),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_it_trains_anneals_freezes_and_equals_its_integers_in_the_engine(name: str):
    model, data, loss = NETWORKS[name]
    torch.manual_seed(0)
    lehr.quantize_(model)
    annealer = lehr.Annealer(model, lehr.annealing.AllAtOnce(duration=8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        found = loss(model, data)
        found.backward()
        optimizer.step()
        annealer.step()
        losses.append(found.item())
    assert sum(losses[-3:]) < sum(losses[:3])
    net = lehr.freeze(model.eval(), data)
    with torch.no_grad():
        expected = model(data)
    assert all(value.kind == "integer" for key, value in net.values.items() if key not in ("input", "logits"))
    torch.testing.assert_close(net.run(data), expected)
    engine = lehr.deploy.compile(net)
    assert torch.equal(engine(data), net.run(data))
