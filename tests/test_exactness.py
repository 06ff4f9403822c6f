"""A network that `freeze` calls exact computes the same integers however, and wherever, torch adds.

The orders of adding that this machine can be made to use stand for other machines: threads, memory layouts, batch
sizes, and instruction sets chosen by the environment of a process. float64 is the referee of float32 sums.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import drawn_networks as drawn
import lehr
from frozen_networks import conv, hard, linear
from lehr.deploy import IntegerNet, load
from lehr.deploy.freeze import freeze
from lehr.deploy.operations import Threshold
from lehr.deploy.verify import is_tie, verify
from lehr.models import Input
from lehr.training.recipes import named
from lehr.training.run import InputFormat, build

HERE = Path(__file__).parent
SEEDS = range(32)


CASES = settings(
    max_examples=25,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow],
)


def codes(net: IntegerNet, images: Tensor) -> dict[str, Tensor]:
    """The level each Threshold reaches, by the path of the quantizer it was."""
    values = net.trace(images)
    return {
        operation.name: torch.searchsorted(torch.tensor(operation.levels), values[operation.name].contiguous())
        for operation in net.operations
        if isinstance(operation, Threshold)
    }


def levels(model: nn.Module, results: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same of torch's results."""
    found = {}
    for path, result in results.items():
        if path != "logits":
            quantizer = model.get_submodule(path)
            found[path] = quantizer.codes(result)
    return found


@CASES
@given(st.data())
def test_an_exact_network_has_the_integers_of_torch_in_every_order_of_adding(data):
    model, images = drawn.network(lambda options: data.draw(st.sampled_from(options)))
    net = freeze(model, images[:1])
    expected, logits = codes(net, images), net.run(images)
    assert expected
    for order, results in drawn.orders(model, images):
        if net.exact:
            found = levels(model, results)
            count = len(results["logits"])
            assert all(torch.equal(found[path].long(), value[:count]) for path, value in expected.items()), order
            torch.testing.assert_close(logits[:count], results["logits"], rtol=1e-5, atol=1e-5)
    other = images[logits.argmax(1) != model(images).argmax(1)]
    assert all(is_tie(model, net, image[None]) for image in other)


@CASES
@given(st.data())
def test_the_sums_of_an_exact_network_are_those_of_float64(data):
    model, images = drawn.network(lambda options: data.draw(st.sampled_from(options)))
    if not freeze(model, images[:1]).exact:
        return
    checked = []

    def compare(layer, args, result):
        layer = layer.double()
        expected = type(layer).forward(layer, args[0].double())
        layer.float()
        sums = F.linear if isinstance(layer, nn.Linear) else layer._conv_forward
        weight = layer.quantizer.unscaled(layer.weight)
        bias = () if isinstance(layer, nn.Linear) else (None,)
        exact = sums(args[0].double(), weight.double(), *bias)
        assert torch.equal(sums(args[0], weight, *bias).double(), exact)
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)
        checked.append(layer)

    for module in model.modules():
        if isinstance(module, lehr.Conv2d | lehr.Linear):
            module.register_forward_hook(compare)
    with torch.no_grad():
        model(images)
    assert len(checked) >= 2


ENVIRONMENTS = {
    "as it is": {},
    "torch without vectors": {"ATEN_CPU_CAPABILITY": "default"},
    "oneDNN on SSE": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "both": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "oneDNN on AVX2, MKL compatible": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Exact networks drawn by chance, with what their quantizers must give."""
    folder = tmp_path_factory.mktemp("networks")
    for seed in SEEDS:
        model, images = drawn.network(Random(seed).choice)
        if freeze(model, images[:1]).exact:
            results = {path: value for path, value in drawn.seen(model, images).items() if path != "logits"}
            content = {"seed": seed, "state": model.state_dict(), "images": images, "results": results}
            torch.save(content, folder / f"{seed}.pt")
    assert len(list(folder.iterdir())) >= 5, "too few of the networks drawn are exact to show anything"
    return folder


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_exact_network_is_the_same_with_other_instructions(name, saved):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | ENVIRONMENTS[name]
    command = [sys.executable, str(HERE / "drawn_networks.py"), str(saved)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


INEXACT = {
    "an average over 9 in front of a layer": (
        [conv(3, 4), hard(), nn.AvgPool2d(3), conv(4, 4), hard()],
        r"4: it sums values in units of 0\.1111, which is no power of two",
    ),
    "a scale of 0.3 in front of a layer": (
        [conv(3, 4), hard(scale=0.3), conv(4, 4), hard()],
        r"3: it sums values in units of 0\.3, which is no power of two",
    ),
    "levels without a dyadic unit": (
        [conv(3, 4, step=lehr.MultiStep.uniform(3, step=0.1)), hard()],
        r"1: its weight levels are multiples of 0\.1, which is no power of two",
    ),
    "an average of BatchNorm": (
        [conv(3, 4), nn.BatchNorm2d(4), nn.AvgPool2d(2), hard()],
        "4: it compares averages of values that torch has rounded with its thresholds",
    ),
    "a float layer": ([nn.Conv2d(3, 4, 3), hard(), conv(4, 4), hard()], "computed in float32"),
    "a sum of scaled sums": (
        [lehr.Conv2d(3, 4, 1, bias=False, quantizer=hard(scale=0.3)), hard(), nn.Sequential()],
        None,  # exact: the scale multiplies a sum that has no rounding
    ),
}


@pytest.mark.parametrize("case", INEXACT)
def test_what_is_not_exact_is_named(case, tmp_path):
    layers, why = INEXACT[case]
    model = nn.Sequential(Input((0.5,) * 3, (0.25,) * 3, bits=8), *layers).eval()
    net = freeze(model, torch.zeros(1, 3, 12, 12, dtype=torch.uint8))
    assert net.exact == (why is None)
    if why is not None:
        assert any(re.search(why, sentence) for sentence in net.inexact), net.inexact
    net.save(tmp_path / "net.lehr")
    assert load(tmp_path / "net.lehr").inexact == net.inexact


def test_batch_norm_that_puts_a_sum_on_a_threshold_is_named():
    """s / 3 + 1/6 at s = 1 is a threshold, up to what a processor that fuses the two operations rounds."""
    norm = nn.BatchNorm2d(2, eps=0.0).eval()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1 / 3, 0.25]))
        norm.bias.copy_(torch.tensor([0.5 - 1 / 3, 0.3]))
    model = nn.Sequential(Input((0.5,), (0.5,), bits=8), hard(), conv(1, 2), norm, hard()).eval()
    net = freeze(model, torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    assert net.inexact == ("4: in 1 of 2 channels BatchNorm puts a sum within rounding of a threshold",)


def test_sums_beyond_what_float32_counts_are_named():
    wide = lehr.Quantizer(lehr.MultiStep.uniform(8), lehr.Dirac(), lehr.Dirac())
    many = nn.Sequential(
        Input((0.5,), (0.25,), bits=8),
        nn.Flatten(),
        lehr.Linear(2**11, 2, bias=False, quantizer=wide),
    ).eval()
    nn.init.constant_(many[2].weight, 127.0)
    assert freeze(many, torch.zeros(1, 1, 32, 64, dtype=torch.uint8)).exact is False


def test_verification_counts_ties_and_fails_on_anything_else():
    """An average over 9 makes logits of ninths: torch and integers may take another of two equal ones."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(Input((0.5,), (0.25,), bits=8), conv(1, 6), nn.BatchNorm2d(6), hard(), nn.AvgPool2d(3), nn.Flatten()),
        linear(6 * 4, 10),
    ).eval()
    images = torch.randint(0, 256, (400, 1, 6, 6), dtype=torch.uint8)
    net = freeze(model, images[:1])
    assert not net.exact
    torch_check, *backends = verify(model, net, images)
    assert torch_check.passed
    assert all(check.passed for check in backends)

    other = freeze(nn.Sequential(*list(model)[:-1], linear(6 * 4, 10)).eval(), images[:1])
    check, *_ = verify(model, other, images)
    assert check.classes > check.ties
    assert not check.passed


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("digits-ana", (1, 8, 8), 10),
        ("fashion-mnist-quick", (1, 28, 28), 10),
        ("cifar10-quarter-ana", (3, 32, 32), 10),
        ("cifar10-quick", (3, 32, 32), 10),
    ],
)
def test_the_recipes_that_deploy_are_exact(name, shape, classes):
    """With weights as they begin and statistics of noise: what they become in training has the same units."""
    mean = (0.4914, 0.4822, 0.4465)[: shape[0]]
    images = InputFormat(shape, tuple(map(str, range(classes))), mean, (0.25,) * shape[0])
    model = build(named(name), images)
    batch = torch.randint(0, 256, (8, *shape), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    with torch.no_grad():
        model.train()(batch)
    for module in model.modules():
        if isinstance(module, lehr.Quantizer):
            module.forward_std.zero_()
    net = freeze(model.eval(), batch[:1])
    assert not [why for why in net.inexact if "within rounding of a threshold" not in why]
