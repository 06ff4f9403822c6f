"""BatchNorm statistics without the noise.

While noise is annealed, BatchNorm gathers its running mean and variance under it, but validation and deployment run
without. `reestimate_` gathers them anew from some batches, with every quantizer as hard as it is deployed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

_BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def reestimate_(model: nn.Module, batches: Iterable[Tensor]) -> int:
    """Replace BatchNorm's statistics by the average over `batches` of the noise-free network; returns their number.

    The mode (training or not) of every module is as before; without a batch nothing changes.
    """
    norms = [module for module in model.modules() if isinstance(module, _BATCHNORMS)]
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
    finally:
        for module, training in modes.items():
            module.training = training
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return count


@contextlib.contextmanager
def reestimated(model: nn.Module, batches: Iterable[Tensor]) -> Iterator[None]:
    """`reestimate_` for a while: the statistics of before are put back."""
    norms = [module for module in model.modules() if isinstance(module, _BATCHNORMS)]
    before = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms]
    reestimate_(model, batches)
    try:
        yield
    finally:
        with torch.no_grad():
            for norm, buffers in zip(norms, before, strict=True):
                for name, buffer in norm.named_buffers():
                    buffer.copy_(buffers[name])
