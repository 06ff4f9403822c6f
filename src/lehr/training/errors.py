"""Errors and warnings of a run: a damaged folder, a loss that is not finite, a signal."""

from __future__ import annotations

import signal


class RunError(Exception):
    """A run cannot begin or go on; the message says what to do."""


class RunWarning(UserWarning):
    """The run continues, but something is not as the user expects."""


class Diverged(Exception):
    """The loss became NaN or infinite."""


class Interrupted(BaseException):
    """A signal stopped the process; a `BaseException`, so that no `except Exception` swallows it."""

    def __init__(self, signum: int, remedy: str) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}; {remedy}")
        self.signum = signum
