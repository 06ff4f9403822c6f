"""A series of runs on Ray: the cores of this machine, or a cluster whose machines share the folder of the runs.

for done in train_on_ray(planned, "ray", resources=Resources(cpus=2), show=print):
    print(done.run.path.name, done.results)

Each run is a task that asks for its CPUs and GPUs. A task whose worker dies starts again, on any machine, and resumes
bit for bit from the run's folder, as `lehr train --resume` does. A signal stops all tasks, and the same call goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal
from urllib.parse import urlsplit

from lehr.training import lock
from lehr.training.errors import Diverged, Interrupted, RunError, RunWarning
from lehr.training.folder import RunFolder
from lehr.training.recipe import Recipe
from lehr.training.series import Done, Planned
from lehr.training.trust import VARIABLE, is_trusting, trusting

RAY = "ray"  # without an address: the cluster that RAY_ADDRESS names, or the cores of this machine
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RETRIES = 5  # of a run whose worker dies; a run that kills every worker must end
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_STOP = 30.0  # for the runs to stop after a signal
_SECONDS_TO_ANSWER = 5.0
_PASSED_ON = ("LEHR_DATA", VARIABLE, "PYTHONPATH", "ONEDNN_MAX_CPU_ISA")  # settings that runs read, if they are set
# Ray's own settings, unless the user has set them: it would ask twenty times, half a minute each, where something else
# than Ray answers, and report its use to its makers.
_SETTINGS = {"RAY_NUM_REDIS_GET_RETRIES": "2", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class Resources:
    """What each run asks Ray for.

    Args:
        cpus: CPUs, which are also the threads of torch.
        gpus: GPUs, or a part of one; None asks for one where the cluster has some and the recipe may use them.
    """

    cpus: int = 1
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise ValueError(f"cpus must be at least 1, got {self.cpus}")
        if self.gpus is not None and self.gpus < 0:
            raise ValueError(f"gpus must not be negative, got {self.gpus}")


@dataclass(frozen=True)
class State:
    """How far a run is."""

    run: Planned
    epoch: int  # epochs done
    word: Literal["waits", "trains", "failed", "finished"]


def train_on_ray(
    planned: Sequence[Planned], place: str, *, resources: Resources, show: Callable[[Sequence[State]], None]
) -> Iterator[Done]:
    """Train the unfinished runs on Ray, as many at a time as it has room for; yield each when it ends.

    Args:
        planned: the runs, from `series.plan`; their folders are on a file system that all machines share.
        place: "ray", or the address of a cluster such as ray://host:10001.
        resources: what each run asks for.
        show: called every second with the state of all runs.
    """
    with _connected(place) as ray, _noted_signals() as signals:
        _warn_if_too_large(ray, resources)
        began = time.monotonic()
        tasks = {_start(ray, run, resources): run for run in planned if not run.finished}
        try:
            while tasks:
                ended, _ = ray.wait(list(tasks), timeout=_SECONDS_BETWEEN_LOOKS)
                if signals:
                    raise Interrupted(signals[0], "repeat the command to continue")
                over = [(tasks.pop(task), task) for task in ended]
                show([_state(run, waiting=run in tasks.values()) for run in planned])
                for run, task in over:
                    results, failure = _outcome(ray, task, run)
                    yield Done(run, results, failure, (results or {}).get("seconds", time.monotonic() - began))
        except BaseException:
            _stop(ray, list(tasks))
            raise


def _start(ray: Any, run: Planned, resources: Resources) -> Any:
    """Hand a run to Ray; return its task."""
    gpus = resources.gpus
    if gpus is None:
        gpus = 1.0 if run.recipe.accelerator in ("auto", "gpu", "cuda") and ray.cluster_resources().get("GPU") else 0.0
    task = ray.remote(_train).options(name=run.path.name, num_cpus=resources.cpus, num_gpus=gpus, max_retries=_RETRIES)
    return task.remote(run.recipe, run.path.resolve(), resources.cpus, is_trusting())


def _train(
    recipe: Recipe, path: Path, cpus: int, trusts: bool | None
) -> tuple[dict[str, Any] | None, str | None, list[str]]:
    """In a worker: train or resume a run; return its results or the message of its failure, and lehr's warnings."""
    import torch

    from lehr.training import session

    torch.set_num_threads(cpus)  # the last bits of a run depend on it
    results, failure = None, None
    with warnings.catch_warnings(record=True) as caught:
        try:
            with contextlib.nullcontext() if trusts is None else trusting(trusts):
                begun = RunFolder(path).recipe.exists()
                results = session.resume(path) if begun else session.train(recipe, path)
        except (Diverged, Interrupted, RunError, OSError, ValueError) as error:
            failure = str(error)
    return results, failure, [str(one.message) for one in caught if one.category.__module__.startswith("lehr.")]


def _outcome(ray: Any, task: Any, run: Planned) -> tuple[dict[str, Any] | None, str | None]:
    """Return the results of a task that has ended, or the message of its failure; repeat its warnings here."""
    try:
        results, failure, warned = ray.get(task)
    except ray.exceptions.RayTaskError as error:  # a defect: its traceback is wanted
        return None, str(error)
    except ray.exceptions.RayError as error:
        return None, f"its worker died {_RETRIES + 1} times: {_one_line(error)}"
    for message in warned:
        warnings.warn(f"{run.path.name}: {message}", RunWarning, stacklevel=2)
    return results, failure


def _state(run: Planned, *, waiting: bool) -> State:
    """Return how far a run is, by its folder; Ray itself does not say which tasks run."""
    if run.finished:
        return State(run, run.recipe.epochs, "finished")
    epoch = RunFolder(run.path).epochs_done()
    if not waiting:
        return State(run, epoch, "failed")
    return State(run, epoch, "trains" if (run.path / lock.NAME).exists() else "waits")


def _stop(ray: Any, tasks: list[Any]) -> None:
    """Interrupt all runs, as Ctrl-C does, and wait until they have stopped; they keep their checkpoints."""
    for task in tasks:
        ray.cancel(task)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=_SECONDS_TO_STOP)


@contextlib.contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Yield a list to which a SIGTERM or Ctrl-C inside the block is added; a second one ends the process at once.

    An exception would leave Ray's calls halfway.
    """
    noted: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        noted.append(signum)
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)

    before = [signal.signal(one, note) for one in _SIGNALS]
    try:
        yield noted
    finally:
        for one, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(one, handler)


@contextlib.contextmanager
def _connected(place: str) -> Iterator[Any]:
    """Connect to a cluster, or start Ray on this machine; raise RunError if neither can be had."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray
    import ray.exceptions

    address = place if place != RAY else os.environ.get("RAY_ADDRESS") or "local"
    if address not in ("auto", "local"):
        _check_reachable(address)
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    settings["runtime_env"] = {"env_vars": {name: os.environ[name] for name in _PASSED_ON if name in os.environ}}
    if address == "local":
        settings |= {"num_cpus": _cores(), "include_dashboard": False}
    sigterm = signal.getsignal(signal.SIGTERM)  # Ray sets its own
    try:
        with _no_stderr():
            ray.init(address, **settings)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise RunError(
            f"Ray cannot be used at {address} ({_one_line(error)}): the port is 6379 in RAY_ADDRESS and 10001 behind "
            "ray:// unless the cluster was started with others, and RAY_AUTH_TOKEN is the cluster's, if it has one"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, sigterm)


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Drop what is written to standard error inside the block: Ray's log, before an exception that says the same."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _check_reachable(address: str) -> None:
    """Raise RunError unless something answers at the address; Ray itself would try for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname or "", parts.port or (10001 if parts.scheme == "ray" else 6379)
        socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, ValueError) as error:
        raise RunError(
            f"no Ray cluster answers at {address} ({error}): start one with `ray start --head`, or use the cores of "
            "this machine with --on ray and without RAY_ADDRESS"
        ) from None


def _warn_if_too_large(ray: Any, resources: Resources) -> None:
    """Warn if no machine has what a run asks for: the runs then wait, for ever unless the cluster grows."""
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    cpus, gpus = (int(max(machine.get(kind, 0) for machine in machines)) for kind in ("CPU", "GPU"))
    if resources.cpus > cpus or (resources.gpus or 0) > gpus:
        asked = f"{resources.cpus} CPUs and {resources.gpus or 0:g} GPUs"
        warnings.warn(
            f"each run asks for {asked}, and no machine has more than {cpus} and {gpus}: the runs wait for one",
            RunWarning,
            stacklevel=2,
        )


def _cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
