"""The `lehr` command in separate processes, to be stopped and killed, without importing torch again for each.

A server process imports everything once and forks; what it starts are real processes with real signals.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

# For processes that import what this one imports; tiny tensors are slower on more threads; some virtual machines
# announce AMX and forbid its use, on which bfloat16 in torch ends with an illegal instruction.
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}
os.environ |= ENVIRONMENT  # the server reads its settings from here
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["processes", "lehr.cli", "lehr.training.session", "sklearn.datasets"])

PATIENCE = 300.0  # seconds; a busy machine may need them


def _main(arguments: list[str], output: str, before: Callable[[], None] | None) -> None:
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["lehr", *arguments]
    if before is not None:
        before()
    from lehr.cli import main

    code = main()
    sys.stdout.flush()
    os._exit(code)


def set_environment(settings: Mapping[str, str]) -> None:
    """For `before`: what a command finds in its environment."""
    os.environ |= settings


class Lehr:
    """A running `lehr` command; `before` is called in its process first."""

    def __init__(self, *arguments: object, output: Path, before: Callable[[], None] | None = None) -> None:
        self.path = output
        output.write_text("")
        self.process = _CONTEXT.Process(target=_main, args=([str(a) for a in arguments], str(output), before))
        self.process.start()

    @property
    def output(self) -> str:
        return self.path.read_text()

    def wait(self) -> int:
        """The exit code; that of a process ended by a signal is minus its number."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, f"still running after {PATIENCE} s:\n{self.output}"
        return self.process.exitcode

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Wait until a condition on the file system holds."""
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert self.process.is_alive(), f"ended with {self.process.exitcode}:\n{self.output}"
            assert time.monotonic() < deadline, f"did not happen within {PATIENCE} s:\n{self.output}"
            time.sleep(0.0005)

    def signal(self, signum: int) -> None:
        pid = self.process.pid
        assert pid is not None
        os.kill(pid, signum)


def lehr(*arguments: object, output: Path, before: Callable[[], None] | None = None) -> tuple[int, str]:
    """Run a command to its end; return its exit code and output."""
    command = Lehr(*arguments, output=output, before=before)
    return command.wait(), command.output
