"""A run that was interrupted and resumed ends as if it had never stopped: real processes, real signals."""

from __future__ import annotations

import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lehr.training.folder import RunFolder, load_checkpoint
from lehr.training.loop import Step
from processes import ENVIRONMENT, PATIENCE, Lehr, lehr

# Everything that draws random numbers or carries state over: sampled noise, augmentation, annealing by the batch,
# re-estimated BatchNorm, momenta, a schedule by the step. Wide enough for its checkpoints to take a moment to write.
RECIPE = (
    "digits-ana",
    *("--epochs", 6, "--annealing.schedule.duration", 1, "--annealing.per", "batch", "--batchnorm_batches", 1),
    *("--algorithm.mode", "sample", "--data.augment", "true", "--data.padding", 1, "--data.flip", "false"),
    *("--model.hidden", "[512,512]"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run that was never interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    code, output = lehr("train", *RECIPE, "--out", path, output=path.with_suffix(".log"))
    assert code == 0, output
    return RunFolder(path)


@pytest.fixture
def begun(tmp_path: Path) -> Lehr:
    return Lehr("train", *RECIPE, "--out", tmp_path / "run", output=tmp_path / "log")


def resumed(path: Path) -> str:
    code, output = lehr("train", "--resume", path, output=path.parent / "resumed.log")
    assert code == 0, output
    return output


def assert_same(path: Path, whole: RunFolder) -> None:
    run = RunFolder(path)
    assert run.metrics.read_bytes() == whole.metrics.read_bytes()
    ours, theirs = load_checkpoint(run.final)["state_dict"], load_checkpoint(whole.final)["state_dict"]
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
    assert not list(path.rglob("*.part"))


def test_the_run_that_is_compared_with_has_no_times_in_its_metrics_and_learned_something(whole: RunFolder) -> None:
    rows = whole.read_metrics()
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert float(rows[-1]["val/accuracy"]) > 0.5
    assert not [name for name in rows[0] if "sec" in name or "time" in name]


def test_sigterm_ends_the_run_promptly_and_says_how_to_go_on(begun: Lehr, tmp_path: Path, whole: RunFolder) -> None:
    run = tmp_path / "run"
    begun.wait_for(RunFolder(run).checkpoint(2).exists)
    begun.signal(signal.SIGTERM)
    told = time.monotonic()
    assert begun.wait() == 143
    assert time.monotonic() - told < 10
    assert begun.output == f"lehr train: stopped by SIGTERM; continue with: lehr train --resume {run}\n"
    resumed(run)
    assert_same(run, whole)


def test_ctrl_c_in_the_first_epoch_is_resumed_from_the_beginning(begun: Lehr, tmp_path: Path, whole: RunFolder) -> None:
    run = tmp_path / "run"
    begun.wait_for((run / "metrics.csv").exists)
    begun.signal(signal.SIGINT)
    assert begun.wait() == 130
    assert begun.output == f"lehr train: stopped by SIGINT; continue with: lehr train --resume {run}\n"
    resumed(run)
    assert_same(run, whole)


def test_ctrl_c_reaches_reader_processes_too_and_they_say_nothing(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    words = ("shapes-alexnet-ana", "--data.root", str(tmp_path), "--data.workers", "2", "--out", str(run))
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lehr", "train", *words, "--epochs", "200"],
            env=ENVIRONMENT,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    while not RunFolder(run).checkpoint(1).exists():
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the readers too
    assert process.wait(PATIENCE) == 130
    assert log.read_text() == f"lehr train: stopped by SIGINT; continue with: lehr train --resume {run}\n"


def _kill_at(number: int) -> None:
    """Let this process end itself as `kill -9` does, in the middle of a step."""
    from lehr.training import session

    def kill(step: Step) -> None:
        if step.step == number:
            os.kill(os.getpid(), signal.SIGKILL)

    session.train = functools.partial(session.train, watch=kill)


@pytest.mark.parametrize("step", [0, 3 * 19 + 10, 6 * 19 - 1])
def test_kill_in_the_middle_of_an_epoch_loses_only_that_epoch(step: int, tmp_path: Path, whole: RunFolder) -> None:
    run = RunFolder(tmp_path / "run")
    before = functools.partial(_kill_at, step)
    code, _ = lehr("train", *RECIPE, "--out", run.path, output=tmp_path / "log", before=before)
    assert code == -signal.SIGKILL
    assert len(run.read_metrics()) == step // 19
    resumed(run.path)
    assert_same(run.path, whole)


def test_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path: Path, whole: RunFolder) -> None:
    run = RunFolder(tmp_path / "run")

    def writing() -> bool:
        return any(name.endswith(".part") for name in _names(run.checkpoints)) and run.checkpoint(1).exists()

    for attempt in range(10):  # the last moment of writing is the renaming: then it was too late
        words = ("--resume", run.path) if run.recipe.exists() else (*RECIPE, "--out", run.path)
        command = Lehr("train", *words, output=tmp_path / f"log{attempt}")
        command.wait_for(writing)
        command.signal(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        if any(name.endswith(".part") for name in _names(run.checkpoints)):
            break
    else:
        pytest.fail("no checkpoint was caught in the middle of its writing")
    resumed(run.path)
    assert_same(run.path, whole)


def test_a_crash_between_the_last_epoch_and_the_results_is_made_good(tmp_path: Path, whole: RunFolder) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(whole.path, run.path)
    results = run.results.read_bytes()
    run.results.unlink()
    run.final.unlink()
    resumed(run.path)
    assert run.results.read_bytes() == results
    assert_same(run.path, whole)


@pytest.mark.parametrize("damage", ["truncated", "a bit of a tensor flipped", "empty"])
def test_a_damaged_last_checkpoint_falls_back_to_the_one_before_and_says_so(
    damage: str, tmp_path: Path, whole: RunFolder
) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(whole.path, run.path)
    run.results.unlink()
    run.final.unlink()
    last = run.checkpoint(6)
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes({"truncated": content[: len(content) // 2], "empty": b""}.get(damage, content))
    output = resumed(run.path)
    assert f"lehr: checkpoint {last} is damaged" in output
    assert "trying the checkpoint before it" in output
    assert_same(run.path, whole)


def _limit_file_size(size: int) -> None:
    """A file that grows beyond `size` fails with EFBIG, an OSError like that of a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_checkpoint_that_does_not_fit_is_reported_and_loses_nothing(tmp_path: Path, whole: RunFolder) -> None:
    run = RunFolder(tmp_path / "run")
    limit = functools.partial(_limit_file_size, 1_000_000)  # a checkpoint has several megabytes
    code, output = lehr("train", *RECIPE, "--out", run.path, output=tmp_path / "log", before=limit)
    assert code == 1
    assert output.startswith(f"lehr train: cannot write {run.checkpoint(1)}: File too large; ")
    assert output.endswith("continue with --resume\n")
    assert output.count("\n") == 1
    resumed(run.path)
    assert_same(run.path, whole)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path, whole: RunFolder) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = int(2.5 * whole.checkpoint(6).stat().st_size)  # two checkpoints fit, a third does not
    if os.system(f"mount -t tmpfs -o size={size} tmpfs {disk} 2> /dev/null"):
        pytest.skip("this container may not mount a file system")
    try:
        code, output = lehr("train", *RECIPE, "--out", disk / "run", output=tmp_path / "log")
        assert code == 1
        run = RunFolder(disk / "run")
        assert output == (
            f"lehr train: cannot write {run.checkpoint(3)}: No space left on device; "
            "what was saved before is intact: fix the cause and continue with --resume\n"
        )
        assert len(run.read_metrics()) >= 2
        shutil.copytree(run.path, tmp_path / "run")
    finally:
        os.system(f"umount {disk}")
    resumed(tmp_path / "run")
    assert_same(tmp_path / "run", whole)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
