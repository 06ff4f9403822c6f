"""ONNX files: small, exact at the thresholds, and honest about what float32 cannot hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from lehr import zoo
from lehr.data import load
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Affine, Clip, Conv, Flatten, Linear, Operation, Table, Threshold, Weights
from lehr.deploy.write_onnx import to_onnx, to_qonnx
from runtimes import NEWEST, READS_INT2
from test_pack import vgg

needs_int2 = pytest.mark.skipif(not READS_INT2, reason="onnxruntime reads INT2 from 1.24 on")


def written(net: IntegerNet, tmp_path, write=to_onnx) -> onnx.ModelProto:
    write(net, tmp_path / "net.onnx")
    return onnx.load(tmp_path / "net.onnx")


def run(path: Path, images: np.ndarray, *outputs: str) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path)
    return [np.asarray(x) for x in session.run(list(outputs), {"pixels": images})]


def linear(weights, *, table=None) -> IntegerNet:
    weights = weights if isinstance(weights, Weights) else Weights.of(weights)
    table = np.arange(256)[None] if table is None else table
    features = weights.codes.shape[1]
    operations = (Table("pixels", table), Flatten("flat", "pixels"), Linear("fc", "flat", weights))
    return IntegerNet((1, 1, features), operations)


def floats(net: IntegerNet) -> IntegerNet:
    """The same network with float32 weights."""
    operations: list[Operation] = []
    for operation in net.operations:
        match operation:
            case Conv(name, source, Weights() as weight):
                operation = Conv(name, source, weight.values.astype(np.float32), padding=operation.padding)
            case Linear(name, source, Weights() as weight):
                operation = Linear(name, source, weight.values.astype(np.float32))
            case Threshold(name, source):
                cuts = operation.thresholds.astype(np.float32)
                operation = Threshold(name, source, cuts, operation.directions, operation.levels)
            case _:
                pass
        operations.append(operation)
    return IntegerNet(net.input_shape, tuple(operations))


@needs_int2
def test_the_papers_network_is_15_times_smaller_than_in_float32(tmp_path):
    net = vgg()
    to_onnx(net, tmp_path / "ternary.onnx")
    to_onnx(floats(net), tmp_path / "float.onnx")
    ratio = (tmp_path / "float.onnx").stat().st_size / (tmp_path / "ternary.onnx").stat().st_size
    assert ratio >= 15
    images = np.random.default_rng(1).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
    (scores,) = run(tmp_path / "ternary.onnx", images, "scores")
    assert np.array_equal(scores, net.scores(images))


@pytest.mark.parametrize(
    ("levels", "kind"),
    [((-1, 0, 1), "INT2"), ((-2, 1), "INT2"), ((-8, 7), "INT4"), ((-1, 2), "INT4"), ((-9, 0), "INT8")],
)
def test_weights_take_the_narrowest_type_that_holds_them(levels, kind, tmp_path):
    model = written(linear(Weights(np.zeros((2, 3), np.uint8), levels)), tmp_path)
    (weight,) = (tensor for tensor in model.graph.initializer if tensor.name == "fc.weight")
    assert onnx.TensorProto.DataType.Name(weight.data_type) == kind
    assert {opset.version for opset in model.opset_import} == {25}


@pytest.mark.parametrize(
    ("opset", "kind"),
    [
        (13, "INT8"),
        (18, "INT8"),
        (21, "INT4"),
        pytest.param(25, "INT2", marks=needs_int2),
    ],
)
def test_every_opset_gives_the_same_scores_in_a_runtime_that_reads_it(opset, kind, tmp_path):
    net, images = zoo.load("digits"), load("digits").test.images.numpy()
    to_onnx(net, tmp_path / "net.onnx", opset=opset)
    tensors = {tensor.name: tensor for tensor in onnx.load(tmp_path / "net.onnx").graph.initializer}
    kinds = {onnx.TensorProto.DataType.Name(tensors[name].data_type) for name in tensors if name.endswith(".weight")}
    assert kinds == {kind}
    (scores,) = run(tmp_path / "net.onnx", images, "scores")
    assert np.array_equal(scores, net.scores(images))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), count=st.integers(1, 40))
def test_any_thresholds_are_exact_at_every_integer(data, count, tmp_path_factory):
    cuts = np.sort(data.draw(st.lists(st.integers(-70, 70), min_size=count, max_size=count)))
    levels = tuple(sorted(data.draw(st.sets(st.integers(-200, 200), min_size=count + 1, max_size=count + 1))))
    directions = np.array([1, -1])
    table = np.stack([np.arange(-128, 128)] * 2)
    net = IntegerNet(
        (2, 1, 256), (Table("pixels", table), Threshold("step", "pixels", np.stack([cuts] * 2), directions, levels))
    )
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    to_onnx(net, path, opset=NEWEST)
    images = np.tile(np.arange(256, dtype=np.uint8), (1, 2, 1, 1))
    (scores,) = run(path, images, "scores")
    assert np.array_equal(scores, net.scores(images))


def test_sums_beyond_what_float32_holds_are_refused(tmp_path):
    small, large = 2**24 // (127 * 255), 2**24 // (127 * 255) + 1
    to_onnx(linear(np.full((1, small), 127)), tmp_path / "net.onnx")
    for write in (to_onnx, to_qonnx):
        with pytest.raises(
            ValueError, match=r"fc: its sums reach 0..16\d{6}.*exact only below 16777216.*packed file or C"
        ):
            write(linear(np.full((1, large), 127)), tmp_path / "net.onnx")


def test_a_threshold_one_past_the_largest_sum_is_never_reached(tmp_path):
    def net(most: int) -> IntegerNet:
        table = np.where(np.arange(256) == 255, most, 0)[None].repeat(16, 0)
        operations = (
            Table("pixels", table),
            Flatten("flat", "pixels"),
            Linear("sum", "flat", Weights.of(np.full((1, 16), 64))),
            Threshold("step", "sum", np.array([[16 * 64 * most + 1]]), np.array([1]), (0, 1)),
        )
        return IntegerNet((16, 1, 1), operations)

    images = np.full((1, 16, 1, 1), 255, np.uint8)
    to_onnx(net(16383), tmp_path / "net.onnx", opset=NEWEST)
    assert run(tmp_path / "net.onnx", images, "scores")[0] == net(16383).scores(images) == 0
    with pytest.raises(ValueError, match="exact only below 16777216"):
        to_onnx(net(16384), tmp_path / "net.onnx")


def test_a_scale_after_integer_sums_is_not_folded_into_the_weights(tmp_path):
    """Runtimes like to; then sums of rounded products would no longer be rounded sums."""
    random = np.random.default_rng(0)
    weights = Weights.of(random.integers(-1, 2, (8, 1, 3, 3)))
    scale, shift = random.normal(size=(2, 8)).astype(np.float32)
    operations = (
        Table("pixels", np.arange(256)[None]),
        Conv("conv", "pixels", weights),
        Affine("affine", "conv", scale, shift),
        Clip("relu", "affine", 0.0, math.inf),
    )
    net = IntegerNet((1, 9, 9), operations)
    to_onnx(net, tmp_path / "net.onnx", opset=NEWEST)
    model = onnx.load(tmp_path / "net.onnx")
    for node in list(model.graph.node):  # a tool has made plain floats of the weights: now it can fold
        if node.op_type == "DequantizeLinear":
            model.graph.initializer.append(numpy_helper.from_array(weights.values.astype(np.float32), node.output[0]))
            model.graph.node.remove(node)
    onnx.save(model, tmp_path / "floats.onnx")
    images = random.integers(0, 256, (16, 1, 9, 9), dtype=np.uint8)
    (logits,) = run(tmp_path / "floats.onnx", images, "logits")
    assert np.array_equal(logits, net.run(images))


def test_the_files_name_their_classes_and_the_qonnx_operators(tmp_path):
    net = vgg()
    named = IntegerNet(net.input_shape, net.operations, tuple("abcdefghij"))
    model = written(named, tmp_path, to_qonnx)
    assert json.loads(model.metadata_props[0].value) == list("abcdefghij")
    operators = [node.op_type for node in model.graph.node if node.domain == "qonnx.custom_op.general"]
    assert {operator: operators.count(operator) for operator in set(operators)} == {"Quant": 9, "MultiThreshold": 8}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
