"""The zoo: every network loads, is as good as its row says, and its name works wherever a file does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lehr import cli, zoo
from lehr.data import DataError, load
from lehr.deploy import compile

NETWORKS = zoo.networks()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_accuracy_shown_is_that_on_the_real_test_set(name: str) -> None:
    network = NETWORKS[name]
    try:
        test = load(network.dataset).test
    except DataError as missing:
        pytest.skip(str(missing))
    classes = compile(network.load()).predict(test.images.numpy())
    assert (classes == test.labels.numpy()).mean() == pytest.approx(network.accuracy, abs=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_names_its_classes_and_is_small(name: str) -> None:
    network = NETWORKS[name]
    net = network.load()
    assert len(net.classes) == net.values[net.operations[-1].name].size
    assert network.path.stat().st_size < 2**20


def test_lehr_zoo_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["zoo"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", heading) == ["name", "data", "test accuracy", "bytes", "MACs", "trained by"]
    assert [row.split()[0] for row in rows] == list(NETWORKS)
    digits = re.split(r"\s{2,}", rows[0])
    assert digits[3:] == [f"{NETWORKS['digits'].path.stat().st_size:,}", "84,480", "lehr train digits-ana"]


def test_predict_takes_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digit = load("digits").test
    Image.fromarray(np.asarray(digit.images[0, 0])).save(tmp_path / "digit.png")
    assert cli.main(["predict", "digits", str(tmp_path / "digit.png")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1] == str(int(digit.labels[0]))


@pytest.mark.parametrize(
    ("to", "written"), [("c", "digits-c/model.c"), ("onnx", "digits.onnx"), ("packed", "digits.lehr")]
)
def test_export_takes_a_name_and_compares_the_backends(
    to: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", "digits", "--to", to]) == 0
    assert (tmp_path / written).stat().st_size > 0
    line = "C, scalar: 256 images, 0 classes differ from the reference run, logits are equal"
    assert line in capsys.readouterr().out.splitlines()


def test_bench_takes_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "digits", "--repetitions", "3"]) == 0
    assert "onnxruntime int8" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [("predict", "digitz", "x.png"), ("export", "digitz", "--to", "c"), ("bench", "digitz")]
)
def test_a_name_that_is_not_there_is_told(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(list(words)) == 2
    assert "there is no file digitz and no network of that name: the zoo has digits" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "digitz.lehr", "x.png"]) == 2
    assert "there is no file digitz.lehr: `lehr export RUN --to packed` writes one" in capsys.readouterr().err


def test_a_folder_of_data_does_not_hide_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert zoo.file_of("digits") == NETWORKS["digits"].path
    (tmp_path / "digits" / "recipe.yaml").touch()
    with pytest.raises(ValueError, match="digits is a folder, not a packed network"):
        zoo.file_of("digits")
