"""The training loop, in this process: the order of Algorithm 1, the measures, the errors."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import lehr
from crashes import Crash
from lehr.algorithms import ANA, Algorithm, FullPrecision
from lehr.annealing import AllAtOnce, AnnealingWarning, Hierarchical, LinearDecay, PowerDecay
from lehr.data import Splits, load
from lehr.training import machine, progress
from lehr.training.errors import Diverged, RunError, RunWarning
from lehr.training.evaluation import Tally, batchnorm_images
from lehr.training.folder import RunFolder, load_checkpoint
from lehr.training.loop import Step
from lehr.training.measures import changed_shares, level_codes, level_shares
from lehr.training.recipe import Annealing, Data, Model, Optimizer, RateSchedule, Recipe
from lehr.training.recipes import named
from lehr.training.run import build, evaluate, load_network, load_run, network_of, unused_path
from lehr.training.session import resume, train
from processes import lehr as lehr_process

STD = math.sqrt(3) / 6
RECIPE = Recipe(
    data=Data("digits", batch_size=64),
    model=Model("mlp", hidden=(64, 64)),
    epochs=4,
    algorithm=ANA(clip=1.0),
    annealing=Annealing(Hierarchical(1), law=PowerDecay()),
    optimizer=Optimizer(lr=0.01),
    batchnorm_batches=2,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterable[None]:
    """One thread, also for the runs of fixtures, since two threads round sums differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Spy:
    """The noise and the learning rate of each step."""

    def __init__(self) -> None:
        self.trained: list[list[tuple[float, float]]] = []
        self.lr: list[float] = []

    def __call__(self, step: Step) -> None:
        layers = [module for module in step.model.modules() if isinstance(module, lehr.Linear)]
        self.trained.append(
            [(layer.quantizer.forward_std.item(), layer.quantizer.backward_std.item()) for layer in layers]
        )
        self.lr.append(step.optimizer.param_groups[0]["lr"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Any], Spy]:
    path = tmp_path_factory.mktemp("finished") / "run"
    spy = Spy()
    results = train(RECIPE, path, watch=spy)
    assert results is not None
    return RunFolder(path), results, spy


def numbers(folder: RunFolder, column: str) -> list[float]:
    return [float(row[column]) for row in folder.read_metrics() if row[column]]


# Algorithm 1.


def test_noise_is_annealed_layer_after_layer_by_the_law(finished: tuple[RunFolder, dict[str, Any], Spy]) -> None:
    _, _, spy = finished
    per_epoch = spy.trained[::19]
    forward = [std for epoch in per_epoch for std, _ in epoch]
    expected = [*(STD, STD, STD), *(0, STD, STD), *(0, 0, STD), *(0, 0, 0)]
    assert forward == pytest.approx(expected, abs=1e-7)
    assert all(backward == pytest.approx(STD) for epoch in per_epoch for _, backward in epoch)
    assert all(spy.trained[i] == spy.trained[19 * (i // 19)] for i in range(len(spy.trained)))  # once an epoch


def test_noise_can_be_annealed_each_batch_and_the_backward_noise_with_it(tmp_path: Path) -> None:
    spy = Spy()
    annealing = Annealing(AllAtOnce(1), law=LinearDecay(), synchronous=True, per="batch")
    with pytest.warns(AnnealingWarning, match="get no gradient any more"):
        train(dataclasses.replace(RECIPE, annealing=annealing, epochs=2), tmp_path / "run", watch=spy)
    expected = [STD * (1 - step / 19) for step in range(19)] + [0.0] * 19
    for layer in range(3):
        assert [stds[layer][0] for stds in spy.trained] == pytest.approx(expected, abs=1e-6)
        assert [stds[layer][1] for stds in spy.trained] == pytest.approx(expected, abs=1e-6)


def test_windows_of_the_straight_through_estimator_narrow_where_a_backward_law_says_so(tmp_path: Path) -> None:
    annealing = Annealing(AllAtOnce(2), backward_law=LinearDecay(final=0.25))
    recipe = dataclasses.replace(RECIPE, algorithm=ANA(std=0, backward_std=0.4), annealing=annealing, epochs=3)
    spy = Spy()
    train(recipe, tmp_path / "run", watch=spy)
    for layer in range(3):
        assert [stds[layer][0] for stds in spy.trained] == [0.0] * 57
        assert [stds[layer][1] for stds in spy.trained] == pytest.approx([0.4] * 19 + [0.25] * 19 + [0.1] * 19)


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_log_gets_a_line_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: float
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", seconds)
    train(dataclasses.replace(RECIPE, epochs=2, annealing=Annealing(Hierarchical(0))), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    if seconds:
        assert lines == []  # the run was shorter
        return
    assert len(lines) == 2 * 19 - 1  # the first step may compile: the time left counts from its end
    number = r"\d+\.\d+"
    first = rf"{re.escape(str(tmp_path / 'run'))}: epoch 1/2  5%  0:00:0\d left 0:0\d:\d\d  loss {number}"
    assert re.fullmatch(first, lines[0])
    reached = [f"{accuracy:.2%}" for accuracy in numbers(RunFolder(tmp_path / "run"), "val/accuracy")]
    last = rf".*: epoch 2/2  100%  0:0\d:\d\d left 0:00:00  loss {number}  accuracy {re.escape(reached[0])}"
    assert re.fullmatch(last, lines[-1])


def test_a_schedule_that_leaves_noise_warns_and_the_results_tell_it(tmp_path: Path) -> None:
    with pytest.warns(AnnealingWarning, match="after 1 epochs layers 1, 2, 3 still have noise"):
        results = train(
            dataclasses.replace(RECIPE, epochs=1, annealing=Annealing(Hierarchical(2), law=LinearDecay())),
            tmp_path / "run",
        )
    assert results is not None
    assert [results[f"std/forward/{layer}"] for layer in (1, 2, 3)] == pytest.approx([STD / 2, STD, STD])


def test_validation_is_noise_free_with_the_noisy_accuracy_beside_it_while_noise_remains(
    finished: tuple[RunFolder, dict[str, Any], Spy],
) -> None:
    folder, _, _ = finished
    rows = folder.read_metrics()
    assert [bool(row["val/noisy_accuracy"]) for row in rows] == [True, True, True, False]
    assert rows[0]["val/noisy_loss"] != rows[0]["val/running_loss"]


def test_the_last_validation_is_what_evaluating_the_run_gives(finished: tuple[RunFolder, dict[str, Any], Spy]) -> None:
    folder, results, _ = finished
    assert results["test/accuracy"] > 0.9
    again = evaluate(folder.path)
    assert again == {name: pytest.approx(results[name], rel=1e-6) for name in again}
    assert set(again) == {"val/loss", "val/accuracy", "test/loss", "test/accuracy"}
    model, recipe, splits = load_run(folder.path)
    assert recipe == RECIPE
    assert not model.training
    correct = (model(splits.test.images).argmax(1) == splits.test.labels).float().mean().item()
    assert correct == pytest.approx(results["test/accuracy"])


def test_the_learning_rate_drops_when_annealing_ends(tmp_path: Path) -> None:
    spy = Spy()
    recipe = dataclasses.replace(
        RECIPE, schedule=RateSchedule("multi-step"), annealing=Annealing(Hierarchical(0.5)), epochs=2
    )
    train(recipe, tmp_path / "run", watch=spy)
    drop = round(1.5 * 19)  # three layers of half an epoch
    assert spy.lr == pytest.approx([0.01] * drop + [0.001] * (38 - drop))
    assert numbers(RunFolder(tmp_path / "run"), "lr") == pytest.approx([0.01, 0.001])


def test_batchnorm_is_re_estimated_for_validation_and_at_the_end_and_what_it_changes_is_shown(
    finished: tuple[RunFolder, dict[str, Any], Spy], tmp_path: Path
) -> None:
    folder, results, _ = finished
    rows = folder.read_metrics()
    assert all(row["val/loss"] != row["val/running_loss"] for row in rows)
    assert results["val/loss"] != results["val/running_loss"]
    assert results["val/running_loss"] == pytest.approx(float(rows[-1]["val/running_loss"]), rel=1e-6)
    # Training itself does not see it: without, it goes the same way.
    train(dataclasses.replace(RECIPE, batchnorm_batches=0), tmp_path / "run")
    without = RunFolder(tmp_path / "run").read_metrics()
    assert [row["train/loss"] for row in without] == [row["train/loss"] for row in rows]
    assert [row["val/loss"] for row in without] == [row["val/running_loss"] for row in rows]
    assert "val/running_loss" not in without[0]


# What is kept.


def test_metrics_hold_losses_noise_levels_and_gradients(finished: tuple[RunFolder, dict[str, Any], Spy]) -> None:
    folder, _, _ = finished
    columns = set(folder.read_metrics()[0])
    layers = ("layers.1", "layers.4", "layers.7")
    assert columns == {
        *("epoch", "lr", "train/loss", "train/accuracy"),
        *(f"val/{kind}{number}" for kind in ("", "noisy_", "running_") for number in ("loss", "accuracy")),
        *(f"std/{side}/{number}" for side in ("forward", "backward") for number in (1, 2, 3)),
        *(f"share/{layer}/{level}" for layer in layers for level in (-1, 0, 1)),
        *(f"changed/{layer}" for layer in layers),
        *(f"grad_norm/{layer}" for layer in layers),
    }
    assert numbers(folder, "std/forward/2") == pytest.approx([STD, STD, 0, 0], abs=1e-6)
    for layer in layers:
        shares = [numbers(folder, f"share/{layer}/{level}") for level in (-1, 0, 1)]
        assert [sum(epoch) for epoch in zip(*shares, strict=True)] == pytest.approx([1] * 4)
        assert all(0 < share < 0.9 for share in numbers(folder, f"changed/{layer}"))
        assert all(norm > 0 for norm in numbers(folder, f"grad_norm/{layer}"))


def test_tensorboard_shows_the_same_numbers(finished: tuple[RunFolder, dict[str, Any], Spy]) -> None:
    folder, _, _ = finished
    events = EventAccumulator(str(folder.tensorboard))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(folder.read_metrics()[0]) - {"epoch"}
    shown = events.Scalars("val/accuracy")
    assert [event.step for event in shown] == [0, 1, 2, 3]
    assert [event.value for event in shown] == pytest.approx(numbers(folder, "val/accuracy"))


def test_a_run_keeps_its_recipe_versions_commit_and_seed(finished: tuple[RunFolder, dict[str, Any], Spy]) -> None:
    folder, results, _ = finished
    info = json.loads(folder.info.read_text())
    assert info["seed"] == 0
    assert (info["torch"], info["lightning"], info["lehr"]) == (
        torch.__version__,
        lightning.__version__,
        lehr.__version__,
    )
    assert info["commit"] is None or re.fullmatch("[0-9a-f]{40}", info["commit"])
    assert info["images"]["shape"] == [1, 8, 8]
    assert json.loads(folder.results.read_text()) == results
    assert results["epochs"] == 4
    assert results["seconds"] > 0


def test_level_shares_and_changes_are_those_of_the_hard_weights() -> None:
    layer = lehr.Linear(4, 1, quantizer=lehr.Quantizer(scale=0.5))
    model = nn.Sequential(layer)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-0.3, 0.0, 0.25, 1.0]]))  # at scale 0.5: -1, 0, 1 (at the threshold), 1
    before = level_codes(model)
    assert level_shares(model, before) == {"share/0/-1": 0.25, "share/0/0": 0.25, "share/0/1": 0.5}
    with torch.no_grad():
        layer.weight.neg_()  # 1, 0, -1 (now beyond the threshold by H(0) = 1: 0), -1
    assert level_codes(model)["0"].tolist() == [[2, 1, 1, 0]]
    assert changed_shares(level_codes(model), before) == {"changed/0": 0.75}


# Going on.


def test_a_finished_run_is_not_trained_again(finished: tuple[RunFolder, dict[str, Any], Spy]) -> None:
    folder, results, _ = finished
    spy = Spy()
    assert resume(folder.path, watch=spy) == results
    assert not spy.trained


def test_resuming_repeats_only_what_was_lost_and_tensorboard_shows_no_epoch_twice(
    finished: tuple[RunFolder, dict[str, Any], Spy], tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")

    def block_the_third_checkpoint(step: Step) -> None:
        run.checkpoint(3).mkdir(exist_ok=True)

    with pytest.raises(RunError, match=r"cannot write .*epoch-00003\.ckpt"):
        train(RECIPE, run.path, watch=block_the_third_checkpoint)
    assert len(run.read_metrics()) == 3  # its row and its curves are there already
    run.checkpoint(3).rmdir()
    spy = Spy()
    results = resume(run.path, watch=spy)
    assert len(spy.trained) == 2 * 19
    assert run.metrics.read_text() == finished[0].metrics.read_text()
    assert results is not None
    assert results["test/loss"] == finished[1]["test/loss"]
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    assert [event.step for event in events.Scalars("lr")] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["xnor-net", "gxnor-net", "abc-net", "group-net-groups"])
def test_networks_of_other_structure_and_optimizers_resume_to_the_same_bits(name: str, tmp_path: Path) -> None:
    recipe = named(f"digits-{name}", ["--epochs", "2", "--model.hidden", "[16,16]"])
    whole, halves = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "halves")
    train(recipe, whole.path)
    with pytest.raises(ZeroDivisionError):
        train(recipe, halves.path, watch=Crash(1))
    resume(halves.path)
    theirs = load_network(whole.path)[0].state_dict()
    ours = load_network(halves.path)[0].state_dict()
    assert theirs.keys() == ours.keys()
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key


def test_another_environment_warns_when_resuming(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        train(RECIPE, run.path, watch=Crash(1))
    info = json.loads(run.info.read_text())
    run.info.write_text(json.dumps({**info, "torch": "1.0", "threads": 64}))
    with pytest.warns(
        RunWarning, match=r"began with torch 1\.0, threads 64 and resumes with torch .*: its numbers may differ"
    ):
        resume(run.path)


def test_a_folder_with_a_run_is_not_written_over(finished: tuple[RunFolder, dict[str, Any], Spy]) -> None:
    with pytest.raises(RunError, match="already holds a run"):
        train(RECIPE, finished[0].path)


def test_a_new_run_finds_a_new_name(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert unused_path(path) == path
    path.mkdir()
    assert unused_path(path) == tmp_path / "run-2"
    (tmp_path / "run-2").mkdir()
    assert unused_path(path) == tmp_path / "run-3"


# Starting from full precision.


@pytest.fixture(scope="module")
def full_precision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fp") / "run"
    train(dataclasses.replace(RECIPE, algorithm=FullPrecision(), epochs=3), path)
    return path


def test_full_precision_has_no_noise_no_levels_and_no_annealing(full_precision: Path) -> None:
    folder = RunFolder(full_precision)
    assert not [name for name in folder.read_metrics()[0] if name.startswith(("std", "share", "changed", "val/noisy"))]
    assert json.loads(folder.results.read_text())["test/accuracy"] > 0.93


def test_fine_tuning_starts_with_the_trained_weights_and_is_ahead_from_the_first_epoch(
    full_precision: Path, finished: tuple[RunFolder, dict[str, Any], Spy], tmp_path: Path
) -> None:
    recipe = dataclasses.replace(RECIPE, start=full_precision, optimizer=Optimizer(lr=1e-3))
    teacher, _ = load_network(full_precision)
    splits = load("digits")
    model = build(recipe, _images(splits), start=full_precision)
    theirs = dict(teacher.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, theirs[name])
    results = train(recipe, tmp_path / "run")
    assert results is not None
    assert results["test/accuracy"] > 0.9
    tuned = RunFolder(tmp_path / "run")
    assert numbers(tuned, "train/accuracy")[0] > numbers(finished[0], "train/accuracy")[0]
    saved = load_checkpoint(tuned.final)["state_dict"]
    assert saved["model.layers.1.quantizer.scale"].shape == (64, 1)
    network, _ = load_network(tuned.path)  # scales and all, without the run it started from
    assert torch.equal(network.state_dict()["layers.1.quantizer.scale"], saved["model.layers.1.quantizer.scale"])


def test_a_start_that_does_not_fit_raises(full_precision: Path, finished: tuple[RunFolder, Any, Any]) -> None:
    images = _images(load("digits"))
    wide = dataclasses.replace(RECIPE, model=Model("mlp", hidden=(32, 64)))
    with pytest.raises(RunError, match=r"full-precision network of this recipe: size mismatch for layers\.1\.weight"):
        build(wide, images, start=full_precision)
    with pytest.raises(RunError, match="is not the network of this recipe: Unexpected key"):
        build(dataclasses.replace(RECIPE, algorithm=FullPrecision()), images, start=finished[0].path)
    with pytest.raises(RunError, match="is not a run"):
        build(RECIPE, images, start=full_precision.parent)


def _images(splits: Splits) -> Any:
    from lehr.training.run import InputFormat

    return InputFormat.of(splits.train)


# What stops a run.


def test_a_loss_that_is_no_number_stops_the_run_with_layer_and_step(tmp_path: Path) -> None:
    absurd = dataclasses.replace(
        RECIPE, algorithm=FullPrecision(), optimizer=Optimizer("sgd", lr=1e38), model=Model("mlp", hidden=(8,))
    )
    message = r"the loss became (nan|inf) at step 1 \(epoch 0\); the output of layer layers\.1 is not finite"
    with pytest.raises(Diverged, match=message) as error:
        train(absurd, tmp_path / "run")
    assert "smaller learning rate or gradient clipping (--optimizer.lr, --optimizer.clip_norm)" in str(error.value)
    assert not RunFolder(tmp_path / "run").read_metrics()


def poison(step: Step) -> None:
    """Make a weight infinite in step 24."""
    if step.step == 24:
        with torch.no_grad():
            step.model.get_parameter("layers.5.weight")[3] = torch.inf


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"at step 25 \(epoch 1\); the weight of layer layers\.5 is not finite"):
        train(RECIPE, tmp_path / "run", watch=poison)
    assert len(RunFolder(tmp_path / "run").read_metrics()) == 1  # the epoch before is kept


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data": Data("digits", batch_size=5000)}, ValueError, "1253 training images do not fill one batch of 5000"),
        ({"data": Data("nope")}, ValueError, "no data set is called 'nope'"),
        ({"data": Data("cifar10", root=Path("/nowhere"))}, lehr.data.DataError, "/nowhere"),  # pyright: ignore[reportAttributeAccessIssue]
        ({"accelerator": "abacus"}, ValueError, "abacus"),
        ({"strategy": "luck"}, ValueError, "luck"),
        ({"start": Path("/nowhere")}, RunError, "/nowhere is not a run"),
        ({"algorithm": FullPrecision(), "schedule": RateSchedule("multi-step")}, ValueError, "nothing is annealed"),
        (
            {"data": Data("digits", augment=True, cutout=8)},
            ValueError,
            r"data\.cutout must be smaller than the images \(8x8\), got 8",
        ),
        (
            {"data": Data("digits", augment=True, padding=8, reflect=True)},
            ValueError,
            r"data\.padding must be smaller than the images \(8x8\) to reflect, got 8",
        ),
        ({"data": Data("imagenet", augment=True, cutout=8)}, ValueError, "data.cutout needs images in memory"),
        ({"data": Data("imagenet", augment=True, reflect=True)}, ValueError, "data.reflect needs images in memory"),
        ({"data": Data("imagenet", augment=True, flip="alternate")}, ValueError, "alternate needs images in memory"),
    ],
)
def test_what_cannot_be_trained_leaves_no_folder(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        train(dataclasses.replace(RECIPE, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("augment", [False, True])
def test_batchnorm_is_reestimated_from_images_as_training_sees_them(augment: bool) -> None:
    data = dataclasses.replace(RECIPE.data, augment=augment, padding=1)
    seen = batchnorm_images(dataclasses.replace(RECIPE, data=data), load("digits"))
    plain = {bytes(image.flatten()) for image in load("digits").train.images}
    assert (plain >= {bytes(image.flatten()) for image in torch.cat(tuple(seen))}) != augment
    assert [len(batch) for batch in seen] == [256, 256]


def test_of_no_images_there_is_no_accuracy() -> None:
    assert all(math.isnan(number) for number in Tally().read())


# Other ways to compute.


@pytest.mark.parametrize("clip", [(), ("--optimizer.clip_norm", "1")])
def test_bfloat16_trains_and_is_evaluated_in_full_precision(tmp_path: Path, clip: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    words = (
        "digits-ana",
        "--precision",
        "bf16-mixed",
        "--epochs",
        4,
        "--annealing.schedule.duration",
        1,
        *clip,
        "--out",
        run,
    )
    code, output = lehr_process("train", *words, output=tmp_path / "log")
    assert code == 0, output
    results = json.loads((run / "results.json").read_text())
    assert results["test/accuracy"] > 0.85
    assert evaluate(run)["test/loss"] == pytest.approx(results["test/loss"], rel=1e-6)
    assert load_checkpoint(RunFolder(run).final)["state_dict"]["model.layers.1.weight"].dtype == torch.float32


@pytest.mark.parametrize(
    ("flags", "product", "refused"),
    [
        ("avx512f amx_bf16", "import os, signal; os.kill(os.getpid(), signal.SIGILL)", True),
        ("avx512f amx_bf16", "", False),
        ("avx2", "import os, signal; os.kill(os.getpid(), signal.SIGILL)", False),
    ],
)
def test_bfloat16_that_would_end_the_process_is_refused_before_anything_is_written(
    flags: str, product: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : fpu {flags}\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "PRODUCT", product)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if not refused:
        machine.check_bfloat16()
        return
    with pytest.raises(RunError, match="train with --precision 32-true, or set ONEDNN_MAX_CPU_ISA"):
        train(dataclasses.replace(RECIPE, precision="bf16-mixed", accelerator="cpu"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, about itself
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_compiling_without_a_compiler_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RunError, match="there is no no-such-compiler: install one, set CXX to yours"):
        train(dataclasses.replace(RECIPE, compile=True, accelerator="cpu"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, about itself
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_compiled_network_trains_as_the_plain_one_without_recompiling_as_noise_falls(tmp_path: Path) -> None:
    annealing = Annealing(AllAtOnce(1), law=LinearDecay(), per="batch")
    small = Model("mlp", hidden=(16,))  # a compiler takes seconds for each layer
    recipe = dataclasses.replace(RECIPE, annealing=annealing, epochs=2, model=small)
    train(recipe, tmp_path / "plain")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    train(dataclasses.replace(recipe, compile=True), tmp_path / "compiled")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    plain, compiled = (numbers(RunFolder(tmp_path / name), "train/loss") for name in ("plain", "compiled"))
    assert compiled == pytest.approx(plain, rel=0.02)
    assert "model.layers.1.weight" in load_checkpoint(RunFolder(tmp_path / "compiled").final)["state_dict"]


@pytest.mark.parametrize(
    "optimizer", [Optimizer("adamw", lr=0.01, weight_decay=1e-4), Optimizer("sgd", lr=0.1, clip_norm=1.0)]
)
@pytest.mark.parametrize("schedule", [RateSchedule("one-cycle"), RateSchedule("cosine", warmup=0.5)])
def test_every_optimizer_and_schedule_trains(optimizer: Optimizer, schedule: RateSchedule, tmp_path: Path) -> None:
    recipe = dataclasses.replace(
        RECIPE, optimizer=optimizer, schedule=schedule, epochs=2, annealing=Annealing(Hierarchical(0))
    )
    train(recipe, tmp_path / "run")
    losses = numbers(RunFolder(tmp_path / "run"), "train/loss")
    assert losses[1] < losses[0]


@dataclasses.dataclass(frozen=True)
class Diary(Algorithm):
    """Records the calls of the training loop."""

    entries: list[str] = dataclasses.field(default_factory=list)

    def convert_(self, model: nn.Module, *, trained: bool = False) -> None:
        self.entries.append(f"convert {trained}")

    def wrap(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
        self.entries.append("wrap")
        return torch.optim.SGD(model.parameters(), lr=optimizer.param_groups[0]["lr"])

    def before_epoch_(self, model: nn.Module, epoch: int, epochs: int) -> None:
        self.entries.append(f"epoch {epoch} of {epochs}")

    def after_step_(self, model: nn.Module) -> None:
        self.entries.append("step")


def test_the_loop_calls_the_algorithm_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lehr.training.session.dump", lambda recipe: "")  # a recipe of this test alone
    diary = Diary()
    train(dataclasses.replace(RECIPE, algorithm=diary, epochs=2), tmp_path / "run")
    epoch = ["step"] * 19
    assert diary.entries == ["convert False", "wrap", "epoch 0 of 2", *epoch, "epoch 1 of 2", *epoch]


# Loading.


def test_a_network_is_loaded_without_its_data_set(
    finished: tuple[RunFolder, dict[str, Any], Spy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lehr.training.run.load_data", None)
    model, example = network_of(str(finished[0].path))
    assert model(example).shape == (1, 10)


def test_an_unfinished_run_is_loaded_as_far_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(RECIPE, tmp_path / "run", watch=Crash(1))
    model, _ = load_network(tmp_path / "run")
    saved = load_checkpoint(RunFolder(tmp_path / "run").checkpoint(1))["state_dict"]
    assert torch.equal(model.state_dict()["layers.1.weight"], saved["model.layers.1.weight"])
    RunFolder(tmp_path / "run").checkpoint(1).unlink()
    with pytest.raises(RunError, match="has no checkpoint yet: continue it with `lehr train --resume"):
        load_network(tmp_path / "run")


def as_older_lehr_wrote_it(path: Path) -> None:
    """Convert a checkpoint to the form of Lightning's Trainer, which earlier versions used."""
    content = load_checkpoint(path)
    older = {
        "epoch": content["epoch"] - 1,
        "global_step": 19 * content["epoch"],
        "pytorch-lightning_version": "2.6.6",
        "state_dict": content["state_dict"],
        "loops": {},
        "callbacks": {"Record": {"seconds": 1.0}},
        "optimizer_states": [content["optimizer"]],
        "lr_schedulers": [content["schedule"]],
    }
    torch.save(older, path)


def test_a_run_of_an_older_lehr_is_loaded_and_evaluated_but_not_trained_on(
    finished: tuple[RunFolder, dict[str, Any], Spy], tmp_path: Path
) -> None:
    folder, results, _ = finished
    run = RunFolder(tmp_path / "run")
    shutil.copytree(folder.path, run.path)
    for path in run.checkpoints.glob("epoch-*.ckpt"):
        as_older_lehr_wrote_it(path)
    assert resume(run.path) == results  # it is finished
    assert evaluate(run.path) == evaluate(folder.path)
    run.results.unlink()
    run.final.unlink()
    model, _ = load_network(run.path)
    saved = load_checkpoint(folder.checkpoint(4))["state_dict"]
    assert torch.equal(model.state_dict()["layers.1.weight"], saved["model.layers.1.weight"])
    with pytest.raises(RunError, match="was begun by an older lehr; .*: start over with `lehr train .*recipe.yaml`"):
        resume(run.path)
    assert run.metrics.read_bytes() == folder.metrics.read_bytes()
