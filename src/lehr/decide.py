"""What becomes of each part of a model when it is quantized: decided before anything is changed.

A part is a module with weights, an activation module, or a call in a forward. `decide` gives a `Decision` for each, in
the model's order: the quantizer it gets, fitted to its weights, or why it is kept. Errors come here, so a model that
cannot be quantized as asked is left as it was.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from lehr.additions import ADDITION
from lehr.calls import is_opened
from lehr.decisions import Calls, Change, ConversionPlan, Decision, FunctionCall, Request, Scale, Skip
from lehr.layers import Conv1d, Conv2d, Conv3d, Linear, QuantizedWeight
from lehr.nonlinear import KINDS, OUTPUTS, is_never_negative, name_of
from lehr.precision import FEW_LEVELS, Rules, template_of, unsigned
from lehr.quantizer import AbstractQuantizer, Quantizer
from lehr.scale import fit_scale
from lehr.transposed import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from lehr.uses import LAYERS, Observation

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


def decide(model: nn.Module, seen: Observation, request: Request) -> ConversionPlan:
    """Decide what becomes of each module and call of the model, in its order; nothing is changed."""
    decider = _Decider(model, seen, request)
    return ConversionPlan(tuple(decider.decisions()), decider.calls, seen)


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
        if has_weights and not isinstance(module, (*_NORMS, ParametrizationList)):
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
        if self.seen.bypassed.intersection(names):
            return _kept(path, was, "another function reads its weights")
        if is_parametrized(module, "weight"):
            return _kept(path, was, "its weight is parametrized: torch.nn.utils.parametrize.remove_parametrizations")
        if type(module) not in QUANTIZED:
            base = next(base for base in QUANTIZED if isinstance(module, base))
            return _kept(path, was, f"a subclass of {base.__name__}")
        if "weight" not in module._parameters:
            raise ValueError(
                f"{path}: its weight is computed by a hook, as torch.nn.utils.weight_norm does: remove it first, "
                "torch.nn.utils.remove_weight_norm(module), or skip this layer"
            )
        weight = cast(Tensor, module.weight)
        if id(weight) not in self.fitted:
            kind = cast(type[QuantizedWeight], QUANTIZED[type(module)])
            self.fitted[id(weight)] = _fitted(template, path, weight, self.request.scale, kind.outputs_at)
        quantizer = self.fitted[id(weight)]
        return Decision(Change(path, was, was, len(quantizer.levels)), quantizer, module)

    def _call(self, call: FunctionCall) -> Decision:
        if call.use.name == ADDITION:
            return self._sum(call)
        module = None if call.use.module is None else self.modules[call.use.module]
        is_output = call.use.is_output and call.use.name in OUTPUTS
        return self._activation(call.path, call.use.name, call.use.name, module, is_output, call)

    def _activation(
        self,
        path: str,
        was: str,
        name: str | None,
        module: nn.Module | None,
        is_output: bool,
        call: FunctionCall | None = None,
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

    def _sum(self, call: FunctionCall) -> Decision:
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


def _kept(path: str, was: str, why: str, call: FunctionCall | None = None) -> Decision:
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
