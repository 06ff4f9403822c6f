"""Training a recipe on streamed images: a few steps, stopped and resumed."""

import json

import pytest

from crashes import Crash
from lehr.annealing import layers_of
from lehr.data.shapes import write_shapes
from lehr.quantizer import Quantizer
from lehr.report.history import read_run
from lehr.training.errors import RunWarning
from lehr.training.recipes import named
from lehr.training.run import evaluate, load_network
from lehr.training.session import resume, train

pytestmark = pytest.mark.filterwarnings("ignore::lehr.annealing.AnnealingWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("network", ["alexnet", "mobilenetv2"])
def test_a_small_recipe_trains_and_resumes_bit_for_bit(network, data, tmp_path):
    short = ["--epochs", "2", "--data.workers", "0", "--data.root", str(data), "--data.batch_size", "40"]
    recipe = named(
        f"shapes-{network}-ana",
        [*short, "--annealing.schedule.duration", "0.1", "--annealing.schedule.delay", "0"],
    )
    whole = train(recipe, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        train(recipe, tmp_path / "cut", watch=Crash(1))
    resumed = resume(tmp_path / "cut")
    assert whole is not None
    assert resumed is not None
    del whole["seconds"], resumed["seconds"]
    assert whole == resumed
    model, _ = load_network(tmp_path / "cut")
    assert all(float(module.forward_std) == 0 for module in model.modules() if isinstance(module, Quantizer))
    # The noise that was measured is that of the windows it went in.
    history = read_run(tmp_path / "cut")
    assert len(history.windows) == len(layers_of(model)) == len(history.below("std/forward"))
    assert len(history.windows) == (11 if network == "mobilenetv2" else 8)  # of branches, of layers
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["images"]["shape"] == [3, 64, 64]


def test_images_that_cannot_be_read_are_counted_in_the_results(tmp_path):
    write_shapes(tmp_path / "shapes")
    broken = sorted((tmp_path / "shapes" / "val" / "cross").iterdir())[:3]
    for path in broken:
        path.write_bytes(b"no image")
    short = ["--epochs", "1", "--data.workers", "0", "--data.root", str(tmp_path), "--data.batch_size", "40"]
    recipe = named(
        "shapes-alexnet-ana",
        [*short, "--annealing.schedule.duration", "0.1", "--annealing.schedule.delay", "0"],
    )
    with pytest.warns(RunWarning, match="3 of 40 images of test data cannot be read and were skipped"):
        results = train(recipe, tmp_path / "run")
    assert results is not None
    assert results["test/skipped"] == 3
    assert "val/skipped" not in results
    # A run of the time when shapes were called generated images is evaluated too.
    written = tmp_path / "run" / "recipe.yaml"
    written.write_text(written.read_text().replace("name: shapes", "name: generated-images"))
    assert evaluate(tmp_path / "run")["test/accuracy"] == results["test/accuracy"]
