"""Re-estimate BatchNorm statistics without noise.

During annealing, BatchNorm's running mean and variance are measured under noise, but validation and deployment run
without noise. `reestimate_` measures them again on some batches, with every quantizer hard, as it is deployed.

>>> import torch, lehr
>>> model = torch.nn.Sequential(lehr.Linear(4, 8), torch.nn.BatchNorm1d(8), lehr.Quantizer())
>>> reestimate_(model, torch.randn(10, 32, 4))  # ten batches of 32
10
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batchnorms_of(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the BatchNorm layers that keep running statistics, by path."""
    norms = {path: module for path, module in model.named_modules() if isinstance(module, _BatchNorm)}
    return {path: norm for path, norm in norms.items() if norm.running_mean is not None}


@torch.no_grad()
def reestimate_(model: nn.Module, batches: Iterable[Tensor]) -> int:
    """Replace BatchNorm's statistics by their average over `batches`, without noise; return the number of batches.

    The mode (training or not) of every module is kept. Without a batch, or after an error, nothing changes; torch
    raises an error if a batch has only one value per channel.
    """
    norms = batchnorms_of(model).values()
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    modes = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    model.eval()
    count = 0
    try:
        for batch in batches:
            if count == 0:
                for norm in norms:
                    norm.reset_running_stats()
                    norm.momentum = None  # a plain average over the batches
                    norm.train()
            model(batch)
            count += 1
    except BaseException:
        for buffer, value in before:
            buffer.copy_(value)
        raise
    finally:
        for module, training in modes.items():
            module.training = training
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return count


@contextlib.contextmanager
def reestimated(model: nn.Module, batches: Iterable[Tensor]) -> Iterator[dict[str, Tensor]]:
    """Re-estimate the statistics inside the block and restore them afterwards; yield the original ones, by path.

    `torch.func.functional_call` runs the model with these; they are empty if there was no batch.
    """
    buffers = {
        f"{path}.{name}" if path else name: buffer
        for path, norm in batchnorms_of(model).items()
        for name, buffer in norm.named_buffers()
    }
    before = {path: buffer.clone() for path, buffer in buffers.items()}
    try:
        yield before if reestimate_(model, batches) else {}
    finally:
        with torch.no_grad():
            for path, buffer in buffers.items():
                buffer.copy_(before[path])
