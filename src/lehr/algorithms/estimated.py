"""Any estimator, written as data in a recipe: the straight-through estimator, BNN, or your own.

An estimator has up to four keys; a noise is `none`, or a kind with its std or half-width::

    algorithm:
      class_path: lehr.algorithms.Estimated
      init_args:
        estimator: {step: ternary, forward: none, backward: {uniform: {half_width: 1}}}
        clip: 1.5

The recipe's schedule anneals the forward noise, if there is any.

>>> import torch, lehr
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> bnn = Estimated(EstimatorData(step="sign", backward={"uniform": {"half_width": 1}}), clip=1.0)
>>> bnn.convert_(model) is not None
True
>>> model[1]
Quantizer((-1, 1) at (0), forward=Dirac(), backward=Uniform(std=0.5774))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from lehr.algorithms.algorithm import Algorithm, check_choices, clip_, quantized_layers
from lehr.algorithms.description import Description, becomes, end_layers, levels_in_words
from lehr.convert import Conversion, Scale, quantize_
from lehr.estimator import Estimator, Mode
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Logistic, Noise, Normal, Triangular, Uniform
from lehr.precision import Precision, step_of
from lehr.quantizer import Quantizer
from lehr.scale import fit_scale

NOISES: dict[str, type[Noise]] = {
    "uniform": Uniform,
    "triangular": Triangular,
    "normal": Normal,
    "logistic": Logistic,
}
STEPS = {"ternary": MultiStep.ternary(), "sign": MultiStep.sign(), "heaviside": MultiStep.heaviside()}

Data = str | dict[str, dict[str, float]]  # a name, or a name with its numbers


@dataclass(frozen=True)
class EstimatorData:
    """An estimator in a recipe.

    Args:
        step: ternary, sign, heaviside, or {uniform: {bits: 4}}, which also takes `signed` and `step` of
            `MultiStep.uniform`.
        forward: none, or a noise such as {normal: {std: 0.3}} or {uniform: {half_width: 0.5}}.
        backward: the same; in the default, the windows at the thresholds of the ternary function are adjacent.
        mode: how values are computed under the forward noise, see `lehr.Estimator`.
    """

    step: Data = "ternary"
    forward: Data = "none"
    backward: Data = field(default_factory=lambda: {"uniform": {"half_width": 0.5}})
    mode: Mode = "expectation"

    def __hash__(self) -> int:
        return hash(repr(self))  # the dictionaries in it have no hash

    @property
    def value(self) -> Estimator:
        """The estimator."""
        return Estimator(
            _step(self.step), _noise("forward", self.forward), _noise("backward", self.backward), self.mode
        )


@dataclass(frozen=True)
class Estimated(Algorithm):
    """Weights and activations under an estimator.

    Args:
        estimator: the estimator of the weights.
        activations: the estimator of the activations; default: that of the weights.
        scale: fit the scale of each weight quantizer to the weights, per "tensor" or "channel", or keep it at 1
            ("fixed"); None is "fixed" for a new network and "channel" for a trained one, whose small weights would
            otherwise all become 0.
        clip: clip the shadow weights to +-clip after each step, in units of the scale; weights with more levels than
            -1, 0, 1 as far beyond their last level; None: do not.
        first: quantize the first layer.
        last: quantize the last layer.
        sums: the precision of what is added, as in `quantize_`: a word such as "8bit", or "float".
    """

    estimator: EstimatorData = field(default_factory=EstimatorData)
    activations: EstimatorData | None = None
    scale: Scale | None = None
    clip: float | None = None
    first: bool = True
    last: bool = True
    sums: str = "8bit"

    def __post_init__(self) -> None:
        check_choices(self)
        check_clip(self.clip)
        step_of(self.sums)  # ValueError for what is no precision
        for estimator in self.estimators:
            check_learns(estimator)

    @property
    def estimators(self) -> tuple[Estimator, Estimator]:
        """The estimators of weights and activations."""
        return self.estimator.value, (self.activations or self.estimator).value

    def describe(self) -> Description:
        """Return its row, under the estimator's usual name: BNN, STE, or ANA if there is forward noise."""
        return describe_estimators(*self.estimators, ends=(self.first, self.last))

    @property
    def takes_rules(self) -> bool:
        """Precisions by path have the noise of the rest."""
        return True

    def convert_(
        self, model: nn.Module, *, trained: bool = False, rules: Mapping[str, Precision] | None = None
    ) -> Conversion:
        """Quantize in place; initialise weights that are not `trained` around the thresholds, as in the paper."""
        ends = self.first, self.last
        return convert_under_(
            model, *self.estimators, self.scale, trained=trained, ends=ends, sums=self.sums, rules=rules
        )

    def after_step_(self, model: nn.Module) -> None:
        """Clip the shadow weights."""
        if self.clip is not None:
            clip_(model, self.clip)


def convert_under_(
    model: nn.Module,
    weights: Estimator,
    activations: Estimator,
    scale: Scale | None,
    *,
    trained: bool,
    ends: tuple[bool, bool],
    sums: Precision = "8bit",
    rules: Mapping[str, Precision] | None = None,
) -> Conversion:
    """Quantize weights and activations under estimators.

    Args:
        model: the network, which is changed in place.
        weights: the estimator of the weights.
        activations: the estimator of the activations.
        scale: see `Estimated`.
        trained: keep the weights; else initialise them around the thresholds.
        ends: whether to quantize the first and the last layer.
        sums: the precision of what is added, see `quantize_`.
        rules: precisions by path. A layer with more levels than the others keeps new weights as torch initialises them,
            and gets a scale that fits them: thresholds far from 0 are no good start.
    """
    conversion = quantize_(
        model,
        weights=Quantizer(weights),
        activations=Quantizer(activations),
        sums=sums,
        skip_first=not ends[0],
        skip_last=not ends[1],
        scale=scale or ("channel" if trained else "fixed"),
        rules=rules,
    )
    if not trained:
        for _, layer in quantized_layers(model):
            if rules and len(layer.quantizer.levels) > len(weights.step.levels):
                layer.quantizer.scale = fit_scale(layer.weight, layer.quantizer, per_channel=True)
            else:
                layer.reset_parameters()
    return conversion


def describe_estimators(weights: Estimator, activations: Estimator, *, ends: tuple[bool, bool]) -> Description:
    """Return the row of a quantization under estimators.

    Args:
        weights: the estimator of the weights.
        activations: the estimator of the activations.
        ends: whether the first and the last layer are quantized.
    """
    noisy = [side for side in (weights, activations) if side.forward.std > 0]
    name, variant = ("ANA", _noise_variant(weights, noisy)) if noisy else _straight_through(weights, activations)
    return Description(
        name,
        variant,
        levels_in_words(weights.step.levels),
        levels_in_words(activations.step.levels),
        end_layers(*ends),
        estimator=str(weights),
        becomes=becomes(weights=True, activations=True),
        noisy=bool(noisy),
    )


def _noise_variant(weights: Estimator, noisy: Sequence[Estimator]) -> str:
    """Return what is unusual about ANA's forward noise: its kind, its mode, on which side it is."""
    kind = type(noisy[0].forward).__name__.lower()
    parts = [] if kind == "uniform" else [kind]
    parts += [] if noisy[0].mode == "expectation" else [noisy[0].mode]
    parts += [] if len(noisy) == 2 else [f"{'weights' if noisy[0] is weights else 'activations'} alone"]
    return ", ".join(parts)


def _straight_through(weights: Estimator, activations: Estimator) -> tuple[str, str]:
    """Return the name and the variant of an estimator without forward noise."""
    backward = weights.backward
    if weights.step == activations.step == MultiStep.sign():
        return "BNN", ""
    if not isinstance(backward, Uniform):
        return "STE", type(backward).__name__.lower()
    usual = math.isclose(float(backward.w), 0.5)  # the windows at neighbouring thresholds are adjacent
    return "STE", "" if usual else f"half-width {float(backward.w):.3g}"


def check_clip(clip: float | None) -> None:
    """Raise ValueError unless `clip` is positive or None."""
    if clip is not None and not 0 < clip < math.inf:
        raise ValueError(f"clip must be positive, or None for no clipping, got {clip}")


def check_learns(estimator: Estimator) -> None:
    """Raise ValueError if an estimator has no gradient."""
    if not estimator.backward.std > 0:
        raise ValueError("without backward noise there is no gradient: give a backward_std above 0")


def _step(data: Data) -> MultiStep:
    name, numbers = _named(data)
    if name == "uniform":
        known = {"bits", "signed", "step"}
        if not {"bits"} <= numbers.keys() <= known:
            raise ValueError(f"a uniform step needs bits, and may have signed and step, got {numbers}")
        return MultiStep.uniform(int(numbers["bits"]), bool(numbers.get("signed", True)), numbers.get("step", 1.0))
    if name not in STEPS or numbers:
        raise ValueError(f"step must be one of {', '.join(STEPS)}, or {{uniform: {{bits: 4}}}}, got {data!r}")
    return STEPS[name]


def _noise(side: str, data: Data) -> Noise:
    name, numbers = _named(data)
    if name == "none" and not numbers:
        return Dirac()
    kind = NOISES.get(name)
    if kind is not None and numbers.keys() == {"std"}:
        return kind(numbers["std"])
    if kind in (Uniform, Triangular) and numbers.keys() == {"half_width"}:
        return (Uniform if kind is Uniform else Triangular).half_width(numbers["half_width"])
    raise ValueError(
        f"{side} must be none, or a noise ({', '.join(NOISES)}) with a std or, if bounded, a half_width, such as "
        f"{{uniform: {{half_width: 1}}}}, got {data!r}"
    )


def _named(data: Data) -> tuple[str, dict[str, float]]:
    if isinstance(data, str):
        return data, {}
    if len(data) != 1:
        raise ValueError(f"a noise or a step must have one name, got {data!r}")
    ((name, numbers),) = data.items()
    return name, numbers
