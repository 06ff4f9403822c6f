"""export, predict and bench on a real run of the digits, through the command line."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import lehr
from lehr import cli
from lehr.data import load
from lehr.deploy.build import find_compiler
from lehr.deploy.images import ImageError, image_files, read_image
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Affine
from lehr.deploy.verify import Check, verify
from lehr.training.run import load_network


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run, annealed to the end."""
    path = tmp_path_factory.mktemp("runs") / "digits"
    words = ["--out", str(path), "--epochs", "5", "--annealing.schedule.duration", "1", "--model.hidden", "[32]"]
    assert cli.main(["train", "digits-ana", *words]) == 0
    return path


@pytest.fixture(scope="module")
def packed(run: Path) -> Path:
    assert cli.main(["export", str(run), "--to", "packed", "--verify", "false"]) == 0
    return run / "model.lehr"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    images = load("digits").test.images
    for number in range(3):
        Image.fromarray(images[number, 0].numpy()).save(folder / f"{number}.png")
    return folder


def test_export_compares_every_backend_on_every_test_image(run: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["export", str(run), "--to", "packed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    count = len(load("digits").test)
    assert re.search(r"model\.lehr: [\d,]+ bytes", lines[0])
    assert lines[1] == "exact: every integer is the one that torch computes, on any machine"
    assert lines[2].startswith(f"reference run: {count} images, 0 classes differ from torch, logits ")
    assert f"C, scalar: {count} images, 0 classes differ from the reference run, logits are equal" in lines
    assert f"ONNX, onnxruntime: {count} images, 0 classes differ from the reference run, logits are equal" in lines


def test_export_to_qonnx_executes_it_too(run: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("qonnx", reason="qonnx needs Python 3.11 or newer")
    assert cli.main(["export", str(run), "--to", "qonnx"]) == 0
    count = len(load("digits").test)
    lines = capsys.readouterr().out.splitlines()
    assert f"QONNX, qonnx: {count} images, 0 classes differ from the reference run, logits are equal" in lines


@pytest.mark.parametrize(("to", "name"), [("onnx", "model.onnx"), ("qonnx", "model.qonnx.onnx"), ("c", "c/model.c")])
def test_export_writes_each_format(run: Path, to: str, name: str):
    assert cli.main(["export", str(run), "--to", to, "--verify", "false"]) == 0
    assert (run / name).stat().st_size > 0


@pytest.mark.parametrize("to", ["packed", "onnx", "c"])
def test_export_without_a_comparison_needs_no_data_set(
    run: Path, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    recipe = run / "recipe.yaml"
    text = recipe.read_text()
    monkeypatch.setenv("LEHR_DATA", str(tmp_path / "nothing"))
    recipe.write_text(text.replace("name: digits", "name: mnist"))
    try:
        assert cli.main(["export", str(run), "--to", to, "--out", str(tmp_path / "out.lehr")]) == 1
        assert "mnist" in capsys.readouterr().err
        words = ["--to", to, "--out", str(tmp_path / "out.lehr"), "--verify", "false"]
        assert cli.main(["export", str(run), *words]) == 0
    finally:
        recipe.write_text(text)
    if to == "packed":
        assert lehr.deploy.load(tmp_path / "out.lehr").classes == load("digits").test.classes


def test_an_exported_network_has_the_card_of_its_run(packed: Path, run: Path):
    card = lehr.deploy.load(packed).card
    assert (card.name, card.data) == ("digits", "digits")
    assert card.accuracy == json.loads((run / "results.json").read_text())["test/accuracy"]
    assert "test images of digits alone, seed 0" in card.limits


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["digits-ana", "--out", "/home/me/secret"], "lehr train digits-ana"),
        (["digits-ana", "--out=/home/me/secret", "--epochs=3"], "lehr train digits-ana --epochs 3"),
        (["digits-ana", "--from", "/home/me/runs/fp"], "lehr train digits-ana --from fp"),
        (["har", "--precision_rules", "{ends: 8bit}"], "lehr train har --precision_rules '{ends: 8bit}'"),
        (["/home/me/own.yaml", "--data.root", "/home/me/data"], "lehr train own.yaml --data.root data"),
    ],
)
def test_a_card_does_not_tell_where_the_folders_of_its_computer_are(
    run: Path, tmp_path: Path, typed: list[str], told: str
):
    copy = shutil.copytree(run, tmp_path / "run")
    info = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**info, "command": ["/usr/bin/lehr", "train", *typed]}))
    assert cli.main(["export", str(copy), "--to", "packed", "--verify", "false"]) == 0
    assert lehr.deploy.load(next(copy.glob("*.lehr"))).card.recipe == told


def test_the_exported_c_builds_and_passes_its_own_test(run: Path):
    assert cli.main(["export", str(run), "--to", "c", "--verify", "false"]) == 0
    make = subprocess.run(
        ["make", "-C", str(run / "c"), f"CC={find_compiler()[0]}", "CFLAGS=-std=c99 -O0", "test"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert make.returncode == 0, make.stdout + make.stderr


def test_verify_finds_a_network_that_differs(run: Path):
    model, _ = load_network(run)
    images = load("digits").test.images[:50]
    net = lehr.freeze(model, images[:1])
    assert next(verify(model, net, images)).passed
    *others, last = net.operations
    assert isinstance(last, Affine)
    wrong = IntegerNet(net.input_shape, (*others, Affine(last.name, last.source, -last.scale, last.shift)))
    check = next(verify(model, wrong, images))
    assert not check.passed
    assert check.classes > 25


def test_verify_compares_the_values_of_one_output_and_the_shapes_of_pixels():
    torch.manual_seed(0)
    images = torch.randint(0, 256, (33, 2, 8, 8), dtype=torch.uint8)
    hard = lehr.Quantizer(forward=lehr.Dirac())
    for outputs in (1, 5):
        layer = lehr.Conv2d(2, outputs, 8, quantizer=hard)
        model = nn.Sequential(lehr.models.Input((0.5, 0.5), (0.25, 0.25), bits=8), layer).eval()
        net = lehr.freeze(model, images)
        assert all(check.passed for check in verify(model, net, images))
        with torch.no_grad():
            layer.weight.neg_()
        assert not next(verify(model, net, images)).passed


def test_verify_asks_integer_backends_for_the_same_bits():
    assert not Check("C", "the reference run", 9, classes=0, logits=1e-6, exact=True).passed
    assert Check("C", "the reference run", 9, classes=0, logits=1e-6).passed


@pytest.mark.filterwarnings("ignore:after 1 epochs")
def test_export_of_a_run_with_noise_left_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--out", str(tmp_path / "noisy"), "--epochs", "1", "--model.hidden", "[8]"]
    cli.main(["train", "digits-ana", *words])
    assert cli.main(["export", str(tmp_path / "noisy"), "--to", "packed"]) == 2
    assert "noise" in capsys.readouterr().err
    assert not (tmp_path / "noisy" / "model.lehr").exists()


def test_predict_names_class_and_score_of_each_image(packed: Path, pictures: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["predict", str(packed), str(pictures), str(pictures / "0.png")]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["image", "class", "score", "next", "its", "score"]
    assert [Path(row.split()[0]).name for row in rows] == ["0.png", "1.png", "2.png", "0.png"]
    assert rows[0].split()[1:] == rows[3].split()[1:]


def test_predict_with_mirror_gives_the_mean_of_both_passes(
    run: Path, packed: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["predict", str(packed), str(pictures / "0.png"), "--mirror", "true"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    model, _ = load_network(run)
    image = load("digits").test.images[:1]
    with torch.no_grad():
        scores = (model(image) + model(image.flip(3)))[0] / 2
    assert (int(row[1]), float(row[2])) == (int(scores.argmax()), pytest.approx(float(scores.max()), rel=1e-3))


def test_mirror_is_refused_where_inputs_are_no_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    hard = lehr.Quantizer(forward=lehr.Dirac())
    model = nn.Sequential(lehr.models.SignalInput((0.0,) * 4, (1.0,) * 4), lehr.Linear(4, 2, quantizer=hard)).eval()
    lehr.freeze(model, torch.zeros(1, 4)).save(tmp_path / "signal.lehr")
    np.save(tmp_path / "a.npy", np.zeros(4, np.float32))
    words = ["predict", str(tmp_path / "signal.lehr"), str(tmp_path / "a.npy"), "--mirror", "true"]
    assert cli.main(words) == 2
    assert "only images have a mirror image: this network takes inputs of shape 4" in capsys.readouterr().err


def test_evaluate_with_mirror_shows_both(run: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["evaluate", str(run), "--mirror", "true"]) == 0
    output = capsys.readouterr().out
    shown = dict(re.findall(r"^(.*?)  +(\d[\d.]*) %", output, flags=re.MULTILINE))
    model, _ = load_network(run)
    test = load("digits").test
    with torch.no_grad():
        scores = model(test.images) + model(test.images.flip(3))
    right = (scores.argmax(1) == test.labels).float().mean()
    assert float(shown["test, with mirror images"]) == pytest.approx(100 * float(right), abs=0.01)
    assert {"validation", "validation, with mirror images", "test"} < {*shown}


@pytest.mark.filterwarnings("error")
def test_predict_works_where_no_engine_can_be_built(
    packed: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shown = []
    for variable, value in (("LEHR_CACHE", "/proc/nobody"), ("CC", "false"), ("CC", "no-such-compiler")):
        with monkeypatch.context() as changed:
            changed.setenv(variable, value)
            assert cli.main(["predict", str(packed), str(pictures / "0.png")]) == 0
        shown.append(capsys.readouterr().out)
    assert cli.main(["predict", str(packed), str(pictures / "0.png")]) == 0
    assert {*shown} == {capsys.readouterr().out}


def test_predict_scales_16_bits_to_8_and_takes_no_more(
    packed: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pixels = np.asarray(Image.open(pictures / "0.png"))
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / "0.png")
    Image.fromarray(pixels.astype(np.int32)).save(tmp_path / "1.tiff")
    assert cli.main(["predict", str(packed), str(pictures / "0.png"), str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    _, one, other = (line.split()[1:] for line in out.splitlines())
    assert one == other
    assert "1.tiff is no image that can be read: its pixels are 32-bit integers, not of 8 or 16 bits" in err


def test_predict_does_the_others_when_one_image_is_bad(
    packed: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "broken.png").write_bytes(b"no image")
    Image.new("RGB", (40, 30)).save(tmp_path / "large.jpg")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged.ppm").write_bytes(b"P6\n8x 8\n255\n")
    words = [str(tmp_path / name) for name in ("broken.png", "large.jpg", "missing.png", "empty", "damaged.ppm")]
    assert cli.main(["predict", str(packed), *words, str(pictures / "1.png")]) == 1
    out, err = capsys.readouterr()
    assert "1.png" in out
    assert "broken.png is no image that can be read" in err
    assert "damaged.ppm is no image that can be read" in err
    assert "large.jpg has 40x30 pixels and this network takes 8x8" in err
    assert "there is no file" in err
    assert "empty holds no image file (.bmp, .gif" in err
    assert cli.main(["predict", str(packed), words[1], "--resize", "true"]) == 0


def test_bench_shows_the_engine_beside_onnxruntime(packed: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["bench", str(packed), "--repetitions", "3"]) == 0
    out = capsys.readouterr().out
    assert "bit-planes" in out  # which kernel each layer uses
    assert re.search(r"engine, scalar +[\d.]+ +[\d,]+  equal", out)
    for name in ("onnxruntime fp32", "onnxruntime int8"):
        assert re.search(rf"{name} +[\d.]+ +[\d,]+  another network", out)


def test_a_file_that_is_no_network_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x.lehr").write_bytes(b"nothing of the kind")
    assert cli.main(["predict", str(tmp_path / "x.lehr"), str(tmp_path)]) == 2
    assert "x.lehr" in capsys.readouterr().err


def test_images_are_turned_upright_and_converted(tmp_path: Path):
    picture = Image.fromarray(np.arange(64 * 3, dtype=np.uint8).reshape(8, 8, 3))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    picture.save(tmp_path / "a.png", exif=exif)
    assert read_image(tmp_path / "a.png", (3, 8, 8)).shape == (3, 8, 8)
    assert np.array_equal(read_image(tmp_path / "a.png", (3, 8, 8)), np.asarray(picture)[::-1, ::-1].transpose(2, 0, 1))
    assert read_image(tmp_path / "a.png", (1, 8, 8)).shape == (1, 8, 8)
    with pytest.raises(ImageError, match="2"):
        read_image(tmp_path / "a.png", (2, 8, 8))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match="holds no image file"):
        read_image(next(image_files([tmp_path / "empty"])), (3, 8, 8))


def test_what_is_transparent_is_refused_and_what_is_opaque_is_not(tmp_path: Path):
    ink = np.zeros((8, 8, 4), dtype=np.uint8)
    ink[..., 3] = 255
    Image.fromarray(ink).save(tmp_path / "opaque.png")
    ink[0, 0, 3] = 0
    Image.fromarray(ink).save(tmp_path / "ink.png")
    assert read_image(tmp_path / "opaque.png", (1, 8, 8)).max() == 0
    with pytest.raises(ImageError, match=r"ink\.png .*: parts of it are transparent"):
        read_image(tmp_path / "ink.png", (1, 8, 8))


def test_resizing_keeps_proportions(tmp_path: Path):
    picture = np.zeros((20, 60, 3), dtype=np.uint8)
    picture[:, 20:40] = 255  # the middle third
    Image.fromarray(picture).save(tmp_path / "wide.png")
    assert (
        read_image(tmp_path / "wide.png", (3, 8, 8), resize=True).min() > 200
    )  # squashed, the outer thirds would be 0
