"""WebAssembly gives the scores of the reference run in node, and a page of it answers to a mouse and to a picture."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from browser import CHROMIUM, Browser
from lehr import cli, zoo
from lehr.deploy import CompilerError, IntegerNet, to_html, to_wasm
from lehr.deploy.integer_net import random_batch
from lehr.deploy.operations import Affine, Conv, Flatten, Floats, Linear, Round, Threshold, Weights
from pages import TryIt

needs_clang = pytest.mark.skipif(
    shutil.which("clang") is None or shutil.which("wasm-ld") is None, reason="needs clang and lld (Debian: clang lld)"
)
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node (Debian: nodejs)")

RUN = """
import { readFileSync } from "fs";
const { load } = await import(process.argv[2]);
const net = await load(readFileSync(process.argv[3]));
const images = JSON.parse(readFileSync(0, "utf8"));
let refused = "";
try { net.run([1, 2]); } catch (error) { refused = error.message; }
const results = images.map((image) => net.run(image));
console.log(JSON.stringify({
  shape: net.shape, classes: net.classes, bytes: net.bytes, refused, type: net.type.name,
  labels: results.map((x) => x.label), logits: results.map((x) => [...x.logits]),
  scores: results.map((x) => x.scores && [...x.scores]),
}));
"""


def run_in_node(net: IntegerNet, images: np.ndarray, folder: Path) -> dict:
    to_wasm(net, folder / "model.wasm")
    (folder / "run.mjs").write_text(RUN)
    command = ["node", "run.mjs", str(folder / "model.mjs"), "model.wasm"]
    given = json.dumps(images.reshape(len(images), -1).tolist())
    done = subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_clang
@needs_node
def test_a_network_of_the_zoo_has_the_reference_scores_in_290_kb(tmp_path):
    net = zoo.networks()["cifar10-quick"].load()
    images = random_batch(net, 8)
    told = run_in_node(net, images, tmp_path)
    assert told["scores"] == net.scores(images).tolist()
    assert np.array_equal(np.float32(told["logits"]), net.run(images))
    assert told["labels"] == [net.classes[i] for i in net.predict(images)]
    assert told["shape"] == [3, 32, 32]
    assert told["classes"] == list(net.classes)
    assert told["refused"] == "the network takes 3 x 32 x 32 numbers, got 2"
    assert told["bytes"] == (tmp_path / "model.wasm").stat().st_size <= 290_000
    assert (tmp_path / "model.d.mts").read_text().count("export") == 3


def signal_net() -> IntegerNet:
    """Floats that are rounded, a convolution of every routine but tables, and a linear layer."""
    rng = np.random.default_rng(0)

    def trits(*shape: int) -> Weights:
        return Weights.of(rng.integers(-1, 2, shape))

    return IntegerNet(
        (2, 1, 40),
        (
            Floats("floats"),
            Round("rounded", "floats", np.float32([0.5, -1]), np.float32([16, 32]), 127),
            Conv("a", "rounded", trits(12, 2, 1, 5), padding=(0, 2)),
            Threshold("b", "a", np.tile([-40, 30], (12, 1)), np.repeat([1, -1], 6), (-1, 0, 1)),
            Conv("c", "b", trits(9, 12, 1, 3), stride=(1, 2)),
            Threshold("d", "c", np.tile([-2, 1], (9, 1)), np.ones(9, int), (-1, 0, 1)),
            Flatten("e", "d"),
            Linear("f", "e", trits(4, 9 * 19)),
            Affine("g", "f", np.full(4, 0.25), np.arange(4.0)),
        ),
        classes=("a", "b", "<i>", "dé"),
        input_dtype="float32",
    )


@needs_clang
@needs_node
def test_signals_and_any_class_names_pass_through(tmp_path):
    net = signal_net()
    images = np.random.default_rng(1).normal(size=(5, *net.input_shape)).astype(np.float32)
    told = run_in_node(net, images, tmp_path)
    assert told["type"] == "Float32Array"
    assert told["scores"] == net.scores(images).tolist()
    assert told["classes"] == list(net.classes)


def test_a_page_refuses_what_is_no_picture(tmp_path):
    with pytest.raises(
        ValueError, match="1 or 3 channels of uint8, and this network takes 2 x 1 x 40 float32: export it"
    ):
        to_html(signal_net(), tmp_path / "page.html")


def test_without_clang_the_error_names_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerError, match="there is no clang and no wasm-ld.*apt install clang lld"):
        to_wasm(zoo.networks()["digits"].load(), tmp_path / "model.wasm")
    words = ["export", "digits", "--to", "wasm", "--out", str(tmp_path / "model.wasm"), "--verify", "false"]
    assert cli.main(words) == 1
    assert "brew install llvm lld" in capsys.readouterr().err


@needs_clang
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_page_answers_to_the_mouse_and_to_a_picture(tmp_path):
    page = tmp_path / "page.html"
    words = ["export", "digits", "--to", "html", "--out", str(page), "--verify", "false"]
    assert cli.main(words) == 0
    net = zoo.networks()["digits"].load()
    photo = Image.fromarray(load_sample_image("flower.jpg")).convert("L").resize((8, 8))
    photo.save(tmp_path / "flower.png")
    browser = Browser()
    try:
        browser.open(page)
        place = TryIt(browser, "lehr")
        for digit in ("0", "4", "7"):
            answer = place.draw(digit)
            assert answer["label"] == digit
            assert answer["scores"] == net.scores(np.uint8(answer["image"]).reshape(1, 1, 8, 8))[0].tolist()
        answer = place.drop(tmp_path / "flower.png")
        assert answer["image"] == np.asarray(photo).ravel().tolist()
        assert answer["scores"] == net.scores(np.array(photo)[None, None])[0].tolist()
        assert place.said().startswith(f"{answer['label']} · ")
        assert place.said().endswith(" KB")
        assert browser.problems == []
        assert browser.requests == [page.as_uri()]
    finally:
        browser.close()
