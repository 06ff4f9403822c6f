"""A series on Ray: a real cluster of two nodes on this machine, a worker killed, a driver interrupted."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from lehr.cli import main
from lehr.training.cluster import State
from lehr.training.folder import RunFolder, load_checkpoint
from lehr.training.series import plan
from lehr.training.series_progress import LiveTable
from processes import ENVIRONMENT, PATIENCE, Lehr, lehr, set_environment

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is an extra of its own: pip install 'lehr[ray]'"
)

# Noise is drawn, so that the random state matters; wide enough for epochs to last longer than a look at the folder.
KEYS = ("--epochs", 8, "--annealing.schedule.duration", 1, "--model.hidden", "[512,512]", "--algorithm.mode", "sample")
SERIES = ("compare", "--methods", "ana", "--dataset", "digits", "--seeds", 2, *KEYS)
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@dataclass(frozen=True)
class Cluster:
    """Where a driver finds the cluster, and with which settings."""

    client: str  # ray://...
    settings: dict[str, str]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as probes:
        found = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in found:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in found]


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"did not happen within {PATIENCE} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with a CPU each, as `ray start` makes them."""
    port, client = free_ports(2)
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # On a busy machine workers with Ray's niceness, 15, would hardly run, and a driver's server needs more than 30 s.
    patient = {"RAY_worker_niceness": "0", "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": str(int(PATIENCE))}
    # Ray's client server forks while its threads call gRPC, whose fork handlers abort the child now and then.
    environment = {**ENVIRONMENT, **settings, **patient, "GRPC_ENABLE_FORK_SUPPORT": "0"}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
    command += ["--node-ip-address=127.0.0.1", "--disable-usage-stats", "--object-store-memory=80000000"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]  # any free ones: both nodes would take the same range
    nodes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # a short path: sockets are in it
        head = ["--head", f"--port={port}", f"--ray-client-server-port={client}", f"--temp-dir={folder}"]
        try:
            for words in ([*head, "--include-dashboard=false"], [f"--address=127.0.0.1:{port}"]):
                wait_until(lambda: not nodes or answers(port))
                nodes.append(subprocess.Popen([*command, *words], env=environment, start_new_session=True, **QUIET))
            wait_until(lambda: answers(client))
            yield Cluster(f"ray://127.0.0.1:{client}", {**settings, "RAY_ADDRESS": f"127.0.0.1:{port}"})
        finally:
            for node in nodes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(node.pid, signal.SIGKILL)
                node.wait(PATIENCE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    code, output = lehr(*SERIES, "--out", folder, output=folder / "log")
    assert code == 0, output
    return folder


def assert_equal_runs(found: Path, expected: Path) -> None:
    for seed in range(2):
        ours, theirs = (RunFolder(folder / f"ana-seed{seed}") for folder in (found, expected))
        assert ours.metrics.read_bytes() == theirs.metrics.read_bytes()
        weights = load_checkpoint(theirs.final)["state_dict"]
        for name, tensor in load_checkpoint(ours.final)["state_dict"].items():
            assert torch.equal(tensor, weights[name]), name


def holder(run: RunFolder) -> int:
    """The process that trains a run."""
    return json.loads((run.path / "train.lock").read_text())["pid"]


@needs_ray
def test_a_killed_worker_changes_nothing(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "all" / "ana-seed0")
    find = functools.partial(set_environment, cluster.settings)
    words = (*SERIES, "--out", tmp_path / "all", "--on", cluster.client)
    series = Lehr(*words, output=tmp_path / "log", before=find)
    series.wait_for(lambda: run.epochs_done() >= 2)
    os.kill(holder(run), signal.SIGKILL)
    assert series.wait() == 0, series.output
    assert re.search(r"^ana-seed0 trains; [01] of 2 runs are finished$", series.output, re.MULTILINE)
    assert "ana-seed1: 9" in series.output  # its accuracy
    assert_equal_runs(tmp_path / "all", undisturbed)


@needs_ray
def test_ctrl_c_stops_all_runs_and_the_same_command_goes_on_elsewhere(
    cluster: Cluster, undisturbed: Path, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "all" / "ana-seed0")
    words = (*SERIES, "--out", tmp_path / "all", "--on", "ray")
    log = tmp_path / "log"
    with log.open("w") as output:  # on the cores of this machine: no address
        series = subprocess.Popen(
            [sys.executable, "-m", "lehr", *map(str, words)],
            env={**ENVIRONMENT, "RAY_worker_niceness": "0"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    wait_until(lambda: run.epochs_done() >= 2 or series.poll() is not None)
    os.killpg(series.pid, signal.SIGINT)  # as a terminal does: to Ray's processes too
    assert series.wait(PATIENCE) == 130, log.read_text()
    assert log.read_text().splitlines()[-1] == "lehr compare: stopped by SIGINT; repeat the command to continue"
    assert "Traceback" not in log.read_text()
    assert not (run.path / "train.lock").exists()
    assert not run.results.exists()
    find = functools.partial(set_environment, cluster.settings)
    code, told = lehr(*words, output=tmp_path / "again", before=find)
    assert code == 0, told
    assert_equal_runs(tmp_path / "all", undisturbed)


def test_progress_is_one_table_with_what_trains_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished, trains, waits = plan(["ana"], "digits", seeds=3, folder=tmp_path)
    states = [State(finished, 50, "finished"), State(trains, 7, "trains"), State(waits, 0, "waits")]
    with LiveTable() as table:
        table.show(states)
    header, *rows = capsys.readouterr().err.splitlines()
    assert header.endswith("3 runs: 1 trains, 1 waits, 1 finished ")
    assert [row.split() for row in rows] == [
        ["ana-seed1", "7", "of", "50", "trains"],
        ["ana-seed2", "0", "of", "50", "waits"],
        ["ana-seed0", "50", "of", "50", "finished"],
    ]


@needs_ray
def test_an_address_where_nobody_answers_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    address = f"ray://127.0.0.1:{port}"
    words = ["compare", "--methods", "ana", "--dataset", "digits", "--out", str(tmp_path), "--on", address]
    assert main(words) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"lehr compare: no Ray cluster answers at {address} (")
    assert told.endswith("or use the cores of this machine with --on ray and without RAY_ADDRESS\n")
    assert told.count("\n") == 1


def test_words_that_make_no_place_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    series = ["compare", "--methods", "ana", "--dataset", "digits"]
    assert main([*series, "--on", "slurm"]) == 2
    assert capsys.readouterr().err.endswith(
        "--on is ray, or the address of a cluster such as ray://host:10001, got 'slurm'\n"
    )
    assert main([*series, "--cpus", "2"]) == 2
    assert capsys.readouterr().err.endswith("--cpus and --gpus are what each run asks Ray for: add --on ray\n")
