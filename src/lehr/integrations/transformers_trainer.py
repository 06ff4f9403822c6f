"""Noise annealing as a callback of Hugging Face's Trainer.

annealer = lehr.Annealer(model, Hierarchical(duration=2))
trainer = transformers.Trainer(model, arguments, callbacks=[NoiseAnnealing(annealer)], ...)

A loop with Accelerate needs no callback: call `annealer.step()` in it, and let `accelerator.register_for_checkpointing(
annealer)` save the time that has passed.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lehr.annealing import Annealer


class NoiseAnnealing(TrainerCallback):
    """Sets the noise by the epochs that the Trainer has passed, also after it resumes from a checkpoint.

    Args:
        annealer: of the model, made before training; its `steps_per_epoch` says how often the noise changes.
    """

    def __init__(self, annealer: Annealer) -> None:
        self.annealer = annealer

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The noise of this batch (Algorithm 1, lines 2-5)."""
        self.annealer.seek(state.epoch or 0.0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """What is left after it: what a checkpoint and an evaluation find."""
        self.annealer.seek(state.epoch or 0.0)
