"""Recipes: typed, checked, every key settable, each error one sentence; the optimizers and schedules are torch's."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from lehr.algorithms import ANA, FullPrecision
from lehr.annealing import AllAtOnce, Constant, CosineDecay, PowerDecay, SameEnd
from lehr.cli.recipe_commands import train_words
from lehr.models import VGG
from lehr.training.recipe import Annealing, Data, Model, Optimizer, Pretraining, RateSchedule, Recipe
from lehr.training.recipe_keys import help_parser
from lehr.training.recipes import RecipeError, bases, dump, methods, named, names, read
from lehr.training.run import InputFormat, build
from processes import ENVIRONMENT


@pytest.mark.parametrize("name", names())
def test_each_shipped_recipe_reads_and_survives_being_written(name: str, tmp_path: Path) -> None:
    recipe = named(name)
    assert recipe.description
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    assert read(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize("base", ["digits", "fashion-mnist", "cifar10-quarter"])
@pytest.mark.parametrize("method", methods())
def test_a_method_is_a_recipe_of_each_base_with_the_same_budget(base: str, method: str) -> None:
    recipe, twin = named(f"{base}-{method}", ["--seed", "3"]), named(f"{base}-fp")
    assert (recipe.data, recipe.model, recipe.epochs, recipe.loss) == (twin.data, twin.model, twin.epochs, twin.loss)
    assert (recipe.schedule, recipe.optimizer.name, recipe.seed) == (twin.schedule, twin.optimizer.name, 3)
    assert recipe.description
    assert not recipe.result or method in ("fp", "ana")


@pytest.mark.parametrize("method", methods())
def test_a_method_quantizes_the_convolutions_of_a_base(method: str) -> None:
    recipe = named(f"fashion-mnist-{method}", ["--model.width", "0.05"])
    model = build(recipe, InputFormat((1, 28, 28), tuple("abcdefghij"), (0.3,), (0.4,)))
    kernels = [parameter for parameter in model.parameters() if parameter.dim() == 4 and parameter.shape[1] > 1]
    assert kernels
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    scores = model.eval()(torch.randint(0, 256, (2, 1, 28, 28), dtype=torch.uint8))
    assert scores.shape == (2, 10)


def test_a_method_takes_the_rest_from_the_twin_it_is_like() -> None:
    ana, fp = named("fashion-mnist-ana"), named("fashion-mnist-fp")
    assert named("fashion-mnist-bnn").optimizer == ana.optimizer
    assert named("fashion-mnist-twn").optimizer == fp.optimizer != ana.optimizer
    synchronous = named("fashion-mnist-ana-synchronous")
    assert synchronous.algorithm == ana.algorithm
    assert synchronous.annealing == dataclasses.replace(ana.annealing, synchronous=True)
    sampled = dataclasses.replace(ana.algorithm, mode="sample")  # pyright: ignore[reportArgumentType]
    assert named("fashion-mnist-ana-sampled").algorithm == sampled


def test_every_file_of_a_method_is_one_and_bases_come_as_twins() -> None:
    assert methods()[:2] == ["fp", "ana"]
    assert {"twn", "bnn", "lsq"} < set(methods())
    assert {"digits", "fashion-mnist", "cifar10-quarter"} < set(bases())
    assert "cifar10-paper" not in bases()  # it has three quantized ones


def test_every_key_can_be_overridden() -> None:
    recipe = named(
        "digits-ana",
        [
            *(
                "--epochs",
                "3",
                "--seed",
                "7",
                "--data.batch_size=32",
                "--data.root",
                "/images",
                "--model.hidden",
                "[8,9]",
            ),
            *("--algorithm.noise", "normal", "--algorithm.clip", "2", "--annealing.law", "PowerDecay"),
            *("--annealing.law.exponent", "3", "--annealing.backward_law", "Constant", "--annealing.per", "batch"),
            *("--optimizer.name", "sgd", "--optimizer.clip_norm", "1", "--schedule.name", "multi-step"),
            *("--schedule.milestones", "[annealed,40]", "--loss.name", "squared-hinge", "--precision", "bf16-mixed"),
        ],
    )
    assert (recipe.epochs, recipe.seed, recipe.data.batch_size, recipe.data.root) == (3, 7, 32, Path("/images"))
    assert recipe.model == Model("mlp", hidden=(8, 9), input_bits=8)
    assert named("digits-ana", ["--model", "vgg", "--model.width", "0.5"]).model == Model(VGG, width=0.5, input_bits=8)
    assert recipe.algorithm == dataclasses.replace(named("digits-ana").algorithm, noise="normal", clip=2.0)  # pyright: ignore[reportArgumentType]
    assert recipe.annealing.law == PowerDecay(exponent=3.0)
    assert recipe.annealing.backward_law == Constant()
    assert named("digits-ana", ["--annealing.schedule", "SameEnd"]).annealing.schedule == SameEnd(duration=10)
    assert recipe.schedule.milestones == ("annealed", 40.0)
    assert named("digits-ana", ["--algorithm", "FullPrecision"]).algorithm == FullPrecision()
    assert named("digits-fp", ["--algorithm", "lehr.algorithms.ANA", "--algorithm.std", "0.5"]).algorithm == ANA(
        std=0.5
    )


def test_a_flag_needs_no_value() -> None:
    assert named("digits-ana", ["--compile"]).compile
    assert named("digits-ana", ["--data.augment", "--epochs", "3"]).data.augment
    assert not named("digits-ana", ["--channels_last", "false"]).channels_last


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("--epoch 3", "unrecognized arguments: --epoch 3"),
        ("--optimizer.learning_rate 3", "unrecognized arguments: --optimizer.learning_rate 3"),
        ("--epochs -1", "epochs must be at least 1, got -1"),
        ("--epochs x", "Parser key \"epochs\": Expected a <class 'int'>. Got value: x"),
        ("--epochs", "argument --epochs: expected one argument"),
        ("--optimizer.lr 0", "lr must be positive, got 0.0"),
        ("--optimizer.name lion", "lion"),
        ("--optimizer.weight_decay -1", "weight_decay must not be negative, got -1.0"),
        ("--optimizer.clip_norm 0", "clip_norm must be positive, or null for no clipping, got 0.0"),
        ("--optimizer.momentum 1", "momentum must be in [0, 1), got 1.0"),
        ("--data.batch_size 0", "batch_size must be at least 2, got 0"),
        ("--data.padding -1", "padding must be at least 0, got -1"),
        ("--data.reflect true", "data.reflect needs data.augment, got True without it"),
        ("--data.flip alternate", "data.flip alternate needs data.augment"),
        ("--pretraining.epochs 2 --pretraining.batch_size 1", "pretraining.batch_size must be at least 2, got 1"),
        ("--pretraining.batch_size 256", "pretraining.batch_size has no effect without pretraining.epochs"),
        ("--pretraining.optimizer.lr 0.1", "pretraining.optimizer has no effect without pretraining.epochs"),
        ("--data.cutout 8", "data.cutout needs data.augment, got 8 without it"),
        ("--model.depth 3", "unrecognized arguments: --model.depth 3"),
        ("--model.width x", "Parser key \"model.width\": Expected a <class 'float'>. Got value: x"),
        ("--model.shape [1,8,8]", "unrecognized arguments: --model.shape [1,8,8]"),
        (
            "--model resnext",
            "no network is called 'resnext'; choose mlp, vgg, alexnet, mobilenet-v2, resnet, airbench, signal-net,",
        ),
        ("--model nowhere.Net", "nowhere.Net cannot be imported: No module named 'nowhere'; choose mlp, "),
        ("--model lehr.models.Net", "lehr.models.Net cannot be imported: module 'lehr.models' has no attribute 'Net'"),
        ("--model lehr.models.quantized_part", "a network is a subclass of torch.nn.Module, got 'lehr.models.quanti"),
        ("--model lehr.models.Input", "must take shape, classes, mean, std by name, and lacks shape, classes"),
        ("--model", "argument --model: expected one argument"),
        ("--annealing.schedule.duration -1", "duration must be finite and not negative, got -1.0"),
        ("--schedule.gamma 0", "gamma must be positive, got 0.0"),
        ("--schedule.warmup 50", "warmup must end before the 50 epochs do, got 50"),
        ("--schedule.name one-cycle --schedule.warmup 1", "schedule includes a warmup: leave warmup at 0, got 1"),
        ("--schedule.milestones [-1]", 'a milestone is an epoch, at least 0, or "annealed", got -1.0'),
        ("--schedule.final 2", "final is a share of the learning rate in [0, 1], got 2.0"),
        ("--annealing.synchronous --annealing.backward_law Constant", "leave backward_law out"),
        ("--pretraining.lr 0.1", "pretraining.lr has no effect without pretraining.epochs: set that too, or leave"),
        ("--pretraining.epochs 0 --pretraining.lr=0.1", "pretraining.lr has no effect without pretraining.epochs"),
        ("--distillation.lr 0.1", "distillation.lr has no effect without distillation.epochs"),
        (
            "--distillation.teacher run --distillation.lr 0.1",
            "distillation.lr has no effect without distillation.epochs",
        ),
        ("--distillation.share 0.5", "distillation.share has no effect without distillation.teacher, or its epochs"),
        ("--distillation.by features", "distillation.by has no effect without distillation.teacher, or its epochs"),
        ("--distillation.temperature 2", "distillation.temperature has no effect without distillation.teacher"),
        ('--distillation {"share":0.7}', "distillation.share has no effect without distillation.teacher"),
        ("--algorithm.clip 0", "clip must be positive, or None for no clipping, got 0.0"),
        ("--algorithm Foo", "Foo; choose ABCNet, ANA, BinaryConnect, "),
        ("--algorithm lehr.algorithms.Foo", "has no attribute 'Foo'; choose ABCNet, ANA, BinaryConnect, "),
        ("--annealing.schedule Foo", "Foo; choose AllAtOnce, Hierarchical, "),
        ("--annealing.law Foo", "Foo; choose Constant, CosineDecay, "),  # other tests may define laws
        ("--annealing.law Foo", ", LinearDecay, PowerDecay"),
    ],
)
def test_a_wrong_override_is_one_sentence_that_names_it(overrides: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        named("digits-ana", overrides.split())
    assert message in str(error.value)
    assert str(error.value).startswith("recipe digits-ana: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 1\nmodel: {name: mlp}\n", "data"),
        ("epochs: 1\nmodel: {name: mlp}\ndata: {name: digits}\nspeed: 3\n", "speed"),
        ("epochs: 1\nmodel: {name: mlp, depth: 3}\ndata: {name: digits}\n", "depth"),
        ("epochs: two\nmodel: {name: mlp}\ndata: {name: digits}\n", "two"),
        ("epochs: [1\n", "line 2, column 1"),
        (
            "epochs: 1\nmodel: {class_path: lehr.models.MLP, width: 2}\ndata: {name: digits}\n",
            "class_path and init_args",
        ),
        ("epochs: 1\nmodel: {width: 2}\ndata: {name: digits}\n", "model must have a class_path and init_args"),
        ("epochs: 1\ndata: {name: digits}\n", "model must have a class_path and init_args"),
        (
            "epochs: 1\nmodel: mlp\ndata: {name: digits}\nloss: mse\n",
            "loss must hold keys and values, got 'mse'",
        ),
        ("", "keys such as data, model and epochs, but this file has none"),
        ("- epochs\n", "keys such as data, model and epochs, but this file has none"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        read(path)
    assert message in str(error.value).lower()
    assert str(error.value).startswith(f"recipe {path}: ")
    assert "\n" not in str(error.value)


def test_a_recipe_of_an_earlier_version_is_read_as_it_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    power = "{class_path: lehr.annealing.Power, init_args: {final: 0.0, exponent: 3.0}}"
    old = f"annealing: {{windows: same-end, duration: 5.0, delay: 1.0, law: {power}, synchronous: true, per: batch}}"
    path.write_text(f"data: {{name: digits}}\nmodel: {{name: mlp}}\nepochs: 3\n{old}\n")
    assert read(path).annealing == Annealing(SameEnd(5.0, 1.0), PowerDecay(3.0), synchronous=True, per="batch")
    backward = "annealing: {windows: all-at-once, backward_law: {class_path: lehr.annealing.Cosine}}"
    path.write_text(f"data: {{name: digits}}\nmodel: {{name: mlp}}\nepochs: 3\n{backward}\n")
    assert read(path).annealing == Annealing(AllAtOnce(50.0), backward_law=CosineDecay())
    path.write_text(
        "data: {name: digits}\nmodel: {name: vgg, width: 0.25, hidden: [1024, 1024], input_bits: 8}\nepochs: 3\n"
    )
    assert read(path).model == Model("vgg", width=0.25, input_bits=8)


def test_a_recipe_names_classes_by_their_public_paths() -> None:
    text = dump(named("digits-ana"))
    for path in ("lehr.algorithms.ANA", "lehr.annealing.Hierarchical", "lehr.annealing.LinearDecay"):
        assert f"class_path: {path}\n" in text


def test_an_unknown_recipe_raises_with_the_nearest_name() -> None:
    with pytest.raises(RecipeError, match=r"no recipe is called 'digits-anna'; did you mean digits-ana\?"):
        named("digits-anna")
    with pytest.raises(RecipeError, match=r"no recipe is called 'digits-twm'; did you mean digits-twn\?"):
        named("digits-twm")
    with pytest.raises(RecipeError, match=r"no recipe is called 'x'; choose .*digits-ana.*, or give a \.yaml file"):
        named("x")
    with pytest.raises(RecipeError, match=r"there is no recipe file nowhere\.yaml"):
        named("nowhere.yaml")


def test_help_lists_the_keys() -> None:
    text = help_parser(train_words()).format_help()
    for key in (
        "--epochs",
        "--data.batch_size",
        "--optimizer.lr",
        "--model NETWORK",
        "--model.width",
        "--schedule.milestones",
        "--algorithm",
        "--precision",
    ):
        assert key in text


def test_reading_recipes_needs_no_lightning() -> None:
    code = (
        "import sys; import lehr.cli; code = lehr.cli.main(['recipes']);"
        "assert not {'lightning', 'tensorboard', 'sklearn'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "digits-ana" in done.stdout


def test_a_key_that_does_nothing_is_an_error_in_a_new_recipe_and_kept_in_that_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("epochs: 1\nmodel: {name: mlp}\ndata: {name: digits}\npretraining: {lr: 0.1}\n")
    with pytest.raises(RecipeError, match=r"pretraining\.lr has no effect without pretraining\.epochs: set that too"):
        named(str(path))
    assert named(str(path), ["--pretraining.epochs", "3"]).pretraining == Pretraining(3, 0.1)
    assert read(path).pretraining == Pretraining(0, 0.1)  # an earlier version wrote such runs


def test_a_recipe_whose_twin_is_switched_off_forgets_its_rate(tmp_path: Path) -> None:
    recipe = named("cifar10-quick", ["--pretraining.epochs", "0"])
    assert recipe.pretraining == Pretraining()
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    assert named(str(tmp_path / "recipe.yaml")) == recipe


# Optimizers and schedules.


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3))]


def test_optimizers_are_torchs_by_name() -> None:
    adam = Optimizer("adam", lr=0.1, weight_decay=0.2).build(parameters())
    assert type(adam) is torch.optim.Adam
    assert (adam.defaults["lr"], adam.defaults["weight_decay"], adam.defaults["fused"]) == (0.1, 0.2, True)
    assert type(Optimizer("adamw").build(parameters())) is torch.optim.AdamW
    sgd = Optimizer("sgd", momentum=0.8).build(parameters(), fused=False)
    assert type(sgd) is torch.optim.SGD
    assert (sgd.defaults["momentum"], sgd.defaults["fused"]) == (0.8, False)


def learning_rates(schedule: RateSchedule, *, epochs: int = 10, annealed: float | None = 5) -> list[float]:
    """Return the rates of each step, with ten steps an epoch and a learning rate of 1."""
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    scheduler = schedule.build(optimizer, steps_per_epoch=10, epochs=epochs, annealed=annealed)
    rates = []
    for _ in range(10 * epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def torchs(make: Any, **settings: Any) -> list[float]:
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    scheduler = make(optimizer, **settings)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_schedules_are_torchs_by_name() -> None:
    assert learning_rates(RateSchedule()) == [1.0] * 100
    cosine = torchs(lr_scheduler.CosineAnnealingLR, T_max=100, eta_min=0.1)
    assert learning_rates(RateSchedule("cosine", final=0.1)) == pytest.approx(cosine)
    linear = torchs(lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=100)
    assert learning_rates(RateSchedule("linear", final=0.1)) == pytest.approx(linear)
    one_cycle = torchs(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=100, cycle_momentum=False)
    assert learning_rates(RateSchedule("one-cycle")) == one_cycle
    steps = torchs(lr_scheduler.MultiStepLR, milestones=[30, 75], gamma=0.5)
    assert learning_rates(RateSchedule("multi-step", milestones=(3, 7.5), gamma=0.5)) == steps


def test_the_learning_rate_can_drop_when_annealing_ends() -> None:
    assert learning_rates(RateSchedule("multi-step"), annealed=4.5) == pytest.approx([1.0] * 45 + [0.1] * 55)
    both = RateSchedule("multi-step", milestones=("annealed", 8))
    assert learning_rates(both, annealed=6) == pytest.approx([1.0] * 60 + [0.1] * 20 + [0.01] * 20)
    with pytest.raises(ValueError, match=r"nothing is annealed: give schedule\.milestones in epochs"):
        learning_rates(RateSchedule("multi-step"), annealed=None)
    assert learning_rates(RateSchedule("multi-step", milestones=(5,)), annealed=None)[50] == pytest.approx(0.1)


def test_warmup_rises_to_the_learning_rate_and_shifts_no_milestone() -> None:
    rates = learning_rates(RateSchedule("multi-step", warmup=2, milestones=(5,)))
    assert rates[0] == pytest.approx(1 / 21)
    assert all(a < b for a, b in itertools.pairwise(rates[:21]))
    assert rates[20:50] == pytest.approx([1.0] * 30)
    assert rates[50:] == pytest.approx([0.1] * 50)
    cosine = learning_rates(RateSchedule("cosine", warmup=2))
    assert cosine[20] == pytest.approx(1.0)
    assert 0 < cosine[-1] < 0.01


def test_a_recipe_is_a_value() -> None:
    recipe = Recipe(data=Data("digits"), model=Model("mlp"), epochs=1)
    assert recipe == Recipe(data=Data("digits"), model=Model("mlp"), epochs=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.epochs = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_the_optimizer_and_the_schedule_of_a_twin_can_be_changed_key_by_key() -> None:
    words = ["--pretraining.optimizer.lr", "0.2", "--pretraining.schedule.warmup=0.5", "--epochs", "3"]
    recipe = named("fashion-mnist-quick", words)
    assert recipe.pretraining.optimizer is not None
    assert recipe.pretraining.schedule is not None
    assert (recipe.pretraining.optimizer.name, recipe.pretraining.optimizer.lr) == ("muon", 0.2)
    assert (recipe.pretraining.schedule.name, recipe.pretraining.schedule.warmup) == ("linear", 0.5)
    assert recipe.epochs == 3
    with pytest.raises(RecipeError, match="expected one argument"):
        named("fashion-mnist-quick", ["--pretraining.optimizer.lr"])
    with pytest.raises(RecipeError, match=r"pretraining\.optimizer.*speed"):
        named("fashion-mnist-quick", ["--pretraining.optimizer.speed", "1"])
