"""Activations, biases and BatchNorm are fitted to data: a trained network that is quantized starts close to itself."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lehr
import lehr.data
from lehr import Dirac, MultiStep, Quantizer, calibrate_, quantize_
from lehr.scale import fit_power_of_two
from written_models import FunctionalResNet, SharedResNet, plain_cnn

BATCH = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
PIXELS = torch.randint(0, 256, (64, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def small(activations: object = "8bit") -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 2))
    quantize_(model, weights="8bit", activations=activations)  # pyright: ignore[reportArgumentType]
    return model


@pytest.mark.parametrize("step", [MultiStep.ternary(), MultiStep.uniform(4), MultiStep.uniform(3, signed=False)])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_a_power_of_two_is_the_best_one_there_is(step: MultiStep, size: float) -> None:
    values = size * torch.randn(5000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = values if step.levels[0] < 0 else values.relu()
    fitted = fit_power_of_two(values, Quantizer(step))
    errors = {2.0**n: (values - 2.0**n * step(values / 2.0**n)).square().sum().item() for n in range(-30, 20)}
    assert fitted == min(errors, key=errors.__getitem__)


def test_activations_that_are_0_or_not_finite() -> None:
    assert fit_power_of_two(torch.zeros(5), Quantizer()) == 1
    model = small()
    with pytest.raises(ValueError, match="an activation is not finite"):
        calibrate_(model, [torch.full((2, 8), torch.inf)])


def test_scales_are_powers_of_two_unless_asked_otherwise() -> None:
    scales = calibrate_(small(), [BATCH])
    assert list(scales) == ["1", "3.quantizer"]
    assert all(torch.tensor(scale).log2().frac() == 0 for scale in scales.values())
    model = small()
    scales = calibrate_(model, [BATCH], power_of_two=False)
    assert any(torch.tensor(scale).log2().frac() != 0 for scale in scales.values())
    assert model[1].scale.item() == pytest.approx(scales["1"])


@pytest.mark.parametrize(("size", "kept"), [(1.7, True), (0.5, True), (10.0, False)])
def test_three_levels_keep_a_scale_that_is_nearly_right(size: float, kept: bool) -> None:
    """Training goes better from a scale of 1 than from 2; many levels lose less with the best scale."""
    values = size * torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))
    for step in (MultiStep.ternary(), MultiStep.uniform(8)):
        quantizer = Quantizer(step)
        best = fit_power_of_two(values.double(), quantizer)
        assert best != 1
        kept = kept and len(step.levels) == 3
        assert calibrate_(nn.Sequential(quantizer), [values]) == {"0": 1.0 if kept else best}


def test_weights_are_left_alone_and_so_is_the_mode() -> None:
    model = small()
    model[1].eval()
    before = [module.training for module in model.modules()]
    weights = model[0].quantizer.scale.clone()
    calibrate_(model, [BATCH])
    assert torch.equal(model[0].quantizer.scale, weights)
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize(
    "batches",
    [
        [BATCH],
        iter([BATCH[:128], BATCH[128:]]),
        DataLoader(TensorDataset(BATCH, torch.zeros(256)), batch_size=64),
        [{"input": BATCH}],
    ],
    ids=["list", "iterator", "loader", "dictionary"],
)
def test_batches_come_in_any_form(batches: object) -> None:
    assert calibrate_(small(), batches) == calibrate_(small(), [BATCH])  # pyright: ignore[reportArgumentType]


def test_what_cannot_be_calibrated_is_an_error() -> None:
    with pytest.raises(ValueError, match="calibration needs at least one batch, got none"):
        calibrate_(small(), [])
    with pytest.raises(ValueError, match="data has no batch to calibrate with"):
        quantize_(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), data=[])
    with pytest.raises(ValueError, match="this Linear has no activation quantizer to fit"):
        calibrate_(nn.Linear(2, 2), [BATCH])


class TestLevels:
    def of(self, activation: nn.Module, levels: object = "4bit") -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), activation, nn.Linear(8, 2))
        quantize_(model, activations=levels)  # pyright: ignore[reportArgumentType]
        return model[1]

    def test_after_a_relu_negatives_stay_0(self) -> None:
        quantizer = self.of(nn.ReLU())
        assert isinstance(quantizer, Quantizer)
        assert quantizer.step == MultiStep.uniform(4, signed=False)
        assert quantizer.eval()(torch.tensor([-3.0, -0.6, 0.6])).tolist() == [0, 0, 1]

    def test_three_levels_stay_as_the_paper_has_them(self) -> None:
        assert self.of(nn.ReLU(), Quantizer()).levels == (-1, 0, 1)

    def test_uneven_levels_lose_the_negative_ones(self) -> None:
        uneven = Quantizer(MultiStep((-2, -0.5, 0.5, 2), (-4, -1, 0, 1, 4)), Dirac())
        assert self.of(nn.ReLU(), uneven).levels == (0, 1, 4)

    @pytest.mark.parametrize(
        ("activation", "is_signed"),
        [
            (nn.ReLU6(), False),
            (nn.Sigmoid(), False),
            (nn.Hardtanh(0, 2), False),
            (nn.Hardtanh(), True),
            (nn.GELU(), True),
        ],
        ids=str,
    )
    def test_other_functions_are_computed_first(self, activation: nn.Module, is_signed: bool) -> None:
        kind = type(activation)
        module = self.of(activation)
        assert module is activation
        assert type(module) is kind
        assert module.quantizer.step == MultiStep.uniform(4, signed=is_signed)  # pyright: ignore[reportAttributeAccessIssue]
        x = torch.randn(50) * 9
        expected = module.eval().quantizer(kind.forward(module, x))  # pyright: ignore[reportCallIssue]
        assert torch.equal(module(x), expected)
        assert torch.equal(copy.deepcopy(module)(x), expected)


@functools.cache
def trained(kind: str, norm: bool, width: int = 16) -> nn.Module:
    """A network that makes few errors on the digits."""
    torch.manual_seed(0)
    models = {"cnn": plain_cnn, "resnet": FunctionalResNet}
    model = SharedResNet(width) if kind == "shared" else models[kind](width, norm=norm)
    return fit(model, epochs=12, rate=6e-3 if norm else 3e-3)


def fit(model: nn.Module, epochs: int, rate: float) -> nn.Module:
    """Train on the digits."""
    train = lehr.data.load("digits").train
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * -(-len(train.images) // 64))
    for _ in range(epochs):
        for batch in torch.randperm(len(train.images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(train.images[batch]), train.labels[batch]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def errors(model: nn.Module) -> int:
    """Of the images that are not trained with."""
    _, validation, test = lehr.data.load("digits")
    return sum(int((model(part.images).argmax(1) != part.labels).sum()) for part in (validation, test))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "norm"), [("cnn", True), ("cnn", False), ("resnet", True), ("resnet", False), ("shared", True)]
)
def test_a_trained_network_starts_close_to_itself(kind: str, norm: bool) -> None:
    splits = lehr.data.load("digits")
    held_out = len(splits.validation.images) + len(splits.test.images)
    model = trained(kind, norm)
    before = errors(model)
    assert before < 0.1 * held_out
    for word, points in (("8bit", 0.5), ("4bit", 2.0)):
        quantized = copy.deepcopy(model)
        report = quantize_(
            quantized, weights=word, activations=word, scale="channel", data=splits.train.images[:512].split(128)
        )
        levels = {change.levels for change in report.converted if change.was != "add"}
        assert levels == {2 ** int(word[0])}
        assert 100 * (errors(quantized) - before) / held_out <= points, word


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cnn", "resnet"])
def test_it_freezes_without_training(kind: str) -> None:
    splits = lehr.data.load("digits")
    model = copy.deepcopy(trained(kind, True))
    quantize_(model, weights="4bit", activations="4bit", data=splits.train.images[:512].split(128))
    net = lehr.freeze(model, splits.test.images)
    assert all("BatchNorm puts a sum within rounding of a threshold" in why for why in net.inexact)
    with torch.no_grad():
        assert torch.equal(net.predict(splits.test.images), model(splits.test.images).argmax(1))
    assert (net.predict(splits.test.images) == splits.test.labels).double().mean() > 0.95


@pytest.mark.slow
def test_ternary_training_is_not_ruined_by_a_calibrated_start() -> None:
    """Scales fitted behind BatchNorm's old statistics would be several times too large, and activations 0."""
    splits = lehr.data.load("digits")
    wrong = {}
    for data in (None, splits.train.images[:512].split(128)):
        wrong[data is not None] = 0
        for seed in range(2):
            model = copy.deepcopy(trained("resnet", True))
            quantize_(model, weights="ternary", activations="ternary", scale="channel", data=data)
            torch.manual_seed(seed)
            wrong[data is not None] += errors(fit(model.train(), epochs=4, rate=3e-3))
    assert wrong[True] <= 1.5 * wrong[False]  # see the lab notebook for how good it is


class TestCorrection:
    """Quantization shifts the mean of a channel; biases and BatchNorm take the shift away."""

    def outputs(self, model: nn.Module, path: str) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        hook = model.get_submodule(path).register_forward_hook(lambda _, __, output: seen.append(output.detach()))
        model(PIXELS)
        hook.remove()
        return torch.cat(seen).transpose(0, 1).flatten(1).double()

    @pytest.mark.parametrize("norm", [True, False], ids=["BatchNorm", "bias"])
    def test_each_channel_has_the_mean_of_the_float_network(self, norm: bool) -> None:
        torch.manual_seed(0)
        model = FunctionalResNet(norm=norm).eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.train().momentum = None
        model(PIXELS)  # now its statistics are those of the data
        model.eval()
        quantized, plain = copy.deepcopy(model), copy.deepcopy(model)
        bits = {"weights": "2bit", "activations": "2bit", "scale": "channel"}
        quantize_(quantized, **bits, data=[PIXELS])  # pyright: ignore[reportArgumentType]
        quantize_(plain, **bits, example=PIXELS)  # pyright: ignore[reportArgumentType]
        calibrate_(plain, [PIXELS])
        for path in ("layer1.bn1", "layer2.bn2") if norm else ("layer1.conv2", "layer2.down.0", "fc"):
            expected, far, near = (self.outputs(network, path) for network in (model, plain, quantized))
            assert (near.mean(1) - expected.mean(1)).norm() < 0.2 * (far.mean(1) - expected.mean(1)).norm()
            if norm:
                assert (near.var(1) - expected.var(1)).norm() < 0.2 * (far.var(1) - expected.var(1)).norm()

    def test_without_the_float_network_biases_and_statistics_stay(self) -> None:
        model = FunctionalResNet()
        quantize_(model, weights="2bit", activations="2bit", example=PIXELS)
        before = {name: value.clone() for name, value in model.state_dict().items() if "scale" not in name}
        calibrate_(model, [PIXELS])
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())

    def test_another_network_is_refused(self) -> None:
        with pytest.raises(ValueError, match="like must be what this Sequential was: its parameters have other names"):
            calibrate_(small(), [BATCH], like=nn.Linear(8, 8))

    @pytest.mark.slow
    def test_a_small_network_loses_far_less(self) -> None:
        splits = lehr.data.load("digits")
        errors_by = {}
        for like in (None, trained("shared", True, 8)):
            quantized = copy.deepcopy(trained("shared", True, 8))
            quantize_(quantized, weights="4bit", activations="4bit", scale="channel", example=splits.train.images[:2])
            calibrate_(quantized, splits.train.images[:512].split(128), like=like)
            errors_by[like is not None] = errors(quantized)
        assert errors_by[True] < 0.7 * errors_by[False]
