"""A run that is told to stop (SIGTERM, Ctrl-C) stops at once; what was saved after the last epoch stays.

Lightning's own handler waits for the end of the step, and with several processes for a word from each of them; this one
raises where the program is. A second signal finds the system's default and ends the process without ceremony.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from lehr.training.errors import Interrupted

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopAtOnce(L.Callback):
    """Raises `Interrupted` on a signal while the trainer is at work; Lightning puts the handlers of before back."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """From here on."""
        self._listen(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Also in a validation of its own."""
        self._listen(trainer)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Also in a test."""
        self._listen(trainer)

    def _listen(self, trainer: L.Trainer) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python hears signals in its main thread only

        def stop(signum: int, frame: FrameType | None) -> Any:
            for one in _SIGNALS:
                signal.signal(one, signal.SIG_DFL)
            launcher = trainer.strategy.launcher
            if isinstance(launcher, _SubprocessScriptLauncher):
                launcher.kill(signal.SIGKILL)  # they write nothing, and would wait for this process
            raise Interrupted.training(signum, self.run)

        for one in _SIGNALS:
            signal.signal(one, stop)
