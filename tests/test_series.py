"""A comparison of methods trains what is missing and nothing else: real processes, real signals."""

from __future__ import annotations

import csv
import signal
from pathlib import Path

import pytest
import torch

from lehr.cli import main
from lehr.training.errors import RunError
from lehr.training.folder import RunFolder, load_checkpoint
from lehr.training.recipes import RecipeError, methods
from lehr.training.series import plan
from processes import Lehr, lehr

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
TINY = ("--epochs", "1", "--annealing.schedule.duration", "0.2", "--model.hidden", "[16]")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Three methods with two seeds, and the output of the command."""
    folder = tmp_path_factory.mktemp("compared")
    command = ("compare", "--methods", "fp", "ana", "inq", "--dataset", "digits", "--seeds", 2, "--out", folder, *TINY)
    code, output = lehr(*command, output=folder / "log")
    assert code == 0, output
    return folder, output


def test_every_method_is_trained_with_every_seed_and_listed(compared: tuple[Path, str]) -> None:
    folder, output = compared
    runs = sorted(path.parent.name for path in folder.glob("*/results.json"))
    assert runs == [f"{method}-seed{seed}" for method in ("ana", "fp", "inq") for seed in (0, 1)]
    assert "run 1 of 6: fp-seed0 begins" in output
    assert "run 6 of 6: inq-seed1 begins" in output
    assert "about 0.0 s left" in output
    assert "±" in output
    with (folder / "compare.csv").open() as file:
        full, ana, inq = csv.DictReader(file)
    assert [row["name"] for row in (full, ana, inq)] == ["fp", "ana", "inq"]
    assert [row["runs"] for row in (full, ana, inq)] == ["2", "2", "2"]
    assert int(full["bytes"]) == 4 * (64 * 16 + 16 * 10) > int(inq["bytes"]) > int(ana["bytes"])
    assert int(ana["macs"]) == 64 * 16 + 16 * 10
    assert ana["mac_kinds"] == "86.5 % 1.58x8, 13.5 % 1.58x1.58"
    assert inq["mac_kinds"] == "86.5 % 4.09x8, 13.5 % 4.09x32"
    assert "INQ" in (folder / "compare.md").read_text()
    assert "<svg" in (folder / "compare.html").read_text()


def test_what_is_there_is_not_trained_again_and_what_is_missing_is(
    compared: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = compared
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/results.json")}
    command = ["compare", "--methods", "fp", "ana", "--dataset", "digits", "--out", str(folder), *TINY]
    assert main([*command, "--seeds", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "4 of 4 runs are finished already\n"
    assert main([*command, "--seeds", "3"]) == 0
    captured = capsys.readouterr()
    assert "4 of 6 runs are finished already" in captured.err
    assert "run 5 of 6: fp-seed2 begins" in captured.err
    after = {path: path.stat().st_mtime_ns for path in folder.glob("*/results.json")}
    assert before.items() < after.items()
    assert len(after) == len(before) + 2


def test_runs_of_another_recipe_are_refused(compared: tuple[Path, str]) -> None:
    folder, _ = compared
    with pytest.raises(RunError, match=r"ana-seed0 holds a run with epochs 1, not 9: choose another folder"):
        plan(["ana"], "digits", seeds=1, folder=folder, overrides=[*TINY, "--epochs", "9"])
    with pytest.raises(RunError, match=r"inq-seed0 holds a run with algorithm.bits 5, not 4"):
        plan(["inq"], "digits", seeds=1, folder=folder, overrides=[*TINY, "--algorithm.bits", "4"])


def test_a_start_may_be_a_relative_path(
    compared: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = compared
    monkeypatch.chdir(folder)
    start = ["--start", "fp-seed0", "--distillation.teacher", "fp-seed0"]
    command = ["compare", "--methods", "ana", "--dataset", "digits", "--seeds", "1", "--out", str(tmp_path), *TINY]
    assert main([*command, *start]) == 0
    assert main([*command, *start]) == 0


def test_a_stopped_comparison_resumes_with_the_same_command_bit_for_bit(tmp_path: Path) -> None:
    keys = ("--epochs", 6, "--model.hidden", "[256,256]", "--algorithm.partition", "random")
    command = ("compare", "--methods", "inq", "--dataset", "digits", "--seeds", 2, "--out", tmp_path / "all", *keys)
    begun = Lehr(*command, output=tmp_path / "log")
    begun.wait_for(RunFolder(tmp_path / "all" / "inq-seed0").checkpoint(4).exists)  # when half of it is frozen
    begun.signal(signal.SIGTERM)
    assert begun.wait() == 143
    last = begun.output.splitlines()[-1]
    assert last == "lehr compare: stopped by SIGTERM; repeat the command to continue"
    code, output = lehr(*command, output=tmp_path / "again")
    assert code == 0, output
    assert "run 1 of 2: inq-seed0 continues" in output
    assert "run 2 of 2: inq-seed1 begins" in output
    code, output = lehr("train", "digits-inq", *keys, "--out", tmp_path / "whole", output=tmp_path / "third")
    assert code == 0, output
    ours, theirs = RunFolder(tmp_path / "all" / "inq-seed0"), RunFolder(tmp_path / "whole")
    assert ours.metrics.read_bytes() == theirs.metrics.read_bytes()
    expected = load_checkpoint(theirs.final)["state_dict"]
    for name, tensor in load_checkpoint(ours.final)["state_dict"].items():
        assert torch.equal(tensor, expected[name]), name
    assert any("frozen" in name for name in expected)


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--methods", "fp", "--dataset", "digits", "--seeds", "2", "--out", str(tmp_path), *TINY]
    assert main([*command, "--optimizer.lr", "1e38"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("the loss became") == 2
    assert captured.err.endswith("lehr compare: 2 runs failed: see above\n")
    assert "not yet" in captured.out


def test_all_are_all(tmp_path: Path) -> None:
    planned = plan(["all"], "digits", seeds=2, folder=tmp_path)
    assert [run.method for run in planned] == methods() * 2
    assert [run.recipe.seed for run in planned] == [0] * len(methods()) + [1] * len(methods())


@pytest.mark.parametrize(
    ("chosen", "base", "seeds", "message"),
    [
        (["anna"], "digits", 1, r"no method is called 'anna'; choose fp, ana, .*; did you mean ana\?"),
        (["ana"], "digit", 1, r"methods are compared on one of .*digits.*, got 'digit'"),
        (["ana"], "digits", 0, "seeds must be at least 1, got 0"),
    ],
)
def test_a_wrong_plan_is_one_sentence(chosen: list[str], base: str, seeds: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        plan(chosen, base, seeds=seeds, folder=tmp_path)


def test_several_devices_are_for_single_runs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a comparison trains on one device"):
        plan(["ana"], "digits", seeds=1, folder=tmp_path, overrides=["--devices", "2", "--strategy", "ddp"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "which runs? name their folders, or --methods all --dataset digits to train them"),
        (("--methods", "ana"), "on which data? --dataset digits, fashion-mnist or cifar10-quarter"),
        (("--methods", "ana", "--dataset", "digits", "--speed", "3"), "unrecognized arguments: --speed 3"),
        (("nowhere",), "nowhere is not a run"),
    ],
)
def test_wrong_words_are_one_sentence(
    words: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) != 0
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
