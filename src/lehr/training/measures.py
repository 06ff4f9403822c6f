"""Measures of a network in training, beside its accuracy: noise, levels of the weights, gradient norms.

Each function returns columns of metrics.csv, by layer:

    std/forward/1, std/backward/1        noise of the first annealed layer
    share/PATH/-1, share/PATH/0, ...     share of a layer's weights at each level, without noise
    changed/PATH                         share of its weights whose level changed
    grad_norm/PATH                       norm of the gradient of its weights
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lehr.algorithms.algorithm import quantized_layers
from lehr.annealing import layers_of
from lehr.quantizer import Quantizer

_LISTED_LEVELS = 16  # with more levels, their shares would be most of the columns


def quantizers_of(model: nn.Module) -> dict[str, Quantizer]:
    """Return the quantizers of weights and activations by path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Quantizer)}


def noisy_quantizers(model: nn.Module) -> list[Quantizer]:
    """Return the quantizers that have forward noise."""
    return [quantizer for quantizer in quantizers_of(model).values() if bool((quantizer.forward_std > 0).any())]


def noise(model: nn.Module) -> dict[str, float]:
    """Return the forward and backward std of each layer: the largest among its quantizers, which anneal together."""
    quantizers = quantizers_of(model)
    if not quantizers:
        return {}
    row = {}
    for number, layer in enumerate(layers_of(model), 1):
        for side in ("forward", "backward"):
            stds = [getattr(quantizers[path], f"{side}_std").max() for path in layer]
            row[f"std/{side}/{number}"] = torch.stack(stds).max().item()
    return row


@torch.no_grad()
def level_codes(model: nn.Module) -> dict[str, Tensor]:
    """Return the level index of every weight, without noise, by quantized layer."""
    return {path: layer.quantizer.codes(layer.weight) for path, layer in quantized_layers(model)}


def level_shares(model: nn.Module, codes: dict[str, Tensor]) -> dict[str, float]:
    """Return the share of the weights at each level, from `level_codes`."""
    row = {}
    for path, layer in quantized_layers(model):
        levels = layer.quantizer.step.levels
        if len(levels) <= _LISTED_LEVELS:
            counts = torch.bincount(codes[path].flatten().int(), minlength=len(levels)).tolist()
            row |= {
                f"share/{path}/{level:g}": count / codes[path].numel()
                for level, count in zip(levels, counts, strict=True)
            }
    return row


def changed_shares(codes: dict[str, Tensor], before: dict[str, Tensor]) -> dict[str, float]:
    """Return the share of the weights whose level changed between two `level_codes`."""
    return {f"changed/{path}": (codes[path] != before[path]).float().mean().item() for path in codes}


def gradient_norms(model: nn.Module) -> dict[str, Tensor]:
    """Return the norm of the gradient of each layer's weights, without copying it from the device."""
    return {
        f"grad_norm/{path}": module.weight.grad.norm()
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd) and module.weight.grad is not None
    }
