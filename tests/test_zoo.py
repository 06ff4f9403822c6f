"""The zoo: every network loads, is as good as its row says, and its name works wherever a file does."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lehr
from lehr import cli, zoo
from lehr.data import DataError, load
from lehr.deploy import compile
from lehr.deploy.cpu import available

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
    assert heading.split() == ["name", "accuracy", "bytes", "MACs", "instructions", "RAM", "flash"]
    assert [row.split()[0] for row in rows[: len(NETWORKS)]] == list(NETWORKS)
    assert rows[-1] == "instructions, RAM and flash: for one input on a Cortex-M4, counted in an emulator"
    (digits,) = [row.split() for row in rows if row.startswith("digits ")]
    counted = zoo.devices()["digits", "cortex-m4"]
    assert digits[2:5] == [f"{NETWORKS['digits'].path.stat().st_size:,}", "84,480", f"{int(counted['instructions']):,}"]


def test_lehr_zoo_with_a_name_shows_its_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["zoo", "cifar10-quick"]) == 0
    rows = dict(re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines())
    assert rows["data"] == "cifar10"
    assert rows["recipe"].startswith("lehr train cifar10-quick")
    assert rows["accuracy"] == "88.20% of the test examples"
    assert rows["bytes"] == f"{NETWORKS['cifar10-quick'].path.stat().st_size:,}"
    assert rows["licence"].startswith("Apache-2.0")
    assert "32x32" in rows["limits"]


def test_a_network_of_the_zoo_predicts_files_and_pictures(tmp_path: Path) -> None:
    digit = load("digits").test
    picture = Image.fromarray(np.asarray(digit.images[0, 0]))
    picture.save(tmp_path / "digit.png")
    net = zoo.load("digits")
    assert net.predict(tmp_path / "digit.png") == str(int(digit.labels[0]))
    assert net.predict(str(tmp_path / "digit.png")) == net.predict(picture)
    with pytest.raises(ValueError, match=r"has 16x16 pixels and this network takes 8x8"):
        net.predict(picture.resize((16, 16)))
    assert net.predict(picture.resize((16, 16), Image.Resampling.NEAREST), resize=True) in net.classes
    with pytest.raises(TypeError, match=r"give an array of images, the path of one or a PIL image, got list"):
        net.predict([1, 2])


def test_deploy_load_knows_the_names_of_the_zoo() -> None:
    assert lehr.deploy.load("digits").card == NETWORKS["digits"].card
    with pytest.raises(ValueError, match="no network of that name: did you mean cifar10-quick or cifar10-flagship?"):
        lehr.deploy.load("cifar10-quik")


def test_a_copy_keeps_its_card() -> None:
    net = lehr.zoo.load("digits")
    assert copy.deepcopy(net).card == pickle.loads(pickle.dumps(net)).card == NETWORKS["digits"].card


def test_predict_measures_a_folder_of_class_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = load("digits").test
    for number in range(12):
        folder = tmp_path / "images" / test.classes[int(test.labels[number])]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(test.images[number, 0])).save(folder / f"{number}.png")
    right = int((zoo.load("digits").predict(test.images[:12]) == test.labels[:12]).sum())
    assert cli.main(["predict", "digits", str(tmp_path / "images")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["total", "12", str(right), f"{right / 12:.2%}"]
    (tmp_path / "images" / "ten").mkdir()
    assert cli.main(["predict", "digits", str(tmp_path / "images")]) == 2
    assert "ten is named for no class of this network, which has 0, 1, 2," in capsys.readouterr().err


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
    table = capsys.readouterr().out.split("\n\n")[1]
    rows = {row[0]: row[1:] for row in (re.split(r"\s{2,}", line) for line in table.splitlines())}
    forms = {"reference run", *(f"engine, {name}" for name in available()), "C, exported", "ONNX, onnxruntime"}
    elsewhere = {"QONNX, qonnx", "WebAssembly, node"}  # where qonnx, or clang, lld and node, are installed
    assert {name for name, row in rows.items() if row[-1] == "equal"} - elsewhere == forms
    assert elsewhere <= set(rows)
    assert "DIFFERS" not in table
    assert rows["reference run"][1] == f"{NETWORKS['digits'].path.stat().st_size:,}"
    assert rows["onnxruntime int8"][-1] == "another network"


@pytest.mark.parametrize(
    "words", [("predict", "digitz", "x.png"), ("export", "digitz", "--to", "c"), ("bench", "digitz")]
)
def test_a_name_that_is_not_there_is_told(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(list(words)) == 2
    assert capsys.readouterr().err.endswith(
        "there is no file digitz and no network of that name: did you mean digits?\n"
    )


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
