"""Write the metrics of each epoch to metrics.csv and TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from lehr.training.folder import RunFolder

_DIGITS = 8  # decimal places in metrics.csv


class Record:
    """Writes metrics.csv and TensorBoard's file of a run; drops the rows of epochs that will be trained again.

    Args:
        folder: the run
        epoch: the next epoch, 0 in a new run
    """

    def __init__(self, folder: RunFolder, epoch: int) -> None:
        self._folder = folder
        self._rows: list[Mapping[str, Any]] = [*folder.metrics_before(epoch)]
        folder.write_metrics(self._rows)
        self._writer = SummaryWriter(str(folder.tensorboard), purge_step=epoch)

    def add(self, epoch: int, row: Mapping[str, float]) -> None:
        """Write the metrics of an epoch."""
        self._rows.append({"epoch": epoch} | {name: round(value, _DIGITS) for name, value in row.items()})
        self._folder.write_metrics(self._rows)
        for name, value in row.items():
            self._writer.add_scalar(name, value, epoch)

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()
