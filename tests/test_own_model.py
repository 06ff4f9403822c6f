"""docs/own-model.md runs as it stands, and the network it trains is the same in every backend, C included."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from test_backends import BACKENDS

PAGE = Path(__file__).parent.parent / "docs" / "own-model.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory):
    """The names the page's Python leaves behind, and the folder it wrote into."""
    folder = tmp_path_factory.mktemp("page")
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    names: dict = {}
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.chdir(folder)
        torch.manual_seed(0)
        exec(compile(code, str(PAGE), "exec"), names)
    return names, folder


def test_the_network_learns_and_is_frozen_without_a_difference(page):
    names, _ = page
    test = names["test"]
    assert (names["net"].predict(test.images) == test.labels).double().mean() > 0.9
    assert names["same"] == len(test.images)


def test_a_trained_functional_resnet_goes_through_calibration_rules_training_and_freezing(page):
    names, _ = page
    assert names["float_accuracy"] > 0.9
    assert names["calibrated_accuracy"] > names["float_accuracy"] - 0.03
    assert names["trained_accuracy"] > names["float_accuracy"] - 0.03
    assert names["frozen_accuracy"] == pytest.approx(names["trained_accuracy"], abs=0.005)
    levels = {change.module: change.levels for change in names["report"].converted}
    assert levels["conv1"] == levels["fc"] == 256
    assert levels["layer2.down"] == levels["layer2.quantized_calls.relu_1"] == 16
    assert "of the MACs as integers" in str(names["report"])


def test_the_resnet_is_integers_from_the_pixels_to_the_logits(page):
    net = page[0]["frozen"]
    floats = [operation for operation in net.operations if net.values[operation.name].kind == "float"]
    assert [type(operation).__name__ for operation in floats] == ["Affine"]
    assert floats == [net.operations[-1]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_resnet_is_the_same_in_every_backend(page, backend, tmp_path):
    net, images = page[0]["frozen"], page[0]["test"].images[:40].numpy()
    assert np.array_equal(BACKENDS[backend](net, images, tmp_path)["scores"], net.scores(images))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_same_scores_for_every_test_image(page, backend, tmp_path):
    names, _ = page
    net, images = names["net"], names["test"].images.numpy()
    answer = BACKENDS[backend](net, images, tmp_path)
    assert np.array_equal(answer["scores"], net.scores(images))
    assert np.array_equal(answer["logits"], net.run(images))


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make and a C compiler")
def test_the_c_program_gives_the_scores_of_its_test_vector(page):
    _, folder = page
    make = ["make", "-C", folder / "digits-c", "CFLAGS=-std=c99 -O1", "check"]
    result = subprocess.run(make, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
