"""What becomes of each part of a model when it is quantized: decided before anything is changed.

A part is a module with weights, an activation module, or a call in a forward. `decide` gives a `Decision` for each, in
the model's order: the quantizer it gets, fitted to its weights, or why it is kept. Errors come here, so a model that
cannot be quantized as asked is left as it was.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from lehr.additions import ADDITION
from lehr.calls import CALLS, is_opened
from lehr.layers import AbstractQuantizer, Conv1d, Conv2d, Conv3d, Linear, QuantizedWeight, Quantizer
from lehr.nonlinear import KINDS, OUTPUTS, is_never_negative, name_of
from lehr.precision import FEW_LEVELS, Precision, Rules, template_of, unsigned
from lehr.scale import fit_scale
from lehr.transposed import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from lehr.uses import LAYERS, Observation, Use

QUANTIZED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: Linear,
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
}
# Normalisations have weights, one a channel, that no quantizer is for.
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_REACH = 8.5  # what sums are made of lies within about +-8 until data say more: BatchNorm's results do
Scale = Literal["tensor", "channel", "fixed"]
Skip = str | Iterable[str] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Change:
    """What became of one module or call: `now` is a class name or "kept", `why` says why it was kept."""

    module: str
    was: str
    now: str
    levels: int | None = None
    why: str = ""


@dataclass(frozen=True, eq=False)
class Call:
    """A place in a module's forward where it calls a function, or uses an activation module that is used elsewhere too.

    Args:
        path: where its quantizer will be
        owner: the path of the module whose forward it is in
        name: of its quantizer
        use: what was seen there
    """

    path: str
    owner: str
    name: str
    use: Use


@dataclass(frozen=True, eq=False)
class Decision:
    """What becomes of a module or a call; without a quantizer it is kept.

    `follows` says that the activation is computed and its result quantized; else the quantizer takes its place.
    `of_input` says that the quantizer is for what a layer reads, not for its weights.
    """

    change: Change
    quantizer: AbstractQuantizer | None = None
    module: nn.Module | None = None
    call: Call | None = None
    follows: bool = False
    of_input: bool = False


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of `quantize_`, checked."""

    weights: AbstractQuantizer | None
    activations: AbstractQuantizer | None
    sums: AbstractQuantizer | None
    replace: tuple[type[nn.Module], ...]
    skip: Skip
    skip_first: bool
    skip_last: bool
    scale: Scale
    rules: Mapping[str, Precision]
    split: bool  # whether each use of a shared activation module gets a quantizer of its own


@dataclass(frozen=True, eq=False)
class Plan:
    """All decisions, the calls they are about, and what was seen."""

    decisions: tuple[Decision, ...]
    calls: Calls
    seen: Observation

    @property
    def changed(self) -> list[Decision]:
        """Those that change something."""
        return [decision for decision in self.decisions if decision.quantizer is not None]


def decide(model: nn.Module, seen: Observation, request: Request) -> Plan:
    """Decide what becomes of each module and call of the model, in its order; nothing is changed."""
    decider = _Decider(model, seen, request)
    return Plan(tuple(decider.decisions()), decider.calls, seen)


class Calls:
    """The calls in the forwards of a model, and their order in training and in eval mode."""

    def __init__(self, modules: Mapping[str, nn.Module], seen: Observation, *, split: bool, sums: bool) -> None:
        places: dict[str, set[object]] = {}
        for use in seen.uses:
            if use.module is not None and not is_opened(modules[use.module]):
                places.setdefault(use.module, set()).add((use.owner, use.place))
        # A container calls what it contains, and would call the quantizers too.
        whole = {use.module for use in seen.uses if isinstance(modules[use.owner], nn.Sequential)}
        self.split = {path for path, used in places.items() if split and len(used) > 1 and path not in whole}
        self.order: dict[str, dict[bool, list[Call]]] = {}
        self.own: set[str] = set()  # owners whose additions stay as they are
        self.unclear: dict[str, list[str]] = {}  # owners whose calls differ from run to run, and what they call
        for owner in dict.fromkeys(owner for runs in seen.runs.values() for owner in runs):
            if is_opened(modules[owner]):
                continue  # its calls are quantized already
            modes = {training: runs.get(owner, []) for training, runs in seen.runs.items()}
            if not sums or not any(_is_sum(use) for runs in modes.values() for run in runs for use in run):
                modes = self._without_additions(owner, modes)
            self._add(owner, modes)

    def of(self, owner: str) -> list[Call]:
        """The calls of one forward, each once."""
        order = self.order.get(owner, {})
        return list(dict.fromkeys(call for training in sorted(order) for call in order[training]))

    def __iter__(self) -> Iterator[Call]:
        for owner in self.order:
            yield from self.of(owner)

    def _add(self, owner: str, modes: dict[bool, list[list[Use]]]) -> None:
        calls: dict[object, Call] = {}
        names: Counter[str] = Counter()
        order: dict[bool, list[Call]] = {}
        for training in sorted(modes):
            runs = [[use for use in run if self._counts(use)] for run in modes[training]]
            keyed = [_keyed(run) for run in runs]
            if any(list(run) != list(keyed[0]) for run in keyed[1:]):
                if any(use.name == ADDITION for run in runs for use in run):  # without its additions it may be clear
                    return self._add(owner, self._without_additions(owner, modes))
                self.unclear[owner] = sorted({use.name for run in keyed for use in run.values()})
                return None
            for key, use in (keyed[0] if keyed else {}).items():
                if key not in calls:
                    number, names[use.name] = names[use.name], names[use.name] + 1
                    name = f"{use.name}_{number}" if number else use.name
                    path = f"{owner}.{CALLS}.{name}" if owner else f"{CALLS}.{name}"
                    calls[key] = Call(path, owner, name, use)
                order.setdefault(training, []).append(calls[key])
        if calls:
            only = next(iter(order.values()))
            self.order[owner] = {mode: order.get(mode, [] if mode in modes else only) for mode in (False, True)}
        return None

    def _without_additions(self, owner: str, modes: dict[bool, list[list[Use]]]) -> dict[bool, list[list[Use]]]:
        if any(use.name == ADDITION for runs in modes.values() for run in runs for use in run):
            self.own.add(owner)
        return {mode: [[use for use in run if use.name != ADDITION] for run in runs] for mode, runs in modes.items()}

    def _counts(self, use: Use) -> bool:
        return not use.is_product and (use.module is None or use.module in self.split)


def _is_sum(use: Use) -> bool:
    """Whether the use is an addition of two values inside the network."""
    return use.name == ADDITION and not (use.adds_constant or use.is_output)


def _keyed(run: list[Use]) -> dict[object, Use]:
    """The uses of one run by where they stand in the source and how often that place was met before."""
    met: Counter[object] = Counter()
    keyed = {}
    for use in run:
        place = (use.name, use.module, use.place)
        keyed[(place, met[place])] = use
        met[place] += 1
    return keyed


class _Decider:
    def __init__(self, model: nn.Module, seen: Observation, request: Request) -> None:
        self.model = model
        self.seen = seen
        self.request = request
        self.modules = dict(model.named_modules())
        self.calls = Calls(
            self.modules, seen, split=request.split, sums=request.sums is not None or bool(request.rules)
        )
        self.names: dict[nn.Module, list[str]] = {}  # a shared module has several paths
        for path, module in model.named_modules(remove_duplicate=False):
            self.names.setdefault(module, []).append(path)
        self.layers = [path for path, module in self.modules.items() if isinstance(module, LAYERS)]
        self.skipped = _skipper(request.skip, self.names, self.calls)
        parts = [path for paths in self.names.values() for path in paths if path] + [call.path for call in self.calls]
        self.rules = Rules(request.rules, self.layers, parts)
        self.fitted: dict[int, AbstractQuantizer] = {}  # layers with one tied weight share one quantizer
        self.outputs = {use.module for use in seen.uses if use.is_output and use.module is not None}

    def decisions(self) -> Iterator[Decision]:
        yield from self._below("", self.model, set())

    def _below(self, path: str, module: nn.Module, met: set[nn.Module]) -> Iterator[Decision]:
        """Of a module, what it holds, and the calls in its forward."""
        if module in met:
            return
        met.add(module)
        decision = self._module(path, module)
        if decision is not None:
            yield decision
            if isinstance(module, tuple(QUANTIZED)) and decision.quantizer is not None:
                yield from self._input(path, module)
        for name, child in module.named_children():
            yield from self._below(f"{path}.{name}" if path else name, child, met)
        if decision is None or decision.quantizer is None:
            yield from self._products(path, module)
            for call in self.calls.of(path):
                yield self._call(call)
            for name in self.calls.unclear.get(path, ()):
                yield _kept(f"{path}.{name}" if path else name, name, "its calls differ from run to run")

    def _module(self, path: str, module: nn.Module) -> Decision | None:
        was = type(module).__name__
        if isinstance(module, tuple(QUANTIZED)) and hasattr(module, "quantizer"):
            return _kept(path, was, "quantized already")
        if isinstance(module, tuple(QUANTIZED)):
            return self._layer(path, module)
        name = name_of(module)
        if isinstance(module, AbstractQuantizer):
            return None
        if name is not None or isinstance(module, self.request.replace):
            if is_opened(module):
                return _kept(path, was, "quantized already")
            if path in self.calls.split:
                return _kept(path, was, "each of its uses has a quantizer")
            return self._activation(path, was, name, module, self._is_output(path, name))
        has_weights = any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))
        if has_weights and not isinstance(module, _NORMS):
            end = self._end(path)
            return _kept(path, was, end or "weights of this kind stay")
        return None

    def _layer(self, path: str, module: nn.Module) -> Decision:
        was, names = type(module).__name__, self.names[module]
        rule = self.rules.pattern_of(*names)
        template = self.request.weights
        if self.skipped(path, module):
            return _kept(path, was, "skipped")
        if rule is not None:
            template = template_of(self.rules.rules[rule], like=template)
        elif self._end(path):
            return _kept(path, was, self._end(path))
        if template is None:
            return _kept(path, was, f"rule {rule}: float" if rule else "weights stay")
        if type(module) not in QUANTIZED:
            base = next(base for base in QUANTIZED if isinstance(module, base))
            return _kept(path, was, f"a subclass of {base.__name__}")
        weight = cast(Tensor, module.weight)
        if id(weight) not in self.fitted:
            kind = cast(type[QuantizedWeight], QUANTIZED[type(module)])
            self.fitted[id(weight)] = _fitted(template, path, weight, self.request.scale, kind.outputs_at)
        quantizer = self.fitted[id(weight)]
        return Decision(Change(path, was, was, len(quantizer.levels)), quantizer, module)

    def _call(self, call: Call) -> Decision:
        if call.use.name == ADDITION:
            return self._sum(call)
        module = None if call.use.module is None else self.modules[call.use.module]
        is_output = call.use.is_output and call.use.name in OUTPUTS
        return self._activation(call.path, call.use.name, call.use.name, module, is_output, call)

    def _activation(
        self, path: str, was: str, name: str | None, module: nn.Module | None, is_output: bool, call: Call | None = None
    ) -> Decision:
        kind = type(module) if module is not None else KINDS[cast(str, name)]
        if not issubclass(kind, self.request.replace):
            return _kept(path, was, "output of the network" if is_output else "replace does not name it", call)
        own = self.modules[path if call is None else call.owner]
        rule = self.rules.pattern_of(*(self.names[own] if call is None else [path]))
        template = self.request.activations
        if self.skipped(path, own):
            return _kept(path, was, "skipped", call)
        if rule is not None:
            template = template_of(self.rules.rules[rule], like=template)
        elif is_output:
            return _kept(path, was, "output of the network", call)
        if template is None:
            return _kept(path, was, f"rule {rule}: float" if rule else "activations stay", call)
        quantizer, follows = copy.deepcopy(template), False
        if type(quantizer) is Quantizer and len(quantizer.levels) > FEW_LEVELS and name is not None:
            if is_never_negative(name, module):
                quantizer = unsigned(quantizer)
            follows = name != "relu" or quantizer.levels[0] < 0
        kind_now = type(quantizer).__name__
        change = Change(path, was, f"{was} + {kind_now}" if follows else kind_now, len(quantizer.levels))
        return Decision(change, quantizer, module if call is None else None, call, follows)

    def _sum(self, call: Call) -> Decision:
        """Both sides of an addition get one quantizer; the bits of a rule for all of a module are not for its sums."""
        rule, template = self.rules.pattern_of(call.path), self.request.sums
        if rule == self.rules.pattern_of(*self.names[self.modules[call.owner]]) and rule is not None:
            rule = rule if template_of(self.rules.rules[rule]) is None else None
        if call.use.adds_constant:
            return _kept(call.path, ADDITION, "it adds a constant", call)
        if self.skipped(call.path, self.modules[call.owner]):
            return _kept(call.path, ADDITION, "skipped", call)
        if rule is not None:
            template = template_of(self.rules.rules[rule])
        elif call.use.is_output:
            return _kept(call.path, ADDITION, "output of the network", call)
        if template is None:
            return _kept(call.path, ADDITION, f"rule {rule}: float" if rule else "sums stay", call)
        quantizer = _within_reach(template)
        change = Change(call.path, ADDITION, type(quantizer).__name__, len(quantizer.levels))
        return Decision(change, quantizer, None, call)

    def _input(self, path: str, layer: nn.Module) -> Iterator[Decision]:
        """A quantizer for what a layer reads if that is what another layer gives, as in linear bottlenecks."""
        if self.request.sums is None or not self.seen.linear.intersection(self.names[layer]):
            return
        path = f"{path}.input_quantizer"
        if self.skipped(path, layer):
            yield _kept(path, "input", "skipped")
            return
        quantizer = _within_reach(self.request.sums)
        change = Change(path, "input", type(quantizer).__name__, len(quantizer.levels))
        yield Decision(change, quantizer, layer, of_input=True)

    def _products(self, path: str, module: nn.Module) -> Iterator[Decision]:
        """Products that a forward computes by functions; a module with weights of its own is told already."""
        if isinstance(module, LAYERS) or any(parameter.ndim > 1 for parameter in module.parameters(recurse=False)):
            return
        runs = self.seen.runs.get(False, {}).get(path, [])
        for name in dict.fromkeys(use.name for run in runs for use in run if use.is_product):
            why = "a call: its weights stay" if name.startswith(("linear", "conv")) else "a product of activations"
            yield _kept(f"{path}.{name}" if path else name, name, why)

    def _end(self, path: str) -> str:
        """Why a layer at an end of the network is kept; empty if it is not."""
        if self.request.skip_first and self.layers and path == self.layers[0]:
            return "first layer"
        return "last layer" if self.request.skip_last and self.layers and path == self.layers[-1] else ""

    def _is_output(self, path: str, name: str | None) -> bool:
        if name not in OUTPUTS:
            return False
        if self.seen.runs:
            return path in self.outputs
        order = list(self.modules)  # nothing was seen: one behind all layers is taken for the end
        return bool(self.layers) and order.index(path) > order.index(self.layers[-1])


def _kept(path: str, was: str, why: str, call: Call | None = None) -> Decision:
    return Decision(Change(path, was, "kept", None, why), call=call)


def _within_reach(template: AbstractQuantizer) -> AbstractQuantizer:
    """A copy, with a scale for values of BatchNorm unless it has one."""
    quantizer = copy.deepcopy(template)
    if type(quantizer) is Quantizer and quantizer.scale is None and len(quantizer.levels) > FEW_LEVELS:
        largest = max(abs(level) for level in quantizer.levels)
        quantizer.scale = torch.tensor(2.0 ** math.floor(math.log2(_REACH / largest)))
    return quantizer


def _fitted(template: AbstractQuantizer, path: str, weight: Tensor, scale: Scale, outputs_at: int) -> AbstractQuantizer:
    quantizer = copy.deepcopy(template)
    if scale != "fixed":
        try:
            fitted = fit_scale(weight.transpose(0, outputs_at), template, per_channel=scale == "channel")
            quantizer.scale = fitted.transpose(0, outputs_at) if fitted.ndim else fitted
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return quantizer.to(weight.device, weight.dtype)


def _skipper(skip: Skip, names: Mapping[nn.Module, list[str]], calls: Calls) -> Callable[[str, nn.Module], bool]:
    """Whether the module at a path is skipped; of a call, the module is that whose forward makes it."""
    if callable(skip):
        return skip
    by_name = {path: module for module, several in names.items() for path in several}
    paths = (skip,) if isinstance(skip, str) else tuple(skip)
    known = [*by_name, *(call.path for call in calls)]
    unknown = [path for path in paths if path not in known]
    if unknown:
        raise ValueError(
            f"skip names {unknown[0]!r}, which is no module of the model: {', '.join(filter(None, known))}"
        )
    kept = {module for path in paths if path in by_name for module in by_name[path].modules()}
    return lambda path, module: module in kept or path in paths
