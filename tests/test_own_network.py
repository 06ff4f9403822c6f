"""A user's network, named by its import path: trained from a recipe, killed, resumed, exported, used."""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

from lehr.data import load
from lehr.models import VGG, Input
from lehr.report.experiment import network
from lehr.training.model import Model
from lehr.training.recipe import Data, Recipe
from lehr.training.recipes import RecipeError, dump, named, read
from lehr.training.series import difference_of
from lehr.training.untrusted import read_to_show
from processes import Lehr, lehr

MODULE = '''
from torch import nn
from lehr.models import Input

class TinyNet(nn.Module):
    """A convolution in full precision and quantized layers after it."""

    def __init__(self, shape, classes, mean, std, *, width: float = 1.0, hidden: int = 24, deep: bool = False):
        super().__init__()
        channels = round(8 * width)
        self.input = Input(mean, std, bits=8)
        self.stem = nn.Sequential(nn.Conv2d(shape[0], channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.rest = nn.Sequential(
            nn.ReLU(), nn.Flatten(), nn.Linear(channels * shape[1] * shape[2], hidden, bias=False),
            nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, classes, bias=False), nn.BatchNorm1d(classes),
        )

    @property
    def quantized_part(self):
        return self.rest

    @property
    def annealing_groups(self):
        return [["rest.2", "rest.5"]]

    def forward(self, x):
        return self.rest(self.stem(self.input(x)))

class Lacking(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
'''


class Small(nn.Module):
    """The smallest possible network."""

    def __init__(self, shape: tuple[int, ...], classes: int, mean: Tensor, std: Tensor, depth: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)
        self.depth = depth


class Wrapped(VGG):
    """Has **kwargs, which it passes on."""

    def __init__(self, flavour: str = "plain", **rest: object) -> None:
        super().__init__(**rest)  # pyright: ignore[reportArgumentType]
        self.flavour = flavour


class WithoutStd(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, mean: Tensor) -> None:
        super().__init__()


class Demanding(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, mean: Tensor, std: Tensor, depth: int) -> None:
        super().__init__()


def _prepare(folder: str, trusted: str | None = None) -> None:
    sys.path.insert(0, folder)
    if trusted is not None:
        os.environ["LEHR_TRUST"] = trusted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own")
    (path / "mynets.py").write_text(MODULE)
    return path


TRAIN = (
    *("train", "digits-ana", "--model", "mynets.TinyNet", "--model.width", 0.5, "--model.deep", "--seed", 3),
    *("--epochs", 12, "--annealing.schedule.duration", 2, "--annealing.per", "batch", "--pretraining.epochs", 1),
)


def test_it_trains_is_killed_resumes_exports_and_predicts(folder: Path) -> None:
    before = functools.partial(_prepare, str(folder))
    trusting = functools.partial(_prepare, str(folder), "mynets")
    log = folder / "log"
    code, output = lehr(*TRAIN, "--out", folder / "whole", output=log, before=before)
    assert code == 0, output

    cut = folder / "cut"
    command = Lehr(*TRAIN, "--out", cut, output=log, before=before)
    command.wait_for((cut / "checkpoints" / "epoch-00003.ckpt").exists)
    command.signal(signal.SIGKILL)
    command.wait()
    assert not (cut / "results.json").exists()
    code, output = lehr("train", "--resume", cut, output=log, before=before)
    assert code == 2
    assert "mynets.TinyNet, a class that is not lehr's" in output
    code, output = lehr("train", "--resume", cut, output=log, before=trusting)
    assert code == 0, output
    final = [torch.load(run / "checkpoints" / "final.ckpt") for run in (folder / "whole", cut)]
    names = list(final[0]["state_dict"])
    assert all(torch.equal(final[0]["state_dict"][name], final[1]["state_dict"][name]) for name in names)
    assert any(name.endswith("rest.2.weight") for name in names)
    assert not any("stem.0.quantizer" in name for name in names)  # its quantized_part is the rest
    header = (cut / "metrics.csv").read_text().splitlines()[0]
    assert "std/forward/2" in header  # the activation before the group, and the group
    assert "std/forward/3" not in header

    code, output = lehr("export", cut, "--to", "packed", "--trust", output=log, before=before)
    assert code == 0, output
    images = load("digits").test.images[:8, 0].numpy()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")
    pictures = [folder / f"{number}.png" for number in range(len(images))]
    code, output = lehr("predict", cut / "model.lehr", *pictures, output=log)  # no code of the user's is needed
    assert code == 0, output
    predicted = [int(line.split()[1]) for line in output.splitlines()[1:]]
    assert sum(a == b for a, b in zip(predicted, load("digits").test.labels[:8].tolist(), strict=True)) >= 5

    code, output = lehr("report", cut, output=log, before=before)
    assert code == 0, output
    assert "TinyNet" in (cut / "report.html").read_text()
    recipe, refused = read_to_show(cut / "recipe.yaml")
    assert (network(recipe), refused) == ("TinyNet", ("mynets.TinyNet",))
    with pytest.raises(RecipeError, match=r"mynets\.TinyNet was not imported: .* add --trust"):
        recipe.model.build((1, 8, 8), 10, (0.5,), (0.5,))


def test_a_network_that_cannot_be_built_for_data_raises(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"WithoutStd cannot be built for a data set: .* by name, and lacks std"):
        Model(WithoutStd)
    with pytest.raises(ValueError, match="Demanding needs a value for depth"):
        Model(Demanding)
    with pytest.raises(ValueError, match="Small has no setting width; it takes depth"):
        Model(Small, width=2)
    with pytest.raises(ValueError, match="a network is a subclass of torch.nn.Module, got 3"):
        Model(3)  # pyright: ignore[reportArgumentType]
    words = ("train", "digits-fp", "--model", "mynets.Lacking", "--out", tmp_path / "run")
    code, output = lehr(*words, output=tmp_path / "log", before=functools.partial(_prepare, str(folder)))
    assert code == 2
    assert output.startswith("lehr train: recipe digits-fp: Lacking cannot be built for a data set: its constructor")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", [Model(Small), Model(Small, depth=3), Model(Wrapped, flavour="new", width=0.5)])
def test_a_recipe_with_it_is_a_value_that_survives_being_written(model: Model, tmp_path: Path) -> None:
    recipe = Recipe(data=Data("digits"), model=model, epochs=1)
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(recipe))
    assert yaml.safe_load(path.read_text())["model"]["class_path"] == f"{__name__}.{model.kind.__name__}"
    again = read(path)  # this program made the class itself
    assert again.model.kind is model.kind
    assert again.model.settings.items() >= model.settings.items()
    assert hash(again) == hash(read(path))


def test_it_gets_what_the_data_says_and_its_settings() -> None:
    model = Model(Wrapped, flavour="new", width=0.05).build((1, 28, 28), 7, (0.5,), (0.25,))
    assert isinstance(model, Wrapped)
    assert model.flavour == "new"
    assert torch.equal(model.input.table, Input((0.5,), (0.25,)).table)
    assert model(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape == (2, 7)


def test_lehrs_own_networks_hand_on_settings_and_others_begin_with_their_defaults() -> None:
    assert named("digits-ana", ["--model", "vgg"]).model == Model("vgg", input_bits=8)  # digits-ana has hidden layers
    other = named("digits-ana", ["--model", f"{__name__}.Wrapped", "--model.width", "2"]).model
    assert other.settings["input_bits"] is None
    assert other.settings["width"] == 2


def test_networks_are_named_by_their_changed_settings() -> None:
    def told(model: Model) -> str:
        return network(Recipe(data=Data("digits"), model=model, epochs=1))

    assert told(Model("mlp", hidden=(8, 9), width=2)) == "mlp 8-9 x2"
    assert told(Model("vgg", width=0.25, input_bits=8)) == "vgg x0.25"
    assert told(Model("mobilenet-v2", dropout=0.5)) == "mobilenet-v2 dropout=0.5"
    assert told(Model(Small, depth=3)) == "Small depth=3"
    there, wanted = (Recipe(data=Data("digits"), model=Model(Small, depth=depth), epochs=1) for depth in (1, 2))
    assert difference_of(there, wanted) == ("model.depth", 1, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 0}, "width must be positive, got 0"),
        ({"hidden": (0,)}, r"every hidden layer needs at least one feature, got \(0,\)"),
        ({"input_bits": 1}, "input bits must be between 2 and 8, or None, got 1"),
    ],
)
def test_a_network_checks_its_settings_itself(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Model("mlp", **settings).build((1, 8, 8), 10, (0.5,), (0.5,))
    if "width" in settings:
        for name in ("vgg", "alexnet", "mobilenet-v2"):
            with pytest.raises(ValueError, match=message):
                Model(name, **settings).build((3, 64, 64), 10, (0.5,) * 3, (0.5,) * 3)
