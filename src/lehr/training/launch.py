"""The devices and processes of a run, on Lightning Fabric; when one process ends, the others end too.

With several devices the first process runs this command again for each other device, unless torchrun or SLURM started
all processes. They synchronize in every step, so none can continue alone. If one fails, the first process reports it
in one sentence and ends the rest; if the first ends, the others end themselves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lehr.training.errors import Diverged, Interrupted, RunError
from lehr.training.folder import RunFolder
from lehr.training.machine import check_bfloat16, check_compiler
from lehr.training.recipe import Recipe

_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # of every launcher
_FIRST = "LEHR_FIRST_PROCESS"  # the process id of the first, in the environment of the others
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SECONDS_BETWEEN_LOOKS = 0.5
_PATIENCE = 4.0  # seconds for a process to report its own error before another ends it
_LOST = re.compile("connection (closed|reset|refused)|gloo|nccl|broken pipe", re.IGNORECASE)

_started: list[subprocess.Popen[bytes]] = []  # by this process; a second training in the script reuses them


def is_main_process() -> bool:
    """Return whether this is the process that writes files and messages: the one with rank 0."""
    return not any(int(os.environ.get(name, 0)) for name in _RANKS)


def fabric_of(recipe: Recipe) -> Fabric:
    """Return the Fabric of a recipe's devices, strategy and precision.

    Raise ValueError or RunError if this machine cannot provide them.
    """
    launched = TorchElasticEnvironment().world_size() if TorchElasticEnvironment.detect() else None
    if launched not in (None, recipe.devices * recipe.num_nodes):  # they would train separately into one folder
        raise ValueError(
            f"torchrun started {launched} processes, but devices is {recipe.devices} and num_nodes {recipe.num_nodes}: "
            "set --devices to torchrun's --nproc-per-node, and --num_nodes to its --nnodes"
        )
    try:
        with _quiet_lightning():
            fabric = Fabric(
                accelerator=recipe.accelerator,
                devices=recipe.devices,
                num_nodes=recipe.num_nodes,
                strategy=recipe.strategy,
                precision=recipe.precision,
            )
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        asked = f"accelerator {recipe.accelerator}, devices {recipe.devices}, strategy {recipe.strategy}"
        raise ValueError(f"{asked}: {error}") from error
    if fabric.device.type == "cpu":
        if recipe.precision in ("bf16-mixed", "16-mixed"):  # on a CPU Fabric runs both as bf16-mixed
            check_bfloat16()
        if recipe.compile:
            check_compiler()
    return fabric


@contextlib.contextmanager
def stopped_by_signals(run: Path) -> Iterator[None]:
    """Raise `Interrupted` at SIGTERM or Ctrl-C inside the block; its message names the run to resume.

    Checkpoints are kept. A second signal ends the process at once.

    Args:
        run: the folder that `lehr train --resume` continues
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread only
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        begun = RunFolder(run).recipe.exists()
        raise Interrupted(signum, f"continue with: lehr train --resume {run}" if begun else "the run had not begun")

    before = [signal.signal(one, stop) for one in _SIGNALS]
    try:
        yield
    finally:
        for one, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(one, handler)


@contextlib.contextmanager
def all_processes(fabric: Fabric, path: Path) -> Iterator[RunFolder]:
    """Start and connect the other processes; an error ends them all and is reported once.

    Args:
        fabric: the Fabric of this process
        path: the run folder; all processes use the first one's, which may have picked a new name

    Returns:
        A context manager that yields the run folder of all processes.
    """
    folder = RunFolder(path)
    with _quiet_lightning():
        if fabric.world_size > 1:
            _start_others(fabric)
        with _Watch(folder) if fabric.world_size > 1 else contextlib.nullcontext() as watch:
            try:
                fabric.launch()
                if watch:
                    folder = watch.folder = RunFolder(fabric.broadcast(path))
                yield folder
            except BaseException as error:
                try:
                    _report(error, fabric, folder)
                finally:
                    _end_others()
                raise


def _start_others(fabric: Fabric) -> None:
    """Run this command again for each other device of this node, as Fabric does, but keep the processes to watch."""
    environment = getattr(fabric.strategy, "cluster_environment", None)
    if not isinstance(environment, LightningEnvironment) or environment.creates_processes_externally:
        return
    if not isinstance(fabric.strategy, DDPStrategy):
        raise ValueError(f"several devices need the strategy ddp, got {type(fabric.strategy).__name__}")
    devices = len(fabric.strategy.parallel_devices or ())
    os.environ |= {
        "MASTER_ADDR": environment.main_address,
        "MASTER_PORT": str(environment.main_port),
        "NODE_RANK": str(environment.node_rank()),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(fabric.world_size),
    }
    module = sys.modules["__main__"].__spec__
    command = [sys.executable, *(["-m", module.name] if module else [os.path.abspath(sys.argv[0])]), *sys.argv[1:]]
    for rank in range(1, devices):
        settings = {**os.environ, "LOCAL_RANK": str(rank), _FIRST: str(os.getpid())}
        # In a new session, so that Ctrl-C reaches only the first process, which ends the others.
        _started.append(subprocess.Popen(command, env=settings, start_new_session=True))


def _end_others() -> None:
    """Kill the processes started here; they write no files, and would wait for this one forever."""
    for process in _started:
        process.kill()
        process.wait()


def _report(error: BaseException, fabric: Fabric, folder: RunFolder) -> None:
    """Raise a clear error if `error` says that another process was lost; return if `error` itself is clear."""
    lost = isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None
    if not fabric.is_global_zero:
        if not isinstance(error, Diverged | Interrupted):  # every process raises these at the same time
            time.sleep(_PATIENCE)  # if the first process fails too, it reports the error and ends this one
        if lost or isinstance(error, Diverged | Interrupted):
            raise SystemExit(1) from None
    elif fabric.world_size > 1 and lost:
        deadline = time.monotonic() + _PATIENCE / 2
        while _started and _ended() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        raise RunError(_sentence(folder)) from error


def _ended() -> tuple[int, int] | None:
    """Return the rank on this node and the exit code of a process that failed, or None."""
    codes = ((rank, process.poll()) for rank, process in enumerate(_started, 1))
    return next(((rank, code) for rank, code in codes if code), None)


def _sentence(folder: RunFolder, who: str = "another process") -> str:
    """Return the message for the user: which process ended, and how to continue."""
    how, ended = "ended", _ended()
    if ended is not None:
        rank, code = ended
        who = f"process {rank + 1} of {len(_started) + 1}"
        how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    begun = folder.recipe.exists()
    remedy = f"continue with: lehr train --resume {folder.path}" if begun else "the run has not begun: start it again"
    return f"{who} {how}, and the others cannot continue without it; {remedy}"


class _Watch(threading.Thread):
    """Ends this process if another one has ended, since it may wait forever in a collective operation."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(daemon=True, name="lehr-watch")
        self.folder = folder
        self._over = threading.Event()
        self._first = int(os.environ.get(_FIRST, 0))

    def __enter__(self) -> _Watch:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def run(self) -> None:
        """Check the other processes twice a second."""
        while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
            if self._first and os.getppid() != self._first and not self._over.wait(_SECONDS_BETWEEN_LOOKS):
                if os.environ["LOCAL_RANK"] == "1":  # only one process prints it
                    print(f"lehr train: {_sentence(self.folder, 'the first process')}", file=sys.stderr, flush=True)
                os._exit(1)
            if _ended() is not None and not self._over.wait(_PATIENCE):
                print(f"lehr train: {_sentence(self.folder)}", file=sys.stderr, flush=True)
                _end_others()
                os._exit(1)


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Suppress Lightning's informational messages inside the block."""
    loggers = [logging.getLogger(name) for name in ("lightning.fabric", "lightning.pytorch")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Make torch use deterministic kernels inside the block, if `wanted`."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA's matrix products need it
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
