"""Two real processes that train together: one run, one output, metrics of the whole data set."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lehr.data import load
from lehr.training.folder import RunFolder
from lehr.training.loaders import Loaders
from lehr.training.recipe import Data
from lehr.training.run import evaluate
from processes import ENVIRONMENT, PATIENCE, Lehr

SCRIPT = Path(sys.executable).with_name("lehr")
RECIPE = (
    *("digits-ana", "--epochs", "3", "--annealing.schedule.duration", "1", "--algorithm.mode", "sample"),
    *("--accelerator", "cpu", "--devices", "2", "--strategy", "ddp"),
)


def start(*words: object, folder: Path) -> subprocess.Popen[str]:
    command = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "lehr"]
    return subprocess.Popen(
        [*command, "train", *map(str, words)],
        env=ENVIRONMENT,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str, str]:
    folder = tmp_path_factory.mktemp("ddp")
    process = start(*RECIPE, folder=folder)  # without --out: both processes must mean the same folder
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return RunFolder(folder / "runs" / "digits-ana-seed0"), output, errors


def test_only_the_first_process_writes_and_prints(finished: tuple[RunFolder, str, str]) -> None:
    run, output, errors = finished
    assert os.listdir(run.path.parent) == ["digits-ana-seed0"]
    assert sorted(os.listdir(run.path)) == [
        *("checkpoints", "metrics.csv", "recipe.yaml", "results.json", "run.json", "tensorboard")
    ]
    assert len(os.listdir(run.tensorboard)) == 1
    assert output.count("validation") == 1
    assert errors == ""


def test_metrics_are_those_of_the_whole_data_set(finished: tuple[RunFolder, str, str]) -> None:
    run, _, _ = finished
    results = json.loads(run.results.read_text())
    alone = evaluate(run.path)
    for stage, count in (("val", 180), ("test", 364)):
        assert results[f"{stage}/loss"] == pytest.approx(alone[f"{stage}/loss"], rel=1e-5)
        assert round(results[f"{stage}/accuracy"] * count) == round(alone[f"{stage}/accuracy"] * count)
    last = run.read_metrics()[-1]
    assert float(last["val/loss"]) == pytest.approx(alone["val/loss"], rel=1e-5)
    seen = float(last["train/accuracy"]) * 19 * 64  # 19 steps of 64 images, 32 in each process
    assert seen == pytest.approx(round(seen), abs=1e-3)
    assert results["test/accuracy"] > 0.85


def test_sigterm_ends_all_processes_and_the_run_resumes_bit_for_bit(
    finished: tuple[RunFolder, str, str], tmp_path: Path
) -> None:
    whole, _, _ = finished
    run = RunFolder(tmp_path / "run")
    process = start(*RECIPE, "--out", run.path, folder=tmp_path)
    deadline = time.monotonic() + PATIENCE
    while not run.checkpoint(1).exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)  # until every process that could write to the pipe is gone
    assert process.returncode == 143
    assert errors == f"lehr train: stopped by SIGTERM; continue with: lehr train --resume {run.path}\n"
    process = start("--resume", run.path, folder=tmp_path)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert run.metrics.read_bytes() == whole.metrics.read_bytes()


def test_a_loss_that_is_not_finite_in_several_processes_is_reported_once(tmp_path: Path) -> None:
    absurd = ("--algorithm", "FullPrecision", "--optimizer.name", "sgd", "--optimizer.lr", "1e38")
    process = start(*RECIPE[:5], *RECIPE[7:], *absurd, "--out", tmp_path / "run", folder=tmp_path)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert errors.count("lehr train: the loss became nan at step") == 1
    assert "Traceback" not in errors


def as_torchrun_starts_the_first_of_two() -> None:
    os.environ |= {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    os.environ |= {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def test_more_processes_of_torchrun_than_devices_are_refused(tmp_path: Path) -> None:
    words = ("train", *RECIPE[:5], "--accelerator", "cpu", "--out", tmp_path / "run")
    process = Lehr(*words, output=tmp_path / "log", before=as_torchrun_starts_the_first_of_two)
    assert process.wait() == 2
    assert "torchrun started 2 processes, but devices is 1 and num_nodes 1: set --devices" in process.output
    assert not (tmp_path / "run").exists()


def test_a_batch_is_dealt_out_evenly_or_not_at_all() -> None:
    splits = load("digits")
    with pytest.raises(ValueError, match="data.batch_size must be a multiple of the 2 processes, got 63"):
        Loaders(splits, Data("digits", batch_size=63), seed=0, rank=1, world_size=2).training()
    batches = Loaders(splits, Data("digits", batch_size=64), seed=0, rank=1, world_size=2).training()
    assert (batches.batch_size, batches.rank, len(batches)) == (32, 1, 19)


# A process that ends early.

LONG = (*RECIPE[:1], "--epochs", "500", *RECIPE[3:])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(happened: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the other process is found in /proc")
@pytest.mark.parametrize("killed", ["the first", "another"])
def test_a_process_that_is_killed_ends_the_others_within_seconds_with_one_sentence(killed: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    process = start(*LONG, "--out", run.path, folder=tmp_path)
    wait_until(lambda: run.checkpoint(1).exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]
    (other,) = children(process.pid)
    os.kill(process.pid if killed == "the first" else other, signal.SIGKILL)
    wait_until(lambda: process.poll() is not None and gone(other), seconds=10)
    _, errors = process.communicate(timeout=10)
    if killed == "the first":
        assert process.returncode == -signal.SIGKILL
        begins = "lehr train: the first process ended"
    else:
        assert process.returncode == 1
        begins = "lehr train: process 2 of 2 was ended by SIGKILL"
    ends = f"continue with: lehr train --resume {run.path}"
    assert errors == f"{begins}, and the others cannot continue without it; {ends}\n"
    assert RunFolder(run.path).newest_checkpoint() is not None


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the other process is found in /proc")
def test_a_disk_that_is_full_for_the_first_process_ends_all_with_one_sentence(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    process = start(*LONG, "--out", run.path, folder=tmp_path)
    wait_until(lambda: run.checkpoint(1).exists() or process.poll() is not None)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    others = children(process.pid)
    wait_until(lambda: process.poll() is not None and all(map(gone, others)), seconds=10)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 1
    assert errors.count("\n") == 1
    assert errors.startswith("lehr train: cannot write ")
    assert errors.endswith("what was saved before is intact: fix the cause and continue with --resume\n")
