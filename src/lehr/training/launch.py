"""The devices and processes of a run: Lightning Fabric's, and what becomes of the others when one of them ends.

With several devices the first process starts this command once more for each of the others, unless torchrun or SLURM
started them all. They meet in every step, so that none can go on without the others. If one ends early, the first says
so in one sentence and ends the rest; if the first ends, the others end themselves.
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
_FIRST = "LEHR_FIRST_PROCESS"  # tells a process that was started here the id of the first
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SECONDS_BETWEEN_LOOKS = 0.5
_PATIENCE = 4.0  # seconds in which a process that was hit by the end of another may still say so itself
_LOST = re.compile("connection (closed|reset|refused)|gloo|nccl|broken pipe", re.IGNORECASE)

_started: list[subprocess.Popen[bytes]] = []  # by this process; they run the same script, also after the first training


def is_main_process() -> bool:
    """Whether this is the process that writes and speaks; launchers give the others a rank."""
    return not any(int(os.environ.get(name, 0)) for name in _RANKS)


def fabric_of(recipe: Recipe) -> Fabric:
    """Devices, strategy and precision of a recipe; what this machine cannot do is an error."""
    launched = TorchElasticEnvironment().world_size() if TorchElasticEnvironment.detect() else None
    if launched not in (None, recipe.devices * recipe.num_nodes):  # each would train a network into the same folder
        raise ValueError(
            f"torchrun started {launched} processes, but devices is {recipe.devices} and num_nodes {recipe.num_nodes}: "
            "give --devices what torchrun has as --nproc-per-node, and --num_nodes what it has as --nnodes"
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
        if recipe.precision in ("bf16-mixed", "16-mixed"):  # of which Fabric makes bf16-mixed here
            check_bfloat16()
        if recipe.compile:
            check_compiler()
    return fabric


@contextlib.contextmanager
def stopped_by_signals(run: Path) -> Iterator[None]:
    """Raise `Interrupted`, which names the run to continue, wherever the program is at SIGTERM or Ctrl-C.

    What was saved after the last epoch stays. A second signal ends the process at once.

    Args:
        run: the folder that `lehr train --resume` continues
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python receives signals in its main thread only
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
    """Start the other processes and meet them; an error ends them all, and is reported once.

    Args:
        fabric: of this process
        path: the run folder; that of the first process counts, which may have found a new name for it

    Returns:
        A context manager that gives the run folder of all processes.
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
    """Run this command once more for each of this node's other devices, as Fabric would, but under our watch."""
    environment = getattr(fabric.strategy, "cluster_environment", None)
    if not isinstance(environment, LightningEnvironment) or environment.creates_processes_externally:
        return
    if not isinstance(fabric.strategy, DDPStrategy):
        raise ValueError(f"on several devices the strategy is ddp, got {type(fabric.strategy).__name__}")
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
        # In a session of its own: Ctrl-C reaches the first process, which ends the others.
        _started.append(subprocess.Popen(command, env=settings, start_new_session=True))


def _end_others() -> None:
    """They write nothing, and would wait for this process."""
    for process in _started:
        process.kill()
        process.wait()


def _report(error: BaseException, fabric: Fabric, folder: RunFolder) -> None:
    """Raise what `error` means to the user; return if it is to be raised as it is."""
    lost = isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None
    if not fabric.is_global_zero:
        if not isinstance(error, Diverged | Interrupted):  # which every process sees at the same time
            time.sleep(_PATIENCE)  # what stops the first process too is said by that one, which then ends this one
        if lost or isinstance(error, Diverged | Interrupted):
            raise SystemExit(1) from None
    elif fabric.world_size > 1 and lost:
        deadline = time.monotonic() + _PATIENCE / 2
        while _started and _ended() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        raise RunError(_sentence(folder)) from error


def _ended() -> tuple[int, int] | None:
    """The rank on this node and the exit code of a process that failed."""
    codes = ((rank, process.poll()) for rank, process in enumerate(_started, 1))
    return next(((rank, code) for rank, code in codes if code), None)


def _sentence(folder: RunFolder, who: str = "another process") -> str:
    how, ended = "ended", _ended()
    if ended is not None:
        rank, code = ended
        who = f"process {rank + 1} of {len(_started) + 1}"
        how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    begun = folder.recipe.exists()
    remedy = f"continue with: lehr train --resume {folder.path}" if begun else "the run has not begun: start it again"
    return f"{who} {how}, and the others cannot go on without it; {remedy}"


class _Watch(threading.Thread):
    """Ends this process when another one has ended and it waits in vain, as in a collective operation of GPUs."""

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
        """Look twice a second."""
        while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
            if self._first and os.getppid() != self._first and not self._over.wait(_SECONDS_BETWEEN_LOOKS):
                if os.environ["LOCAL_RANK"] == "1":  # one of them says it
                    print(f"lehr train: {_sentence(self.folder, 'the first process')}", file=sys.stderr, flush=True)
                os._exit(1)
            if _ended() is not None and not self._over.wait(_PATIENCE):
                print(f"lehr train: {_sentence(self.folder)}", file=sys.stderr, flush=True)
                _end_others()
                os._exit(1)


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Without Lightning's advertisements."""
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
    """Let torch take kernels that give the same bits each time, while a recipe that asks for them trains."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what CUDA's matrix products need for it
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
