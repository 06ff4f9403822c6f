"""What stops a run: a wrong folder, a loss that is no number, a signal. Each message is a sentence for the user."""

from __future__ import annotations

import signal


class RunError(Exception):
    """A run folder that is not what it should be; the message says what to do."""


class RunWarning(UserWarning):
    """A run that goes on, but not quite as one would expect."""


class Diverged(Exception):
    """The loss is no longer a number."""


class Interrupted(BaseException):
    """The process was told to stop; not an `Exception`, so that nothing on the way takes it for a failure."""

    def __init__(self, signum: int, remedy: str) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}; {remedy}")
        self.signum = signum
