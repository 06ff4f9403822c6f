"""The road from a recipe to a trained network on streamed images: a few steps, stopped and resumed."""

import json

import pytest

from lehr.annealing import layers_of
from lehr.data.generated import write_images
from lehr.layers import Quantizer
from lehr.report.history import read_run
from lehr.training.engine import resume, train
from lehr.training.errors import RunWarning
from lehr.training.recipes import named
from lehr.training.run import load_network

pytestmark = pytest.mark.filterwarnings("ignore::lehr.annealing.AnnealingWarning")


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("network", ["alexnet", "mobilenetv2"])
def test_a_small_recipe_trains_and_resumes_bit_for_bit(network, data, tmp_path):
    import lightning as L

    class After(L.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                raise Stop

    short = ["--epochs", "2", "--data.workers", "0", "--data.root", str(data), "--data.batch_size", "40"]
    recipe = named(f"imagenet-small-{network}-ana", [*short, "--annealing.duration", "0.1", "--annealing.delay", "0"])
    whole = train(recipe, tmp_path / "whole")
    with pytest.raises(Stop):
        train(recipe, tmp_path / "cut", callbacks=[After()])
    resumed = resume(tmp_path / "cut")
    assert whole is not None
    assert resumed is not None
    del whole["seconds"], resumed["seconds"]
    assert whole == resumed
    model, _ = load_network(tmp_path / "cut")
    assert all(float(module.forward_std) == 0 for module in model.modules() if isinstance(module, Quantizer))
    # The noise that was measured is that of the windows it went in.
    history = read_run(tmp_path / "cut")
    groups = model.annealing_groups if network == "mobilenetv2" else layers_of(model)
    assert len(history.windows) == len(groups) == len(history.below("std/forward"))
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["images"]["shape"] == [3, 64, 64]


def test_images_that_cannot_be_read_are_counted_in_the_results(tmp_path):
    write_images(tmp_path / "generated-images")
    broken = sorted((tmp_path / "generated-images" / "val" / "cross").iterdir())[:3]
    for path in broken:
        path.write_bytes(b"no image")
    short = ["--epochs", "1", "--data.workers", "0", "--data.root", str(tmp_path), "--data.batch_size", "40"]
    recipe = named("imagenet-small-alexnet-ana", [*short, "--annealing.duration", "0.1", "--annealing.delay", "0"])
    with pytest.warns(RunWarning, match="3 of 40 images of test data cannot be read and were skipped"):
        results = train(recipe, tmp_path / "run")
    assert results is not None
    assert results["test/skipped"] == 3
    assert "val/skipped" not in results
