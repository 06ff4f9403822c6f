"""What every test starts with: Python's own handlers of signals.

A shell that starts the tests in the background has SIGINT ignored, and every process that a test starts would inherit
that. A handler that a test leaves behind would change the tests that follow it in the same process.
"""

import signal

import pytest


@pytest.fixture(autouse=True)
def usual_signals() -> None:
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)
