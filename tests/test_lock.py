"""A run folder belongs to one process at a time: real processes, which are refused, killed and started at once."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from lehr.training.errors import RunError, RunWarning
from lehr.training.folder import RunFolder
from lehr.training.lock import alone
from processes import Lehr, lehr

LONG = ("digits-ana", "--epochs", 10_000, "--annealing.schedule.duration", 1, "--model.hidden", "[16]")
SHORT = ("digits-ana", "--epochs", 2, "--annealing.schedule.duration", 0.5, "--model.hidden", "[16]")


def refusal(command: str, run: Path, pid: int | None) -> str:
    holder = rf"process {pid} on {re.escape(socket.gethostname())} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{{4}}"
    return rf"lehr {command}: {re.escape(str(run))} is being trained by {holder}: wait for it to end, or stop it\n"


def test_a_run_that_is_being_trained_is_refused_with_who_trains_it_until_that_is_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = Lehr("train", *LONG, "--out", run, output=tmp_path / "first")
    first.wait_for(RunFolder(run).checkpoint(1).exists)
    for words in (("--resume", run), (*SHORT, "--out", run)):
        code, output = lehr("train", *words, output=tmp_path / "log")
        assert code == 1
        assert re.fullmatch(refusal("train", run, first.process.pid), output)
    assert first.process.is_alive()
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("epochs: 10000\n", f"epochs: {len(os.listdir(run)) + 1000}\n"))
    second = Lehr("train", "--resume", run, output=tmp_path / "second")
    newest = max(int(path.stem.split("-")[1]) for path in (run / "checkpoints").glob("epoch-*.ckpt"))
    second.wait_for(RunFolder(run).checkpoint(newest + 1).exists)
    second.signal(signal.SIGINT)
    assert second.wait() == 130
    assert not (run / "train.lock").exists()


def test_of_several_that_begin_at_once_one_trains_and_loses_nothing(tmp_path: Path) -> None:
    run = tmp_path / "deep" / "run"
    words = (*SHORT, "--epochs", 30, "--out", run)
    began = [Lehr("train", *words, "--seed", seed, output=tmp_path / f"log{seed}") for seed in range(3)]
    codes = [command.wait() for command in began]
    assert sorted(codes) == [0, 1, 1]
    winner = codes.index(0)
    assert f"seed: {winner}\n" in (run / "recipe.yaml").read_text()
    assert len(RunFolder(run).read_metrics()) == 30
    for command in (*began[:winner], *began[winner + 1 :]):
        told = refusal("train", run, began[winner].process.pid)
        assert re.fullmatch(rf"{told}|lehr train: {run} already holds a run: .*\n", command.output)
    assert sorted(os.listdir(run)) == [
        *("checkpoints", "metrics.csv", "recipe.yaml", "results.json", "run.json", "tensorboard")
    ]


def test_a_twin_is_held_with_its_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = Lehr("train", *SHORT, "--pretraining.epochs", 10_000, "--out", run, output=tmp_path / "first")
    first.wait_for(RunFolder(RunFolder(run).twin).checkpoint(1).exists)
    for path in (run, run / "twin"):
        code, output = lehr("train", "--resume", path, output=tmp_path / "log")
        assert (code, bool(re.fullmatch(refusal("train", path, first.process.pid), output))) == (1, True), output
    first.signal(signal.SIGKILL)
    first.wait()


def test_what_holds_no_run_afterwards_is_removed_again(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for path in (tmp_path / "a" / "b", tmp_path / "kept"):
        with alone(path):
            assert (path / "train.lock").exists()
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(tmp_path / "kept") == []


def test_a_program_that_trains_twice_into_one_folder_raises(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(RunError, match="this process is already training"), alone(tmp_path):
        pass
    with alone(tmp_path):  # and again afterwards
        pass


def test_a_file_system_without_locks_warns_and_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with pytest.warns(RunWarning, match="cannot be locked .No locks available.: make sure"), alone(tmp_path):
        pass
