"""Turn a float network into one that trains towards a quantized one: `quantize_`.

Every `Linear` and `Conv` becomes its lehr namesake, in place: the same module object with the same parameters, hooks
and place in the model, now with a quantizer for its weights, whose scale is fitted so that a trained network starts
close to itself. Every activation becomes a `Quantizer`, or gets one behind it, whether it is a module or a call such as
`F.relu(x)` in a forward (see calls.py). It goes in three steps: look at what runs (observe.py), decide what becomes of
each part, apply that.

>>> import torch, lehr
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
>>> print(lehr.quantize_(model, skip_last=True))
module  was     now        levels  why
0       Linear  Linear          3
1       ReLU    Quantizer       3
2       Linear  kept               last layer
66.7 % of 192 weights are quantized
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from lehr.calibration import calibrate_, inputs_of
from lehr.calls import CALLS, Followed, OwnForward, QuantizedCalls, Redirected, Site, Split
from lehr.decide import QUANTIZED, decide
from lehr.decisions import Change, ConversionPlan, Decision, FunctionCall, Request, Scale, Skip
from lehr.dequantize import become_
from lehr.nonlinear import ACTIVATIONS
from lehr.observe import observe
from lehr.precision import Precision, template_of
from lehr.quantizer import AbstractQuantizer, Quantizer
from lehr.table import Table, Tabular
from lehr.tracing import inside
from lehr.uses import is_whole

# Modules of torch that call functions where torch.fx does not look.
_CLOSED = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.AdaptiveLogSoftmaxWithLoss)


@dataclass(frozen=True, repr=False)
class Conversion(Tabular):
    """What `quantize_` did, in the model's order; prints as a table.

    Args:
        changes: what became of each module and call
        weights: how many weights are quantized, and how many there are
        macs: the same of the multiply-accumulate operations of one image, known with an example
        notes: what else is to be said
    """

    changes: tuple[Change, ...]
    weights: tuple[int, int] | None = None
    macs: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()

    @property
    def converted(self) -> tuple[Change, ...]:
        """The changes proper, without what was kept."""
        return tuple(change for change in self.changes if change.now != "kept")

    def table(self) -> Table:
        """Return a row for each module and call."""
        rows = [(change.module, change.was, change.now, change.levels, change.why) for change in self.changes]
        return Table(("module", "was", "now", "levels", "why"), rows)

    def __str__(self) -> str:
        shares = filter(None, [_share("weights", self.weights), _share("MACs", self.macs)])
        total = " and ".join(shares)
        return "\n".join([str(self.table()), *([f"{total} are quantized"] if total else []), *self.notes])

    def __repr__(self) -> str:
        return f"Conversion({len(self.converted)} of {len(self.changes)} modules converted)"


def quantize_(
    model: nn.Module,
    *,
    weights: Precision = Quantizer(),  # noqa: B008 - a template, copied for each layer and never changed
    activations: Precision = Quantizer(),  # noqa: B008
    sums: Precision = "8bit",
    replace: type[nn.Module] | Iterable[type[nn.Module]] = ACTIVATIONS,
    skip: Skip = (),
    skip_first: bool = False,
    skip_last: bool = False,
    scale: Scale = "tensor",
    rules: Mapping[str, Precision] | None = None,
    data: Iterable[Any] | None = None,
    example: Any = None,
) -> Conversion:
    """Convert `model` in place and return what was done.

    A layer used at several places is converted once and stays shared; layers with one tied weight keep it and share
    one quantizer; what is quantized already is left alone. Subclasses of torch's layers are kept, since what they
    compute is their own, and so are recurrent layers, attention's own projections and embeddings. Calls such as
    `F.relu(x)` in a forward are found by tracing it, or by running the example. Load trained weights before converting:
    the scales are fitted to those that are there.

    A quantizer of up to three levels takes the place of an activation, as in the paper. One of more levels respects
    what it stands for: levels start at 0 where the activation is never negative, and any other than ReLU is computed
    first and its result quantized. A Sigmoid, Softmax or Tanh that makes the output of the network stays.

    Args:
        model: the network; it is changed in place.
        weights: the quantizer of the weights, copied for every layer, or a word such as "4bit" for one without forward
            noise; None leaves the weights in full precision.
        activations: the quantizer of the activations, likewise.
        sums: the quantizer of what no activation quantizes: of both sides of each addition of two values, one for both,
            so that they have one scale, and of a layer's input that another layer gives without an activation, as the
            linear bottlenecks of MobileNetV2 do. None leaves these in full precision, and so does activations=None.
        replace: the kinds of activations that are quantized, as classes of modules; calls go by the same.
        skip: what to keep: one or several paths, which cover what lies below, or a predicate of path and module (of a
            call, the module whose forward makes it).
        skip_first: whether the first layer with weights is kept.
        skip_last: whether the last one is.
        scale: fit the scale of each weight quantizer to the present weights, one per "tensor" or one per output
            "channel", or leave that of `weights` ("fixed").
        rules: precisions by path, such as {"conv1": "int8", "layer4.*": "2bit", "ends": "float"}: a pattern covers what
            lies below, and the last that fits counts; "first", "last" and "ends" are layers by their place. A word has
            the noise of `weights` or `activations`, and wins over skip_first and skip_last.
        data: batches to fit the scales of the activations to, and to correct biases and BatchNorm with, so that each
            channel keeps its mean; see `lehr.calibrate_`.
        example: a batch as the model takes it; the calls of the forward are then found by running it, not by tracing,
            and the report says what share of the MACs is quantized and what will freeze. With it, or with data, an
            activation module that is used at several places gets a quantizer for each.
    """
    if weights is None and activations is None and not rules:
        raise ValueError("weights=None and activations=None leave nothing to quantize")
    if scale not in get_args(Scale):
        raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}")
    for name, precision in (("weights", weights), ("activations", activations), ("sums", sums)):
        if not isinstance(precision, AbstractQuantizer | str | None):
            raise TypeError(f"{name} must be a quantizer such as lehr.Quantizer(), a word, or None, got {precision!r}")
    model = inside(model)
    checked = example  # asked for: to freeze a large network takes a while
    if data is not None and example is None:
        data = iter(data)
        first = next(data, None)
        if first is None:
            raise ValueError("data has no batch to calibrate with")
        args, kwargs = inputs_of(first, next((parameter.device for parameter in model.parameters()), None))
        example, data = kwargs or args, itertools.chain([first], data)
    kinds = (replace,) if isinstance(replace, type) else tuple(replace)
    request = Request(
        weights=template_of(weights),
        activations=template_of(activations),
        sums=None if activations is None else template_of(sums),
        replace=kinds,
        skip=skip,
        skip_first=skip_first,
        skip_last=skip_last,
        scale=scale,
        rules=rules or {},
        split=example is not None,
    )
    seen = observe(model, example)
    plan = decide(model, seen, request)
    before = None if data is None else copy.deepcopy(model)
    _check(model, plan, request)
    _apply(model, plan)
    if data is not None and any(not isinstance(d.module, tuple(QUANTIZED)) for d in plan.changed):
        calibrate_(model, data, like=before)
    notes = []
    for path, why in seen.closed.items() if activations is not None else ():
        kind = type(model.get_submodule(path))
        if not kind.__module__.startswith("lehr."):
            notes.append(
                f"{path or kind.__name__} cannot be traced ({why}): calls in it stay, unless quantize_ gets an example"
            )
    for path, why in seen.hidden.items():
        notes.append(f"calls in {path or type(model).__name__} stay: {why}")
    if isinstance(checked, Tensor) and (checked.is_floating_point() or checked.dtype in (torch.uint8, torch.int8)):
        notes.append(_verdict(model, checked))
    return Conversion(tuple(d.change for d in plan.decisions), _weights(model), _macs(plan), tuple(notes))


def _apply(model: nn.Module, plan: ConversionPlan) -> None:
    """Make of each module and call what was decided."""
    modules = dict(model.named_modules())
    for decision in plan.changed:
        module, quantizer = decision.module, decision.quantizer
        assert quantizer is not None
        if module is None:
            continue  # a call
        quantizer.train(module.training)
        if decision.of_input:
            module.input_quantizer = quantizer
        elif type(module) in QUANTIZED:
            # The same object, with the same parameters and hooks: the model itself may be a layer, and optimizers and
            # other modules may hold it.
            module.__class__ = QUANTIZED[type(module)]
            module.quantizer = quantizer
        elif decision.follows:
            module.quantizer = quantizer
            module.forward = Followed(module)
        else:
            original = copy.copy(module)
            become_(module, quantizer)
            module.__dict__["replaced"] = (original,)  # not a child: its parameters are no longer the model's
    _redirect_calls(modules, plan)
    for module in modules.values():
        if isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
            _take_slow_path(module)


def _redirect_calls(modules: dict[str, nn.Module], plan: ConversionPlan) -> None:
    """Give the modules whose forwards make quantized calls their quantizers, and count calls there."""
    decided = {decision.call: decision for decision in plan.changed if decision.call is not None}
    owners = {call.owner for call in decided}
    for path in owners:
        calls = [call for call in plan.calls.of(path) if call in decided]
        quantizers = {call.name: cast(AbstractQuantizer, decided[call].quantizer) for call in calls}
        after = {call.name: modules[call.use.after] for call in calls if call.use.after is not None}
        modules[path].add_module(CALLS, QuantizedCalls(quantizers, after).train(modules[path].training))
    below = {module for path in owners for module in modules[path].modules()}
    own = {*plan.seen.closed, *plan.seen.hidden, *plan.calls.own}
    for path, module in modules.items():
        if path in plan.calls.order and module in below:
            sites = {
                training: [_site(call, decided.get(call)) for call in calls]
                for training, calls in plan.calls.order[path].items()
            }
            module.forward = Redirected(module, sites)
        elif path in plan.calls.split and any(call.use.module == path for call in decided):
            module.forward = Split(module)
        elif module in below and _calls_for_itself(module, path in own):
            module.forward = OwnForward(module)


def _calls_for_itself(module: nn.Module, is_closed: bool) -> bool:
    """Whether what a module calls is not its user's: layers, quantizers, kept activations, and what is closed."""
    return "forward" not in vars(module) and (is_whole(module) or is_closed or isinstance(module, _CLOSED))


def _site(call: FunctionCall, decision: Decision | None) -> Site:
    name, follows = (None, False) if decision is None else (call.name, decision.follows)
    return Site(call.use.name, name, follows, call.use.line)


def _take_slow_path(module: nn.TransformerEncoder | nn.TransformerEncoderLayer) -> None:
    """Without gradients torch's transformers take a path that skips quantizers: turn it off, by torch's own flags."""
    if not any(isinstance(part, AbstractQuantizer) for part in module.modules()):
        return
    if isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False
    else:
        module.activation_relu_or_gelu = 0  # pyright: ignore[reportAttributeAccessIssue]


def _check(model: nn.Module, plan: ConversionPlan, request: Request) -> None:
    """Raise ValueError if nothing is quantized; warn of activations that are not though they should be."""
    changes = [decision.change for decision in plan.decisions]
    if not plan.changed:
        kinds = ", ".join(sorted({type(module).__name__ for module in model.modules()}))
        found = f"\n{Conversion(tuple(changes))}" if changes else f": it holds {kinds}"
        raise ValueError(f"nothing to quantize in this {type(model).__name__}{found}")
    if request.activations is None:
        return
    for owner, names in plan.calls.unclear.items():
        warnings.warn(
            f"{owner or type(model).__name__}: its calls of {', '.join(names)} differ from run to run, so they stay in "
            "full precision: make them modules such as nn.ReLU()",
            stacklevel=3,
        )
    known = (AbstractQuantizer, *request.replace)
    if not any(isinstance(module, known) for module in model.modules()) and not list(plan.calls):
        warnings.warn(
            "no activation found, so activations stay in full precision: a call such as torch.relu(x) in a forward "
            "that cannot be traced is seen when quantize_ gets an example; make it a module, or pass activations=None",
            stacklevel=3,
        )


def _verdict(model: nn.Module, example: Tensor) -> str:
    """What `lehr.check` says of the network, if what freezing needs is installed."""
    try:
        from lehr.deploy.check import check
    except ModuleNotFoundError:  # `import lehr` needs torch alone
        return ""
    verdict = check(model, example)
    floats = [layer.layer for layer in verdict.layers if layer.becomes == "float"]
    told = [f"{', '.join(floats)} will run in float" if floats else "", *verdict.refused, *verdict.notes]
    what = f"{100 * verdict.integer_share:.1f} % of the MACs as integers" if verdict.freezes else "it is refused"
    return "\n".join([f"frozen: {what}", *(f"- {line}" for line in told if line)])


def _weights(model: nn.Module) -> tuple[int, int]:
    """How many weights are quantized, and how many there are; biases and normalisations do not count."""
    quantized = {
        module.weight
        for module in model.modules()
        if isinstance(getattr(module, "quantizer", None), AbstractQuantizer) and isinstance(module, tuple(QUANTIZED))
    }
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    return sum(w.numel() for w in weights if any(w is q for q in quantized)), sum(w.numel() for w in weights)


def _macs(plan: ConversionPlan) -> tuple[int, int] | None:
    if not plan.seen.macs:
        return None
    quantized = sum(
        plan.seen.macs.get(d.change.module, 0) for d in plan.changed if isinstance(d.module, tuple(QUANTIZED))
    )
    return quantized, max(plan.seen.macs[""], quantized)


def _share(what: str, pair: tuple[int, int] | None) -> str:
    return "" if pair is None else f"{100 * pair[0] / max(pair[1], 1):.1f} % of {pair[1]:,} {what}"
