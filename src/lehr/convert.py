"""Turn a float network into one that trains towards a quantized one: `quantize_`.

Every `Linear` and `Conv` becomes its lehr namesake, in place: the same module object with the same parameters, hooks
and place in the model, now with a quantizer for its weights, whose scale is fitted so that a trained network starts
close to itself. Every activation module of the kinds named becomes a `Quantizer`, in place too.

>>> import torch, lehr
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
>>> print(lehr.quantize_(model, skip_last=True))
module  was     now        levels  why
0       Linear  Linear          3
1       ReLU    Quantizer       3
2       Linear  kept               last layer
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from lehr.layers import AbstractQuantizer, Conv1d, Conv2d, Conv3d, Linear, Quantizer
from lehr.scale import fit_scale
from lehr.table import Table, Tabular

_QUANTIZED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: Linear,
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
}
ACTIVATIONS: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Sigmoid,
    nn.Tanh,
)
# Modules whose weights stay in full precision, though they may be most of a network's.
_FLOAT: tuple[type[nn.Module], ...] = (
    nn.modules.conv._ConvTransposeNd,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
)
Scale = Literal["tensor", "channel", "fixed"]
Skip = str | Iterable[str] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Change:
    """What became of one module: `now` is a class name or "kept", `why` says why it was kept."""

    module: str
    was: str
    now: str
    levels: int | None = None
    why: str = ""


@dataclass(frozen=True, repr=False)
class Conversion(Tabular):
    """What `quantize_` did, module by module in the model's order; prints as a table."""

    changes: tuple[Change, ...]

    @property
    def converted(self) -> tuple[Change, ...]:
        """The changes proper, without what was kept."""
        return tuple(change for change in self.changes if change.now != "kept")

    def table(self) -> Table:
        """Return a row for each module."""
        rows = [(change.module, change.was, change.now, change.levels, change.why) for change in self.changes]
        return Table(("module", "was", "now", "levels", "why"), rows)

    def __repr__(self) -> str:
        return f"Conversion({len(self.converted)} of {len(self.changes)} modules converted)"


def quantize_(
    model: nn.Module,
    *,
    weights: AbstractQuantizer | None = Quantizer(),  # noqa: B008 - a template, copied for each layer and never changed
    activations: AbstractQuantizer | None = Quantizer(),  # noqa: B008
    replace: type[nn.Module] | Iterable[type[nn.Module]] = ACTIVATIONS,
    skip: Skip = (),
    skip_first: bool = False,
    skip_last: bool = False,
    scale: Scale = "tensor",
) -> Conversion:
    """Convert `model` in place and return what was done.

    A module used at several places is converted once and stays shared; layers with one tied weight keep it and share
    one quantizer; what is quantized already is left alone. Subclasses of torch's layers are kept, since what they
    compute is their own, and so are transposed convolutions, recurrent layers, attention's own projections and
    embeddings. Calls such as `torch.relu(x)` inside a `forward` cannot be seen: make them modules. Load trained weights
    before converting: the scales are fitted to those that are there.

    Args:
        model: the network; it is changed in place.
        weights: the quantizer of the weights, copied for every layer; None leaves the weights in full precision.
        activations: the quantizer of the activations, likewise.
        replace: the kinds of activation modules that become quantizers.
        skip: modules to keep: one or several paths, which cover what lies below, or a predicate of path and module.
        skip_first: whether the first layer with weights is kept.
        skip_last: whether the last one is.
        scale: fit the scale of each weight quantizer to the present weights, one per "tensor" or one per output
            "channel", or leave that of `weights` ("fixed").
    """
    if weights is None and activations is None:
        raise ValueError("weights=None and activations=None leave nothing to quantize")
    if scale not in get_args(Scale):
        raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}")
    replace = (replace,) if isinstance(replace, type) else tuple(replace)
    modules = dict(model.named_modules())
    skipped = _skipper(skip, model)
    layers = [path for path, module in modules.items() if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)]
    reasons = {}
    if skip_last and layers:
        reasons[layers[-1]] = "last layer"
    if skip_first and layers:
        reasons[layers[0]] = "first layer"

    for name, template in (("weights", weights), ("activations", activations)):
        if template is not None and not isinstance(template, AbstractQuantizer):
            raise TypeError(f"{name} must be a quantizer such as lehr.Quantizer(), or None, got {template!r}")
    # Tied weights share one quantizer. All are fitted before anything is changed, since fitting can raise.
    quantizers: dict[int, AbstractQuantizer] = {}
    for path, module in modules.items():
        wanted = type(module) in _QUANTIZED and path not in reasons and not skipped(path, module)
        if weights is not None and wanted and id(module.weight) not in quantizers:
            quantizers[id(module.weight)] = _fitted(weights, path, module, scale)

    changes: list[Change] = []
    for path, module in modules.items():
        is_layer, is_activation = isinstance(module, tuple(_QUANTIZED)), isinstance(module, replace)
        if not is_layer and not is_activation and not isinstance(module, _FLOAT):
            continue
        change = Change(path, type(module).__name__, "kept")
        if isinstance(module, _FLOAT):
            changes.append(_kept(change, reasons.get(path, "weights of this kind stay")))
        elif isinstance(module, tuple(_QUANTIZED.values())):
            changes.append(_kept(change, "quantized already"))
        elif path in reasons or skipped(path, module):
            changes.append(_kept(change, reasons.get(path, "skipped")))
        elif (weights is None) if is_layer else (activations is None):
            changes.append(_kept(change, "weights stay" if is_layer else "activations stay"))
        elif is_layer and type(module) not in _QUANTIZED:
            changes.append(_kept(change, f"a subclass of {_base(module).__name__}"))
        elif is_layer and weights is not None:
            quantizer = quantizers[id(module.weight)]
            module.__class__ = _QUANTIZED[type(module)]  # same object, same parameters, same hooks
            module.quantizer = quantizer.train(module.training)
            changes.append(Change(path, change.was, change.was, len(quantizer.levels)))
        elif activations is not None:
            quantizer = copy.deepcopy(activations).train(module.training)
            hooks = {name: value for name, value in vars(module).items() if "hook" in name}
            module.__class__ = type(quantizer)  # the same object too: it keeps its places and hooks
            module.__dict__ = vars(quantizer) | hooks
            changes.append(Change(path, change.was, type(quantizer).__name__, len(quantizer.levels)))

    for module in modules.values():
        if not isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
            continue
        if any(isinstance(part, AbstractQuantizer) for part in module.modules()):
            # Without gradients torch takes a fast path that skips the quantizers. These flags turn it off, and the
            # nested tensors that it needs.
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False
            else:
                module.activation_relu_or_gelu = 0  # pyright: ignore[reportAttributeAccessIssue]
    result = Conversion(tuple(changes))
    if not result.converted:
        found = (
            f"\n{result}"
            if changes
            else f": it holds {', '.join(sorted({type(m).__name__ for m in modules.values()}))}"
        )
        raise ValueError(f"nothing to quantize in this {type(model).__name__}{found}")
    if activations is not None and not any(isinstance(m, (AbstractQuantizer, *replace)) for m in modules.values()):
        warnings.warn(
            "no activation module found, so activations stay in full precision: calls such as torch.relu(x) inside a "
            "forward cannot be seen; make them modules, or pass activations=None",
            stacklevel=2,
        )
    return result


def _fitted(template: AbstractQuantizer, path: str, layer: nn.Module, scale: Scale) -> AbstractQuantizer:
    quantizer = copy.deepcopy(template)
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if scale != "fixed":
        try:
            quantizer.scale = fit_scale(weight, template, per_channel=scale == "channel")
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return quantizer.to(weight.device, weight.dtype)


def _skipper(skip: Skip, model: nn.Module) -> Callable[[str, nn.Module], bool]:
    if callable(skip):
        return skip
    modules = dict(model.named_modules(remove_duplicate=False))  # a shared module has several paths
    paths = (skip,) if isinstance(skip, str) else tuple(skip)
    unknown = [path for path in paths if path not in modules]
    if unknown:
        raise ValueError(
            f"skip names {unknown[0]!r}, which is no module of the model: {', '.join(filter(None, modules))}"
        )
    kept = {module for path in paths for module in modules[path].modules()}
    return lambda _, module: module in kept


def _base(module: nn.Module) -> type[nn.Module]:
    return next(base for base in _QUANTIZED if isinstance(module, base))


def _kept(change: Change, why: str) -> Change:
    return Change(change.module, change.was, "kept", None, why)
