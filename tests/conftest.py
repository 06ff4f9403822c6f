"""What every test starts with: the marks of what it uses, and Python's own handlers of signals.

A shell that starts the tests in the background has SIGINT ignored, and every process that a test starts would inherit
that. A handler that a test leaves behind would change the tests that follow it in the same process.
"""

import os
import signal

import pytest

from uses import MARKS, marks_of

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of processes would import torch once more each


def pytest_configure(config: pytest.Config) -> None:
    for mark, (meaning, _) in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")
    config.addinivalue_line("markers", "slow: takes seconds; the only mark that is given by hand")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            for mark in marks_of(item.function, tuple(item.fixturenames)):
                item.add_marker(mark)


@pytest.fixture(autouse=True)
def usual_signals() -> None:
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)
