"""The way back from `quantize_`: `dequantize_` makes a model what it was, torch's layers and activations.

>>> import torch, lehr
>>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
>>> _ = lehr.quantize_(model)
>>> dequantize_(model)
Sequential(
  (0): Linear(in_features=2, out_features=2, bias=True)
  (1): ReLU()
)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from lehr.additions import ADDITION
from lehr.calls import CALLS, Followed, OwnForward, Redirected
from lehr.decide import QUANTIZED


def dequantize_(model: nn.Module, *, weights: Literal["float", "quantized"] = "float") -> nn.Module:
    """Make a model that `quantize_` has converted what it was: torch's layers and activations, and its own forward.

    Biases and BatchNorm statistics stay as they are, with the corrections of `quantize_(..., data=batches)`.

    Args:
        model: the network; it is changed in place, and returned.
        weights: the weights that it keeps: those in full precision that training moves, or their quantized values.
    """
    if weights not in ("float", "quantized"):
        raise ValueError(f"weights must be float or quantized, got {weights!r}")
    floats = {quantized: kind for kind, quantized in QUANTIZED.items()}
    done: set[int] = set()  # a weight that is tied is quantized once
    for module in list(model.modules()):
        if type(module) in floats:
            weight: Any = module.weight
            if weights == "quantized" and id(weight) not in done:
                done.add(id(weight))
                training = module.training
                weight.data.copy_(module.eval().quantized_weight.detach())  # pyright: ignore[reportCallIssue]
                module.train(training)
            del module.quantizer
            module._modules.pop("input_quantizer", None)
            module.__class__ = floats[type(module)]
        elif isinstance(vars(module).get("replaced"), nn.Module | tuple):
            (original,) = vars(module)["replaced"]
            become_(module, original.train(module.training))
        if isinstance(vars(module).get("forward"), OwnForward):
            if isinstance(module.forward, Followed):
                del module.quantizer
            if isinstance(module.forward, Redirected) and CALLS in module._modules:
                del module._modules[CALLS]
            del module.forward
    return model


def keep_float_sums_(model: nn.Module, saved: Collection[str]) -> None:
    """Remove the quantizers of sums and of what layers read that a saved state does not have.

    Networks trained before lehr quantized sums are then what they were.

    Args:
        model: a network that `quantize_` has converted; it is changed in place.
        saved: the keys of its state.
    """
    owners = {key.rpartition(".")[0] for key in saved}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if "input_quantizer" in module._modules and f"{prefix}input_quantizer" not in owners:
            del module._modules["input_quantizer"]
        forward = vars(module).get("forward")
        if isinstance(forward, Redirected):
            forward.sites = {
                training: tuple(
                    replace(site, quantizer=None)
                    if site.name == ADDITION and f"{prefix}{CALLS}.{site.quantizer}" not in owners
                    else site
                    for site in sites
                )
                for training, sites in forward.sites.items()
            }
            kept = {site.quantizer for sites in forward.sites.values() for site in sites}
            calls: Any = module._modules[CALLS]
            for name in [name for name in calls if name not in kept]:
                del calls[name]


def become_(module: nn.Module, other: nn.Module) -> None:
    """Make the module the other one, which keeps the hooks of the module and its places in the model."""
    hooks = {name: value for name, value in vars(module).items() if "hook" in name}
    module.__class__ = type(other)
    module.__dict__ = vars(other) | hooks
