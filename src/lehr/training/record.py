"""What is kept of each epoch: a row of metrics.csv, TensorBoard's curves, a checkpoint."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor, nn

from lehr.algorithms.algorithm import quantized_layers
from lehr.annealing import layers_of
from lehr.layers import Quantizer
from lehr.training.folder import RunFolder, replacing
from lehr.training.task import Task


class Record(Checkpoint):
    """Writes the run's folder after each epoch. A Lightning `Checkpoint`, so that it runs after all other callbacks."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._codes: dict[str, Tensor] = {}
        self._norms: dict[str, Tensor] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Levels before the first epoch; rows of epochs that are to be repeated go."""
        assert isinstance(pl_module, Task)
        self._codes = level_codes(pl_module.model)
        if trainer.is_global_zero:
            rows = [row for row in self.folder.read_metrics() if int(row["epoch"]) < trainer.current_epoch]
            self.folder.write_metrics(rows)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Gradient norms of the epoch's last step, left on the device."""
        if trainer.is_last_batch:
            assert isinstance(pl_module, Task)
            weights = [(path, getattr(m, "weight", None)) for path, m in pl_module.model.named_modules()]
            self._norms = {
                p: w.grad.norm() for p, w in weights if isinstance(w, Tensor) and w.ndim > 1 and w.grad is not None
            }

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A row, the curves, a checkpoint."""
        assert isinstance(pl_module, Task)
        row: dict[str, Any] = {"epoch": trainer.current_epoch, "lr": trainer.optimizers[0].param_groups[0]["lr"]}
        row |= {name: round(value, 8) for name, value in pl_module.results.items() if not name.startswith("test")}
        row |= noise_row(pl_module.model)
        codes = level_codes(pl_module.model)
        row |= level_row(pl_module.model, codes, self._codes)
        row |= {f"grad_norm/{path}": round(norm.item(), 8) for path, norm in self._norms.items()}
        self._codes = codes
        if trainer.is_global_zero:
            self.folder.write_metrics([*self.folder.read_metrics(), row])
            for logger in trainer.loggers:
                logger.log_metrics({k: v for k, v in row.items() if k != "epoch"}, step=trainer.current_epoch)
        self.save(trainer)

    def save(self, trainer: L.Trainer) -> None:
        """The checkpoint of this epoch, whole or not at all; every process takes part."""
        path = self.folder.checkpoint(trainer.current_epoch + 1)
        if trainer.is_global_zero:
            with replacing(path) as part:
                trainer.save_checkpoint(part)
            self.folder.prune()
        else:
            trainer.save_checkpoint(path)  # writes nothing here, but the processes meet in it


def noise_row(model: nn.Module) -> dict[str, float]:
    """Forward and backward std of each layer: the largest of its quantizers', which anneal together."""
    quantizers = {path: module for path, module in model.named_modules() if isinstance(module, Quantizer)}
    if not quantizers:
        return {}
    row: dict[str, float] = {}
    for number, layer in enumerate(layers_of(model), 1):
        for side in ("forward", "backward"):
            stds = [getattr(quantizers[path], f"{side}_std").max() for path in layer]
            row[f"std/{side}/{number}"] = round(torch.stack(stds).max().item(), 8)
    return row


@torch.no_grad()
def level_codes(model: nn.Module) -> dict[str, Tensor]:
    """Of each quantized layer the index of every weight's level, without noise."""
    codes = {}
    for path, layer in quantized_layers(model):
        quantizer = layer.quantizer
        weight = layer.weight if quantizer.scale is None else layer.weight / quantizer.scale
        thresholds = torch.tensor(quantizer.step.thresholds, dtype=weight.dtype, device=weight.device)
        codes[path] = torch.bucketize(weight.contiguous(), thresholds, right=True, out_int32=True).to(torch.uint8)
    return codes


def level_row(model: nn.Module, codes: dict[str, Tensor], before: dict[str, Tensor]) -> dict[str, float]:
    """Share of weights at each level, and share whose level changed."""
    row = {}
    for path, layer in quantized_layers(model):
        levels = layer.quantizer.step.levels
        if len(levels) <= 16:
            counts = torch.bincount(codes[path].flatten().int(), minlength=len(levels)).tolist()
            row |= {
                f"share/{path}/{q:g}": round(n / codes[path].numel(), 8) for q, n in zip(levels, counts, strict=True)
            }
        if path in before:
            row[f"changed/{path}"] = round((codes[path] != before[path]).float().mean().item(), 8)
    return row
