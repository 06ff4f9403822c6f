"""A run that ends with an error, to be resumed."""

from dataclasses import dataclass

from lehr.training.loop import Step


@dataclass(frozen=True)
class Crash:
    """An error in the first step of an epoch."""

    epoch: int

    def __call__(self, step: Step) -> None:
        if step.epoch == self.epoch:
            raise ZeroDivisionError
