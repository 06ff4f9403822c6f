"""Distillation from a teacher, pretraining, and weights averaged over time."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from crashes import Crash
from lehr.algorithms import ANA, INQ, Algorithm, FullPrecision, GXNORNet
from lehr.annealing import Hierarchical, LinearDecay
from lehr.batchnorm import batchnorms_of
from lehr.data import load
from lehr.losses import TowardsFeatures, TowardsProbabilities, TowardsScores
from lehr.models import MLP
from lehr.training.errors import Diverged, RunError, RunWarning
from lehr.training.evaluation import batchnorm_images
from lehr.training.folder import RunFolder, load_checkpoint
from lehr.training.loop import Step
from lehr.training.objective import Distillation
from lehr.training.recipe import Annealing, Data, Model, Optimizer, Pretraining, RateSchedule, Recipe
from lehr.training.recipes import dump, named
from lehr.training.run import load_network
from lehr.training.session import resume, train
from lehr.training.teacher import Features, Teacher
from processes import Lehr

RECIPE = Recipe(
    data=Data("digits", batch_size=64),
    model=Model("mlp", hidden=(32, 32)),
    epochs=3,
    algorithm=ANA(std=0, backward_std=0.5, clip=1.5),
    optimizer=Optimizer(lr=0.01),
    schedule=RateSchedule("cosine"),
)
TAUGHT = dataclasses.replace(RECIPE, distillation=Distillation(epochs=3, lr=0.004))
PRETRAINED = dataclasses.replace(RECIPE, pretraining=Pretraining(epochs=3, lr=0.004), optimizer=Optimizer(lr=0.002))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Any]]:
    path = tmp_path_factory.mktemp("taught") / "run"
    results = train(TAUGHT, path)
    assert results is not None
    return RunFolder(path), results


def scores_of(path: Path) -> Tensor:
    network, _ = load_network(path)
    with torch.no_grad():
        return network(load("digits").train.images)


def same_network(one: Path, other: Path) -> bool:
    ours, theirs = (load_network(path)[0].state_dict() for path in (one, other))
    return all(torch.equal(ours[key], theirs[key]) for key in ours.keys() | theirs.keys())


# The distances.


@given(st.floats(0.1, 20), st.integers(0, 2**32 - 1))
def test_probabilities_are_hintons(temperature: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores, taught = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    p, q = (scores / temperature).softmax(1), (taught / temperature).softmax(1)
    by_hand = temperature**2 * (q * (q / p).log()).sum(1).mean()
    distance = TowardsProbabilities(temperature)
    assert torch.allclose(distance(scores, taught), by_hand)
    assert torch.allclose(distance(scores, scores + 3), torch.zeros((), dtype=torch.float64))  # softmax sees no shift
    assert distance(scores, taught) >= 0


def test_scores_are_the_mean_square() -> None:
    assert TowardsScores()(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])) == 2.5


def test_features_are_the_mean_over_layers_of_the_mean_square() -> None:
    ours = [torch.zeros(2, 3, 4, 4), torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)]
    theirs = [torch.full((2, 3, 4, 4), 3.0), torch.tensor([[0.0, 4.0]])]
    assert TowardsFeatures()(ours, theirs) == (9 + 2.5) / 2


# A teacher.


@pytest.mark.parametrize("by", ["scores", "probabilities"])
def test_who_learns_from_a_teacher_comes_nearer_to_its_scores(
    by: Any, taught: tuple[RunFolder, dict[str, Any]], tmp_path: Path
) -> None:
    teacher = taught[0].twin
    given = Distillation(teacher=teacher, share=0.9, by=by, temperature=2.0)
    train(RECIPE, tmp_path / "alone")
    train(dataclasses.replace(RECIPE, distillation=given), tmp_path / "taught")
    alone, near = ((scores_of(tmp_path / name) - scores_of(teacher)).square().mean() for name in ("alone", "taught"))
    assert near < alone


def test_who_learns_by_features_comes_nearer_to_them(taught: tuple[RunFolder, dict[str, Any]], tmp_path: Path) -> None:
    given = Distillation(teacher=taught[0].twin, share=0.9, by="features")
    train(RECIPE, tmp_path / "alone")
    train(dataclasses.replace(RECIPE, distillation=given), tmp_path / "taught")

    @torch.no_grad()
    def features(path: Path) -> list[Tensor]:
        network, _ = load_network(path)
        with Features(network).noted() as seen:
            network(load("digits").train.images)
        return seen

    alone, near = (
        TowardsFeatures()(features(tmp_path / name), features(taught[0].twin)) for name in ("alone", "taught")
    )
    assert near < 0.95 * alone


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_by_features_the_student_is_drawn_to_each_layer_of_its_teacher(compiled: bool) -> None:
    torch.manual_seed(0)
    student, network = (MLP((1, 8, 8), hidden=(16, 16), mean=(0.5,), std=(0.5,)) for _ in range(2))
    RECIPE.algorithm.convert_(student)
    teacher = Teacher(network, student, Distillation(by="features", share=1.0))
    # What the student shows its teacher is decided when its graph is captured: generating code adds nothing to it.
    forward = torch.compile(student.forward, backend="eager") if compiled else student.forward
    images = torch.randint(0, 256, (32, 1, 8, 8), dtype=torch.uint8)
    for _ in range(2):  # twice, as the second call takes the compiled graph
        student.zero_grad()
        with teacher.watching() as seen:
            scores = forward(images)
        assert len(seen) == len(batchnorms_of(student)) == 3
        teacher.add_to(scores.sum(), images, scores, seen).backward()
        for path, norm in batchnorms_of(student).items():
            assert norm.bias.grad is not None, path
            assert norm.bias.grad.any(), path
    with teacher.watching() as seen:
        pass
    student(images)
    assert not seen  # nothing is noted, and kept in memory, but while it watches


def test_a_teacher_by_features_must_have_the_same_layers(
    taught: tuple[RunFolder, dict[str, Any]], tmp_path: Path
) -> None:
    given = Distillation(teacher=taught[0].twin, by="features")
    recipe = dataclasses.replace(RECIPE, model=Model("mlp", hidden=(32, 16)), distillation=given)
    with pytest.raises(RunError, match=r"the teacher's have \[32, 32, 10\] features, the student's \[32, 16, 10\]"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_teacher_is_the_full_precision_twin_and_its_time_is_counted(
    taught: tuple[RunFolder, dict[str, Any]],
) -> None:
    folder, results = taught
    twin, recipe = load_network(folder.twin)
    assert recipe.algorithm == FullPrecision()
    assert (recipe.epochs, recipe.optimizer.lr, recipe.model) == (3, 0.004, RECIPE.model)
    assert not any("quantizer" in name for name, _ in twin.named_modules())
    assert results["seconds"] > json.loads(RunFolder(folder.twin).results.read_text())["seconds"]
    student, _ = load_network(folder.path)
    assert not any("teacher" in key for key in student.state_dict())


def test_the_network_of_a_taught_run_is_that_of_the_same_teacher_given(
    taught: tuple[RunFolder, dict[str, Any]], tmp_path: Path
) -> None:
    train(dataclasses.replace(RECIPE, distillation=Distillation(teacher=taught[0].twin)), tmp_path / "run")
    assert same_network(tmp_path / "run", taught[0].path)


def stopped(recipe: Recipe, path: Path, when: Callable[[], bool]) -> str:
    """Train in another process until `when`, then send SIGTERM; return its output."""
    file = path.with_name(f"{path.name}.yaml")
    file.write_text(dump(recipe))
    command = Lehr("train", file, "--out", path, output=path.with_name(f"{path.name}.log"))
    command.wait_for(when)
    command.signal(signal.SIGTERM)
    assert command.wait() == 143
    return command.output


def test_a_run_stopped_while_its_teacher_trains_resumes_to_the_same_bits(tmp_path: Path) -> None:
    recipe = dataclasses.replace(TAUGHT, distillation=Distillation(epochs=30, lr=0.004))
    train(recipe, tmp_path / "whole")
    run = RunFolder(tmp_path / "run")
    said = stopped(recipe, run.path, RunFolder(run.twin).checkpoint(2).exists)
    assert said == f"lehr train: stopped by SIGTERM; continue with: lehr train --resume {run.path}\n"
    assert not RunFolder(run.twin).results.exists()
    resume(run.path)
    assert same_network(run.path, tmp_path / "whole")


def test_a_run_stopped_after_its_teacher_resumes_to_the_same_bits(
    taught: tuple[RunFolder, dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        train(TAUGHT, tmp_path / "run", watch=Crash(2))
    resume(tmp_path / "run")
    assert same_network(tmp_path / "run", taught[0].path)


def test_a_teacher_of_other_images_is_refused(taught: tuple[RunFolder, dict[str, Any]], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "teacher")
    folder.create(
        taught[0].recipe.read_text(),
        {"images": {"shape": [3, 9, 9], "classes": ["a"], "mean": [0.5] * 3, "std": [0.2] * 3}},
    )
    recipe = dataclasses.replace(RECIPE, distillation=Distillation(teacher=folder.path))
    with pytest.raises(RunError, match=r"was trained on images of \(3, 9, 9\) in 1 classes, but this recipe has"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Distillation(teacher=Path("run"), epochs=3), "teacher (run) or distillation.epochs (3), not both"),
        (lambda: Distillation(epochs=-1), "distillation.epochs must be at least 0, got -1"),
        (lambda: Distillation(share=0), "above 0 and at most 1, got 0"),
        (lambda: Distillation(temperature=0), "temperature must be positive, got 0"),
        (lambda: Distillation(lr=0), "distillation.lr must be positive, or null for the recipe's rate, got 0"),
        (
            lambda: dataclasses.replace(TAUGHT, epochs=9, schedule=RateSchedule("cosine", warmup=3)),
            "warmup must end before the twin's 3 epochs do too, got 3",
        ),
        (lambda: dataclasses.replace(TAUGHT, devices=2), "several devices cannot train a twin: train it before"),
        (lambda: Pretraining(epochs=-1), "pretraining.epochs must be at least 0, got -1"),
        (lambda: Pretraining(lr=0), "pretraining.lr must be positive, or null for the recipe's rate, got 0"),
        (lambda: Pretraining(lr=0.1, optimizer=Optimizer()), "pretraining.optimizer sets the learning rate"),
        (lambda: dataclasses.replace(TAUGHT, pretraining=Pretraining(epochs=1)), "a run trains one twin"),
        (lambda: dataclasses.replace(PRETRAINED, start=Path("run")), "start from another run (run) or"),
        (lambda: dataclasses.replace(PRETRAINED, devices=2), "several devices cannot train a twin: train it before"),
        (lambda: dataclasses.replace(RECIPE, averaging=1.0), "averaging is a decay in [0, 1), 0 for none, got 1.0"),
        (lambda: dataclasses.replace(RECIPE, averaging=0.9), "set batchnorm_batches, say to 20"),
        (lambda: Optimizer(norm_lr=0), "norm_lr must be positive, or null for lr, got 0"),
    ],
)
def test_contradictory_settings_raise(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_features_that_do_not_fit_raise_before_the_twin_trains(tmp_path: Path) -> None:
    groups = named("digits-group-net-groups").algorithm
    recipe = dataclasses.replace(TAUGHT, algorithm=groups, distillation=Distillation(epochs=3, by="features"))
    with pytest.raises(ValueError, match=r"the teacher's have \[32, 32, 10\] features, the student's"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("by", ["scores", "probabilities", "features"])
def test_double_precision_learns_from_a_teacher(
    by: Any, taught: tuple[RunFolder, dict[str, Any]], tmp_path: Path
) -> None:
    given = Distillation(teacher=taught[0].twin, by=by)
    results = train(dataclasses.replace(RECIPE, distillation=given, precision="64-true", epochs=1), tmp_path / "run")
    assert results is not None
    assert results["val/accuracy"] > 0.5


# A twin to start from.


@pytest.mark.parametrize("twin", [{"pretraining": Pretraining(epochs=1)}, {"distillation": Distillation(epochs=1)}])
@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": RateSchedule("multi-step", milestones=("annealed", 2)), "algorithm": ANA()},
        {"annealing": Annealing(Hierarchical(0.5), backward_law=LinearDecay(final=0.5))},
    ],
)
def test_a_twin_has_no_noise_to_anneal(twin: dict[str, Any], settings: dict[str, Any], tmp_path: Path) -> None:
    short = Annealing(Hierarchical(0.5))
    recipe = dataclasses.replace(RECIPE, epochs=2, **{"annealing": short, **settings, **twin})
    results = train(recipe, tmp_path / "run")
    assert results is not None
    assert results["epochs"] == 2


def test_a_twin_that_diverges_raises_with_the_key_of_its_learning_rate(tmp_path: Path) -> None:
    recipe = dataclasses.replace(PRETRAINED, pretraining=Pretraining(epochs=1, lr=1e38), optimizer=Optimizer("sgd"))
    with pytest.raises(Diverged, match=r"the full-precision twin, whose learning rate is pretraining\.lr: the loss"):
        train(recipe, tmp_path / "run")


def test_a_run_that_lies_where_the_twin_goes_is_not_taken_for_it(tmp_path: Path) -> None:
    train(dataclasses.replace(RECIPE, epochs=1), tmp_path / "run" / "twin")
    with pytest.raises(RunError, match="twin already holds a run"):
        train(PRETRAINED, tmp_path / "run")
    assert not RunFolder(tmp_path / "run").recipe.exists()


def test_a_pretrained_run_is_its_twin_and_then_a_run_from_it(tmp_path: Path) -> None:
    results = train(PRETRAINED, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    twin, recipe = load_network(folder.twin)
    assert (recipe.algorithm, recipe.epochs, recipe.optimizer.lr) == (FullPrecision(), 3, 0.004)
    by_hand = dataclasses.replace(PRETRAINED, pretraining=Pretraining(), start=folder.twin)
    train(by_hand, tmp_path / "by hand")
    assert same_network(tmp_path / "run", tmp_path / "by hand")
    network, _ = load_network(tmp_path / "run")
    quantizer = network.get_submodule("layers.1.quantizer")
    assert isinstance(quantizer.scale, Tensor)  # fitted to the twin's weights, one for each output channel
    assert quantizer.scale.shape == (32, 1)
    assert results is not None
    assert results["seconds"] > json.loads(RunFolder(folder.twin).results.read_text())["seconds"]
    assert not torch.equal(network.get_parameter("layers.1.weight"), twin.get_parameter("layers.1.weight"))


@pytest.mark.parametrize("stopped_in", ["twin", "between", "run"])
def test_a_pretrained_run_resumes_to_the_same_bits(stopped_in: str, tmp_path: Path) -> None:
    recipe = dataclasses.replace(PRETRAINED, pretraining=Pretraining(epochs=20, lr=0.004), epochs=20)
    train(recipe, tmp_path / "whole")
    run = RunFolder(tmp_path / "run")
    twin = RunFolder(run.twin)
    moments = {"twin": twin.checkpoint(2), "between": twin.results, "run": run.checkpoint(2)}
    said = stopped(recipe, run.path, moments[stopped_in].exists)
    assert said == f"lehr train: stopped by SIGTERM; continue with: lehr train --resume {run.path}\n"
    assert twin.results.exists() == (stopped_in != "twin")
    assert run.checkpoint(1).exists() == (stopped_in == "run")
    resume(run.path)
    assert same_network(tmp_path / "whole", run.path)


# Averaging.


def test_what_is_kept_is_the_moving_average_of_the_weights(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, averaging=0.9, batchnorm_batches=2)
    seen: list[Tensor] = []  # before each step

    def look(step: Step) -> None:
        seen.append(step.model.get_parameter("layers.1.weight").detach().clone())

    results = train(recipe, tmp_path / "run", watch=look)
    folder = RunFolder(tmp_path / "run")
    seen.append(load_checkpoint(folder.checkpoint(3))["weights"]["model.layers.1.weight"])
    average = seen[1]
    for weight in seen[2:]:
        average = 0.9 * average + 0.1 * weight
    network, _ = load_network(folder.path)
    kept = network.get_parameter("layers.1.weight")
    assert torch.allclose(kept, average, atol=1e-5)
    assert not torch.allclose(kept, seen[-1], atol=1e-5)
    assert results is not None
    row = folder.read_metrics()[-1]
    assert float(row["val/accuracy"]) == pytest.approx(results["val/accuracy"])  # the validated network is the kept one


def test_an_averaged_network_has_the_noise_its_schedule_leaves(tmp_path: Path) -> None:
    recipe = dataclasses.replace(
        RECIPE, algorithm=ANA(), annealing=Annealing(Hierarchical(1)), averaging=0.9, batchnorm_batches=2
    )
    results = train(recipe, tmp_path / "run")
    assert results is not None
    assert [results[f"std/forward/{layer}"] for layer in (1, 2, 3)] == [0, 0, 0]


def test_an_average_resumes_to_the_same_bits(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, averaging=0.9, batchnorm_batches=2)
    train(recipe, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        train(recipe, tmp_path / "halves", watch=Crash(2))
    resume(tmp_path / "halves")
    assert same_network(tmp_path / "whole", tmp_path / "halves")


def test_an_averaged_run_stopped_before_its_results_ends_with_the_same(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, averaging=0.9, batchnorm_batches=2)
    results = train(recipe, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.path.rename(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", folder.path)
    for path in (folder.results, folder.final):
        path.unlink()
    again = resume(folder.path)
    assert results is not None
    assert again is not None
    assert {**results, "seconds": 0} == {**again, "seconds": 0}
    assert same_network(tmp_path / "whole", folder.path)
    assert results["val/running_loss"] != results["val/loss"]  # BatchNorm's statistics of training, and those kept


@pytest.mark.parametrize("name", ["twn", "ttq", "xnor-net-integer", "abc-net"])
def test_what_an_algorithm_fits_to_weights_is_fitted_to_their_average(name: str, tmp_path: Path) -> None:
    algorithm = named(f"digits-{name}").algorithm
    train(dataclasses.replace(RECIPE, algorithm=algorithm, averaging=0.99, batchnorm_batches=2), tmp_path / "run")
    network, _ = load_network(tmp_path / "run")
    kept = {key: value.clone() for key, value in network.state_dict().items()}
    algorithm.after_step_(network)
    assert all(torch.equal(value, kept[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("algorithm", [GXNORNet(), INQ()])
def test_weights_that_stay_at_levels_have_no_average(algorithm: Algorithm) -> None:
    with pytest.raises(ValueError, match="keeps weights at levels during training.*averaging must be 0, got 0.9"):
        dataclasses.replace(RECIPE, algorithm=algorithm, averaging=0.9, batchnorm_batches=2)


def test_batchnorm_is_never_estimated_from_one_image(tmp_path: Path) -> None:
    splits = load("digits")
    few = splits._replace(train=splits.train.take(torch.arange(257)))
    batches = batchnorm_images(dataclasses.replace(RECIPE, batchnorm_batches=9), few)
    assert [len(batch) for batch in batches] == [256]


def test_batchnorm_is_estimated_from_many_classes(tmp_path: Path) -> None:
    splits = load("digits")
    by_class = splits.train.take(torch.argsort(splits.train.labels, stable=True))
    recipe = dataclasses.replace(RECIPE, batchnorm_batches=2)
    images = torch.cat(tuple(batchnorm_images(recipe, splits._replace(train=by_class))))
    assert len(images) == 512
    for batch in images.split(128):
        labels = {bytes(image.flatten()): int(label) for image, label in by_class}
        counts = torch.bincount(torch.tensor([labels[bytes(image.flatten())] for image in batch]), minlength=10)
        assert bool((counts > 3).all())


def test_a_network_trained_on_validation_images_warns(taught: tuple[RunFolder, dict[str, Any]], tmp_path: Path) -> None:
    teacher = Distillation(teacher=taught[0].twin)
    recipe = dataclasses.replace(RECIPE, distillation=teacher, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunWarning)
        train(recipe, tmp_path / "same")
    other = dataclasses.replace(recipe, seed=1)
    with pytest.warns(RunWarning, match=r"data.validation None; this run: 1, None\) and was trained on some"):
        train(other, tmp_path / "other")
    started = dataclasses.replace(RECIPE, start=taught[0].twin, seed=1, epochs=1)
    with pytest.warns(RunWarning, match="was trained on some of this run's: validation accuracy will be too high"):
        train(started, tmp_path / "started")


# Learning rates.


def test_batchnorm_can_have_another_learning_rate() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = Optimizer(lr=0.1, norm_lr=0.01).build(model.parameters())
    schedule = RateSchedule("cosine", final=0.5).build(optimizer, steps_per_epoch=2, epochs=2, annealed=None)
    shapes = {group["lr"]: [tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups}
    assert shapes == {0.1: [(3, 4)], 0.01: [(3,), (3,), (3,)]}
    for _ in range(4):
        optimizer.step()
        schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.005])
