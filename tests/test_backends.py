"""What every backend must do: the same integers and the same logits as `IntegerNet.run`, on every network."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnxruntime
import pytest

import frozen_networks as networks
from frozen_networks import NETWORKS, OTHER_INPUTS
from lehr.deploy import compile, load
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Affine, Table, Threshold
from lehr.deploy.write_onnx import to_onnx, to_qonnx
from runtimes import NEWEST

Answer = dict[str, np.ndarray]  # logits, and scores where there are integers
Backend = Callable[[IntegerNet, np.ndarray, Path], Answer]


def packed(net: IntegerNet, images: np.ndarray, folder: Path) -> Answer:
    net.save(folder / "net.lehr")
    return reference(load(folder / "net.lehr"), images)


def engine(net: IntegerNet, images: np.ndarray, folder: Path) -> Answer:
    run = compile(net)
    return {"logits": run(images), "scores": run.scores(images)}


def scalar(net: IntegerNet, images: np.ndarray, folder: Path) -> Answer:
    run = compile(net, instruction_set="scalar")
    return {"logits": run(images), "scores": run.scores(images)}


def loops(net: IntegerNet, images: np.ndarray, folder: Path) -> Answer:
    run = compile(net, instruction_set="reference")
    return {"logits": run(images), "scores": run.scores(images)}


def onnx(net: IntegerNet, images: np.ndarray, folder: Path) -> Answer:
    to_onnx(net, folder / "net.onnx", opset=NEWEST)
    session = onnxruntime.InferenceSession(folder / "net.onnx")
    names = [output.name for output in session.get_outputs()]
    return {
        name: np.asarray(x)
        for name, x in zip(names, session.run(names, {session.get_inputs()[0].name: images}), strict=True)
    }


def qonnx(net: IntegerNet, images: np.ndarray, folder: Path) -> Answer:
    wrapper = pytest.importorskip("qonnx.core.modelwrapper", reason="qonnx needs Python 3.11 or newer")
    execution = pytest.importorskip("qonnx.core.onnx_exec")
    to_qonnx(net, folder / "net.onnx", batch=len(images))
    model = wrapper.ModelWrapper(str(folder / "net.onnx"))
    # It runs node by node, in models of the newest IR version its onnx knows; onnxruntime reads up to 13.
    with patch("onnx.IR_VERSION", 13):
        return execution.execute_onnx(model, {model.graph.input[0].name: images})


BACKENDS: dict[str, Backend] = {
    "packed": packed,
    "engine": engine,
    "scalar": scalar,
    "loops": loops,
    "onnx": onnx,
    "qonnx": qonnx,
}


@cache
def expected(name: str) -> Answer:
    return reference(networks.frozen(name), networks.batch(name).numpy())


def reference(net: IntegerNet, images: np.ndarray) -> Answer:
    return {"logits": net.run(images), "scores": net.scores(images)}


@pytest.mark.parametrize("name", [*NETWORKS, *OTHER_INPUTS])
@pytest.mark.parametrize("backend", BACKENDS)
class TestBackend:
    @pytest.fixture
    def answer(self, backend: str, name: str, tmp_path: Path) -> Answer:
        with warnings.catch_warnings():
            if backend == "qonnx":
                warnings.simplefilter("ignore")  # its own, of deprecated calls
            return BACKENDS[backend](networks.frozen(name), networks.batch(name).numpy(), tmp_path)

    def test_scores_are_the_integers_of_the_reference_run(self, backend: str, name: str, answer: Answer):
        if name not in networks.FLOATS:
            assert np.array_equal(answer["scores"], expected(name)["scores"])
            assert np.array_equal(answer["logits"], expected(name)["logits"])
        else:  # float sums may be rounded in another order
            np.testing.assert_allclose(answer["logits"], expected(name)["logits"], rtol=1e-5, atol=1e-5)
        assert answer["logits"].shape == expected(name)["logits"].shape
        first, second = (x["logits"].reshape(64, -1).argmax(1) for x in (answer, expected(name)))
        assert np.array_equal(first, second)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("thresholds", [1, 2, 7])
def test_what_is_no_number_reaches_no_threshold(backend: str, thresholds: int, tmp_path: Path):
    cuts = np.tile(np.arange(thresholds, dtype=np.float32), (2, 1))
    net = IntegerNet(
        (2, 1, 2),
        (
            Table("pixels", np.full((2, 256), 3e38)),
            Affine("infinite", "pixels", [2.0, 2.0], [0.0, 0.0]),
            Affine("no number", "infinite", [0.0, 0.0], [0.0, 0.0]),
            Threshold("step", "no number", cuts, [1, -1], tuple(range(5, 6 + thresholds))),
            Affine("logits", "step", [1.0, 1.0], [0.0, 0.0]),
        ),
    )
    images = np.zeros((1, 2, 1, 2), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # qonnx's own, and numpy's of infinity times zero
        answer = {"reference": lambda *_: reference(net, images), **BACKENDS}[backend](net, images, tmp_path)
    assert np.all(answer["logits"] == 5)
