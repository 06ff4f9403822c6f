"""What every training algorithm must do; a new method joins the contract with one line in ALGORITHMS."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lehr
from lehr.algorithms import (
    ANA,
    INQ,
    LSQ,
    STTN,
    TTQ,
    TWN,
    ABCNet,
    Algorithm,
    BinaryConnect,
    Estimated,
    FullPrecision,
    GroupNet,
    GXNORNet,
    XNORNet,
)
from lehr.algorithms.algorithm import quantized_layers
from lehr.algorithms.ana import NoiseName
from lehr.algorithms.estimated import EstimatorData
from lehr.annealing import AllAtOnce, AnnealingWarning, Hierarchical, LastFirst, SameEnd, SameStart, Schedule
from lehr.batchnorm import reestimate_
from lehr.data import Batches, load
from lehr.deploy import FloatWarning, FreezeError
from lehr.deploy import operations as deploy
from lehr.deploy.operations import Weights
from lehr.expectation import Mode
from lehr.models import MLP, VGG
from lehr.training.measures import noisy_quantizers
from lehr.training.recipes import methods, named


@dataclasses.dataclass(frozen=True)
class Case:
    """An algorithm, the levels of its final weights, and the test accuracy it reaches on digits.

    `levels` are those in units of the scale, or how many there are, or "several" if layers differ; None: floats.
    `frozen` is what `freeze` makes of it: a network of integers, one whose weights alone are quantized, one with floats
    at its ends, or floats; else why it makes nothing. `reestimate`: whether BatchNorm's statistics are estimated anew
    in the end. `shadows`: whether it has float weights, which those of a trained network can become.
    """

    algorithm: Algorithm
    levels: Sequence[float] | int | Literal["several"] | None
    accuracy: float
    lr: float = 0.01
    frozen: Literal["integer", "mixed", "ends in float", "float"] | str = "integer"
    reestimate: bool = False
    shadows: bool = True


def method(name: str) -> Algorithm:
    """As `lehr compare --methods` runs it."""
    return named(f"digits-{name}").algorithm


ALGORITHMS = {
    "full precision": Case(FullPrecision(), None, 0.95, frozen="float"),
    "ANA": Case(ANA(clip=1.0), (-1, 0, 1), 0.90),
    **{
        f"ANA, {noise} noise, {mode}": Case(ANA(noise=noise, mode=mode, clip=1.0), (-1, 0, 1), 0.88)
        for noise in get_args(NoiseName)
        for mode in get_args(Mode)
        if mode == "expectation" or noise in ("uniform", "normal")  # one with ends and one without, for the other modes
    },
    "ANA, first and last layer in full precision": Case(
        ANA(first=False, last=False), (-1, 0, 1), 0.90, frozen="ends in float"
    ),
    "STE": Case(method("ste"), (-1, 0, 1), 0.88),
    "BNN": Case(method("bnn"), (-1, 1), 0.85),
    "BinaryConnect": Case(BinaryConnect(), (-1, 1), 0.90, frozen="mixed"),
    "BinaryConnect, stochastic": Case(
        BinaryConnect(stochastic=True), (-1, 1), 0.88, lr=0.1, frozen="mixed", reestimate=True
    ),
    "TWN": Case(TWN(), (-1, 0, 1), 0.93, frozen="mixed"),
    "TTQ": Case(TTQ(), 3, 0.93, frozen="mixed"),
    "STTN": Case(STTN(), (-1, 0, 1), 0.90),
    "LSQ, 2 bits": Case(LSQ(), "several", 0.92),
    "LSQ, 4 bits": Case(LSQ(bits=4, end_bits=4), 16, 0.93),
    "INQ": Case(INQ(), 17, 0.93, frozen="mixed"),
    "INQ, 4 bits, random": Case(INQ(bits=4, partition="random"), 9, 0.93, frozen="mixed"),
    "INQ, ternary": Case(method("inq-ternary"), (-1, 0, 1), 0.88, frozen="mixed"),
    "XNOR-Net": Case(XNORNet(), (-1, 1), 0.92, frozen="layers.4 .*: its input scale K is a float for each position"),
    "XNOR-Net, no input scale": Case(XNORNet(input_scale=False), (-1, 1), 0.92, frozen="ends in float"),
    "GXNOR-Net": Case(GXNORNet(), (-1, 0, 1), 0.90, shadows=False),
    "GXNOR-Net, triangular": Case(GXNORNet(derivative="triangular"), (-1, 0, 1), 0.88, shadows=False),
    "GXNOR-Net, binary": Case(GXNORNet(weights=0, activations=0, reach=1.0), (-1, 1), 0.82, shadows=False),
    "GXNOR-Net, five states": Case(
        GXNORNet(weights=2, activations=2, window=0.25, reach=0.25), (-1, -0.5, 0, 0.5, 1), 0.90, shadows=False
    ),
    "ABC-Net": Case(ABCNet(), None, 0.92, frozen="ends in float"),
    "ABC-Net, per channel": Case(ABCNet(bases=2, activations=2, scale="channel"), None, 0.92, frozen="ends in float"),
    "Group-Net, layers": Case(GroupNet(branches=3), (-1, 1), 0.92, frozen="ends in float"),
    "Group-Net, groups": Case(GroupNet(branches=3, decomposition="group"), (-1, 1), 0.92, frozen="ends in float"),
}
EPOCHS = 4


def network() -> MLP:
    torch.manual_seed(0)
    digits = load("digits").train
    return MLP((1, 8, 8), hidden=(128, 128), mean=digits.mean, std=digits.std, input_bits=8)


class Training:
    """Train in a plain loop that calls an algorithm like the training loop; all noise is 0 after half of it."""

    def __init__(self, case: Case) -> None:
        self.algorithm, self.reestimate = case.algorithm, case.reestimate
        self.splits = load("digits")
        self.model = network()
        self.algorithm.convert_(self.model)
        self.optimizer = self.algorithm.wrap(torch.optim.Adam(self.model.parameters(), lr=case.lr), self.model)
        noisy = self.algorithm.anneals and any(isinstance(module, lehr.Quantizer) for module in self.model.modules())
        self.annealer = lehr.Annealer(self.model, lehr.annealing.Window(0, EPOCHS / 2)) if noisy else None

    def epochs(self, first: int, last: int) -> None:
        batches = Batches(self.splits.train, 64, shuffle=True, drop_last=True)
        for epoch in range(first, last):
            torch.manual_seed(epoch)
            batches.set_epoch(epoch)
            if self.annealer is not None:
                self.annealer.seek(epoch)
            self.algorithm.before_epoch_(self.model, epoch, EPOCHS)
            self.model.train()
            for images, labels in batches:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(images), labels).backward()
                self.optimizer.step()
                self.algorithm.after_step_(self.model)
            if self.annealer is not None:
                self.annealer.seek(epoch + 1)
        if last == EPOCHS:
            self.algorithm.after_training_(self.model)
            if self.reestimate:
                reestimate_(self.model, self.splits.train.images.split(256))

    @torch.no_grad()
    def accuracy(self) -> float:
        self.model.eval()
        return float((self.model(self.splits.test.images).argmax(1) == self.splits.test.labels).float().mean())


@pytest.fixture(scope="module", params=ALGORITHMS, ids=lambda name: name)
def case(request: pytest.FixtureRequest) -> Case:
    return ALGORITHMS[request.param]


@pytest.fixture(scope="module")
def trained(case: Case) -> Training:
    training = Training(case)
    training.epochs(0, EPOCHS)
    return training


def test_it_learns_the_digits(case: Case, trained: Training) -> None:
    assert trained.accuracy() >= case.accuracy


def test_its_weights_end_at_its_levels(case: Case, trained: Training) -> None:
    layers = dict(quantized_layers(trained.model.eval()))
    assert bool(layers) == (case.levels is not None)
    for layer in layers.values():
        quantizer, values = layer.quantizer, layer.quantized_weight
        levels = quantizer.levels
        assert case.levels in (levels, len(levels), "several")
        scale = torch.ones(()) if quantizer.scale is None else quantizer.scale
        assert torch.equal(values, torch.tensor(levels)[quantizer.codes(layer.weight).long()] * scale)
        assert len(values.unique()) > 1


def test_no_noise_is_left_at_the_end(case: Case, trained: Training) -> None:
    assert not noisy_quantizers(trained.model)


def test_it_freezes_to_what_it_claims(case: Case, trained: Training) -> None:
    images = trained.splits.test.images
    if case.frozen not in ("integer", "mixed", "ends in float", "float"):
        with pytest.raises(FreezeError, match=case.frozen):
            lehr.freeze(trained.model.eval(), images[:1])
        return
    warned = pytest.warns(FloatWarning) if case.frozen in ("mixed", "float") else contextlib.nullcontext()
    with warned:
        net = lehr.freeze(trained.model.eval(), images[:1])
    kinds = [net.values[layer.name].kind for layer in net.operations if isinstance(layer, deploy.Linear)]
    assert set(kinds) == {"integer"} if case.frozen == "integer" else "float" in kinds
    quantized = [isinstance(layer.weights, Weights) for layer in net.operations if isinstance(layer, deploy.Linear)]
    assert any(quantized) == (case.frozen != "float")
    with torch.no_grad():
        theirs = trained.model(images)
    ours = torch.as_tensor(net.run(images))
    assert (ours.argmax(1) == theirs.argmax(1)).float().mean() > 0.995
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_it_trains_a_vgg(case: Case) -> None:
    torch.manual_seed(0)
    model = VGG((1, 8, 8), width=1 / 32, mean=(0.5,), std=(0.5,), input_bits=8)
    case.algorithm.convert_(model)
    lr = 0.01 if case.shadows else 0.1  # of weights that jump, only some do so in a step
    optimizer = case.algorithm.wrap(torch.optim.Adam(model.parameters(), lr=lr), model)
    images, labels = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8), torch.arange(16) % 10
    case.algorithm.before_epoch_(model, 0, 10)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    case.algorithm.after_step_(model)
    still = [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]
    assert not still


def test_saved_and_loaded_in_the_middle_it_ends_with_the_same_bits(
    case: Case, trained: Training, tmp_path: Path
) -> None:
    half = Training(case)
    half.epochs(0, EPOCHS // 2)
    torch.save({"model": half.model.state_dict(), "optimizer": half.optimizer.state_dict()}, tmp_path / "half")
    saved = torch.load(tmp_path / "half", weights_only=True)
    resumed = Training(case)
    resumed.model.load_state_dict(saved["model"])
    resumed.optimizer.load_state_dict(saved["optimizer"])
    resumed.epochs(EPOCHS // 2, EPOCHS)
    theirs = trained.model.state_dict()
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


class Mixed(TorchDispatchMode):
    """Records operations that mix tensors of the CPU and of another device, which GPUs refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        if len({tensor.device.type for tensor in tensors}) > 1 and "copy" not in str(func):
            self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


def test_a_step_stays_on_its_device(case: Case) -> None:
    model = network()
    case.algorithm.convert_(model)
    case.algorithm.before_epoch_(model, EPOCHS - 1, EPOCHS)
    model.to("meta")
    optimizer = case.algorithm.wrap(torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), model)
    drawn = isinstance(case.algorithm, GXNORNet)  # by a generator, which this device has none of
    with Mixed() as mixed:
        model(torch.empty(8, 1, 8, 8, dtype=torch.uint8, device="meta")).square().mean().backward()
        if not drawn:
            optimizer.step()
        case.algorithm.after_step_(model)
    assert not mixed.seen


def test_evaluation_has_no_randomness(case: Case, trained: Training) -> None:
    images = trained.splits.test.images[:50]
    trained.model.eval()
    assert torch.equal(trained.model(images), trained.model(images))


def test_a_trained_network_keeps_its_weights(case: Case) -> None:
    model = network()
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    case.algorithm.convert_(model, trained=True)
    after = list(model.parameters())
    for name, weight in weights.items():
        kept = any(parameter.shape == weight.shape and torch.equal(parameter, weight) for parameter in after)
        assert kept == (case.shadows or weight.ndim == 1), name


def test_what_started_from_a_trained_network_loads_into_a_new_one(case: Case) -> None:
    started, loaded = network(), network()
    case.algorithm.convert_(started, trained=True)
    case.algorithm.convert_(loaded)
    loaded.load_state_dict(started.state_dict())
    images = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(loaded.eval()(images), started.eval()(images), rtol=0, atol=0)


def test_every_method_is_in_the_contract() -> None:
    assert {type(method(name)) for name in methods()} <= {type(case.algorithm) for case in ALGORITHMS.values()}


def test_it_is_a_value(case: Case) -> None:
    assert case.algorithm == dataclasses.replace(case.algorithm)  # pyright: ignore[reportArgumentType]
    assert hash(case.algorithm) == hash(dataclasses.replace(case.algorithm))  # pyright: ignore[reportArgumentType]


# ANA itself.


def test_new_weights_start_around_the_thresholds_and_trained_ones_are_scaled_to_their_levels() -> None:
    new, trained = network(), network()
    ANA().convert_(new)
    ANA().convert_(trained, trained=True)
    for (_, fresh), (_, kept) in zip(quantized_layers(new), quantized_layers(trained), strict=True):
        assert fresh.quantizer.scale is None
        assert (fresh.weight.abs() - 0.5).abs().max() <= fresh.in_features**-0.5  # pyright: ignore[reportAttributeAccessIssue, reportOperatorIssue]
        assert kept.quantizer.scale is not None
        assert kept.quantizer.scale.shape == (kept.weight.shape[0], 1)
        assert (kept.eval().quantized_weight != 0).float().mean() > 0.3


@pytest.mark.parametrize(("scale", "shape"), [("tensor", ()), ("channel", (128, 1))])
def test_scale_says_what_is_fitted(scale: lehr.convert.Scale, shape: tuple[int, ...]) -> None:
    model = network()
    ANA(scale=scale).convert_(model, trained=True)
    fitted = next(layer for _, layer in quantized_layers(model)).quantizer.scale
    assert fitted is not None
    assert fitted.shape == shape


@pytest.mark.parametrize("noisy", ["weights", "activations"])
def test_the_noise_can_be_kept_from_weights_or_activations(noisy: Literal["weights", "activations"]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ANA(noisy=noisy).convert_(model)
    weights, activations = model[0].quantizer.forward_std, model[1].forward_std
    assert (weights > 0, activations > 0) == (noisy == "weights", noisy == "activations")


def test_clip_is_in_units_of_the_scale_and_touches_nothing_within() -> None:
    model = network()
    ANA(scale="channel").convert_(model, trained=True)
    layer: lehr.Linear = next(layer for _, layer in quantized_layers(model))  # pyright: ignore[reportAssignmentType]
    assert layer.quantizer.scale is not None
    with torch.no_grad():
        layer.weight.copy_(layer.quantizer.scale * torch.linspace(-3, 3, 64))
    before = layer.weight.clone()
    ANA(clip=2.0).after_step_(model)
    torch.testing.assert_close(layer.weight, before.clamp(-2 * layer.quantizer.scale, 2 * layer.quantizer.scale))
    inside = (before / layer.quantizer.scale).abs() < 1.99
    assert torch.equal(layer.weight[inside], before[inside])
    ANA().after_step_(model)  # no clip
    torch.testing.assert_close(layer.weight.abs().max(), 2 * layer.quantizer.scale.max())


def test_weights_with_more_levels_are_clipped_as_far_beyond_their_last_one() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))
    ends = Estimated(clip=1.5)
    ends.convert_(model, trained=True, rules={"0": "8bit"})
    layer: lehr.Linear = next(layer for _, layer in quantized_layers(model))  # pyright: ignore[reportAssignmentType]
    assert layer.quantizer.scale is not None
    with torch.no_grad():
        layer.weight.copy_(layer.quantizer.scale * torch.linspace(-200, 200, 64))
    ends.after_step_(model)
    clipped = torch.linspace(-200, 200, 64).clamp(-128.5, 128.5).expand(8, 64)
    torch.testing.assert_close(layer.weight / layer.quantizer.scale, clipped)


def test_levels_within_1_are_clipped_as_those_that_end_at_1() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))
    fine = Estimated(EstimatorData({"uniform": {"bits": 2, "step": 0.2}}), clip=0.5, scale="fixed")
    fine.convert_(model)
    layer: lehr.Linear = next(layer for _, layer in quantized_layers(model))  # pyright: ignore[reportAssignmentType]
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-2, 2, 64))
    fine.after_step_(model)
    torch.testing.assert_close(layer.weight[0], torch.linspace(-2, 2, 64).clamp(-0.5, 0.5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ANA(std=-1), "std must be finite and not negative, got -1"),
        (lambda: ANA(noisy="weight"), "noisy must be one of both, weights, activations, got 'weight'"),  # pyright: ignore[reportArgumentType]
        (lambda: ANA(backward_noise="cauchy"), "backward_noise must be one of uniform, .*, None, got 'cauchy'"),  # pyright: ignore[reportArgumentType]
        (lambda: ANA(clip=0), "clip must be positive, or None for no clipping, got 0"),
        (lambda: ANA(std=0), "without backward noise there is no gradient: give a backward_std above 0"),
        (lambda: ANA(backward_std=0), "without backward noise there is no gradient"),
    ],
)
def test_wrong_settings_raise_when_the_algorithm_is_made(make: Callable[[], ANA], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_clipped_weights_still_get_a_gradient_at_both_ends() -> None:
    model = network()
    ANA(std=0, backward_std=3**-0.5, weights="sign", activations="sign").convert_(model)
    layer = next(layer for _, layer in quantized_layers(model))
    with torch.no_grad():
        layer.weight.fill_(-3.0)[::2] = 3.0
    ANA(clip=1.0).after_step_(model)
    layer.quantized_weight.sum().backward()
    assert layer.weight.grad is not None
    assert bool((layer.weight.grad == 1).all())


@pytest.mark.parametrize("kind", [Hierarchical, LastFirst, SameStart, SameEnd, AllAtOnce])
@pytest.mark.parametrize("synchronous", [False, True])
def test_ana_learns_with_all_schedules_of_the_follow_up_synchronous_or_not(
    kind: type[Schedule], synchronous: bool
) -> None:
    training = Training(ALGORITHMS["ANA"])
    schedule = kind(EPOCHS if kind is AllAtOnce else EPOCHS / 3)
    training.annealer = lehr.Annealer(training.model, schedule, synchronous=synchronous)
    gone = pytest.warns(AnnealingWarning, match="get no gradient any more") if synchronous else contextlib.nullcontext()
    with gone:  # what synchronous annealing comes to
        training.epochs(0, EPOCHS)
    assert not noisy_quantizers(training.model)
    assert training.accuracy() > (0.7 if synchronous else 0.85)


def test_ste_is_ana_without_forward_noise() -> None:
    model = network()
    ANA(std=0, backward_noise="uniform", backward_std=3**-0.5, weights="sign", activations="sign").convert_(model)
    x = torch.linspace(-2, 2, 9, requires_grad=True)
    quantizer = next(module for module in model.modules() if isinstance(module, lehr.Quantizer))
    quantizer(x).sum().backward()
    slope: Tensor | None = x.grad
    assert slope is not None
    assert torch.equal(slope, ((x >= -1) & (x < 1)).float())  # Corollary 1
