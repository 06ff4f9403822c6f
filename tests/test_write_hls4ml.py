"""The form for hls4ml: no operator that it refuses, and the class of every digit, in qonnx and in its C simulation."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from lehr import cli, zoo
from lehr.data import load
from lehr.deploy import to_hls4ml
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Affine, Flatten, Linear, Table, Threshold, Weights
from lehr.deploy.write_hls4ml import integer_input


def test_it_has_quant_matmul_and_batchnorm_alone(tmp_path: Path) -> None:
    assert cli.main(["export", "digits", "--to", "hls4ml", "--out", str(tmp_path / "x.onnx"), "--verify", "false"]) == 0
    model = onnx.load(tmp_path / "x.onnx")
    assert {node.op_type for node in model.graph.node} == {"Quant", "MatMul", "BatchNormalization"}
    assert [value.dim_value for value in model.graph.input[0].type.tensor_type.shape.dim] == [1, 64]


def test_every_digit_gets_its_class_in_qonnx(tmp_path: Path) -> None:
    pytest.importorskip("qonnx", reason="qonnx needs Python 3.11 or newer")
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    net, images = zoo.load("digits"), load("digits").test.images
    to_hls4ml(net, tmp_path / "digits.onnx", batch=len(images))
    model = ModelWrapper(str(tmp_path / "digits.onnx"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx, "IR_VERSION", 13)  # qonnx runs each node as a model of the newest; onnxruntime reads 13
        logits = execute_onnx(model, {"input": integer_input(net, images)})["logits"]
    assert np.array_equal(logits.argmax(1), net.predict(images).numpy())
    assert np.abs(logits - net.run(images).numpy()).max() < 1e-4


@pytest.mark.parametrize("levels", [(-1, 0, 1), (0, 1)])
def test_a_step_is_right_at_every_integer_whatever_its_thresholds(levels: tuple[int, ...], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    cuts = [[-3, -3], [-2, 5], [0, 1], [4, 4], [-9, 9]] if len(levels) == 3 else [[-3], [0], [7], [-9], [1]]
    step = Threshold("step", "sums", np.array(cuts), np.array([1, 1, -1, -1, 1]), levels)
    net = IntegerNet(
        (1,),
        (
            Table("pixels", np.arange(256)[None] - 128),
            Flatten("flat", "pixels"),
            Linear("sums", "flat", Weights.of([[1]] * 5)),
            step,
            Linear("last", "step", Weights.of(np.eye(5, dtype=int).tolist())),
            Affine("logits", "last", scale=np.ones(5), shift=np.zeros(5)),
        ),
    )
    pixels = np.arange(256, dtype=np.uint8)[:, None]
    to_hls4ml(net, tmp_path / "x.onnx", batch=256)
    assert np.array_equal(run_in_numpy(onnx.load(tmp_path / "x.onnx"), integer_input(net, pixels)), net.run(pixels))


def run_in_numpy(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The three operators, restated."""
    values = {c.name: onnx.numpy_helper.to_array(c) for c in model.graph.initializer} | {"input": x}
    for node in model.graph.node:
        a, *others = (values[name] for name in node.input)
        if node.op_type == "MatMul":
            result = a @ others[0]
        elif node.op_type == "BatchNormalization":
            result = a * others[0] + others[1]
        else:
            told = {x.name: x.i for x in node.attribute}
            low, high = (-(2.0 ** (others[2] - 1)) + told["narrow"], 2.0 ** (others[2] - 1) - 1)
            result = np.clip(np.round(a), *((low, high) if told["signed"] else (0, 2.0 ** others[2] - 1)))
        values[node.output[0]] = result
    return values["logits"]


@pytest.mark.skipif(
    importlib.util.find_spec("hls4ml") is None or not shutil.which("g++"),
    reason="needs hls4ml and g++: pip install 'hls4ml>=1.3'",
)
@pytest.mark.filterwarnings("ignore")
def test_every_digit_gets_its_class_in_the_c_simulation_of_hls4ml(tmp_path: Path) -> None:
    import hls4ml  # pyright: ignore[reportMissingImports]
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.util.cleanup import cleanup_model

    net, images = zoo.load("digits"), load("digits").test.images
    to_hls4ml(net, tmp_path / "digits.onnx")
    model = cleanup_model(ModelWrapper(str(tmp_path / "digits.onnx")))
    settings = {"granularity": "name", "backend": "Vitis", "default_precision": "fixed<40,16>"}
    config = hls4ml.utils.config_from_onnx_model(model, **settings)
    converted = hls4ml.converters.convert_from_onnx_model(
        model, output_dir=str(tmp_path / "hls"), backend="Vitis", hls_config=config
    )
    converted.compile()
    logits = converted.predict(np.ascontiguousarray(integer_input(net, images)))
    assert np.array_equal(logits.argmax(1), net.predict(images).numpy())


@pytest.mark.parametrize(("name", "message"), [("cifar10-quick", "linear layers and step functions, and no Conv")])
def test_what_it_has_no_form_for_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        to_hls4ml(zoo.load(name), tmp_path / "x.onnx")
