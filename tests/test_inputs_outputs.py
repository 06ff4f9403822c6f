"""Networks of signals, of bytes and of rows of a table; outputs in torch's shapes, and several by name."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import devices
import frozen_networks as networks
import lehr
from frozen_networks import OTHER_INPUTS, Both, conv, hard, linear
from lehr.deploy import FreezeError, IntegerNet, compile, load, to_c, to_onnx
from lehr.deploy.freeze import freeze
from lehr.deploy.integer_net import Output
from lehr.deploy.operations import Affine, Floats, Round, Table
from lehr.deploy.pack import packed_bytes
from lehr.deploy.predict import predict
from lehr.deploy.verify import verify
from lehr.deploy.write_wasm import to_wasm
from lehr.models import Input, SignalInput
from runtimes import NEWEST


@pytest.mark.parametrize("name", OTHER_INPUTS)
def test_the_frozen_network_gives_torchs_outputs_in_torchs_shape(name: str) -> None:
    model, batch = networks.trained(name)
    net = networks.frozen(name)
    assert net.exact, net.inexact
    assert net.input_shape == tuple(batch.shape[1:])
    with torch.no_grad():
        expected = model(batch)
    assert net.run(batch).shape == expected.shape
    torch.testing.assert_close(net.run(batch), expected, rtol=0, atol=1e-5)
    assert np.array_equal(net.run(batch.numpy()), net.run(batch).numpy())
    assert len(expected.unique()) > 8
    assert {value.kind for path, value in net.values.items() if path not in ("logits", "input")} == {"integer"}
    for check in verify(model, net, batch):
        assert check.passed, check


def test_numbers_at_and_next_to_a_boundary_of_rounding_go_where_torch_puts_them() -> None:
    module = SignalInput((0.1, -3.0), (0.7, 2.0))
    model = nn.Sequential(module, nn.Flatten(), linear(2, 2)).eval()
    edges = (torch.arange(-140, 140)[:, None] - 0.5) / module.factor + module.mean
    near = [edges, edges.nextafter(torch.tensor(torch.inf)), edges.nextafter(torch.tensor(-torch.inf))]
    batch = torch.cat([*near, torch.tensor([[torch.inf, -torch.inf], [1e30, -1e30]])])
    net = freeze(model, batch)
    assert isinstance(net.operations[1], Round)
    with torch.no_grad():
        levels = (module(batch) / module.scale).long()
    assert torch.equal(net.trace(batch)["0"].flatten(1), levels)
    for instruction_set in ("reference", "scalar"):
        assert torch.equal(compile(net, instruction_set=instruction_set).scores(batch), net.scores(batch))


def test_what_is_no_number_becomes_the_lowest_level_everywhere(tmp_path: Path) -> None:
    net = freeze(nn.Sequential(SignalInput((0.0,), (1.0,)), linear(1, 1, networks.SIGN)).eval(), torch.zeros(1, 1))
    batch = np.array([[np.nan], [-9.0]], np.float32)
    to_onnx(net, tmp_path / "net.onnx", opset=NEWEST)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for found in (net.scores(batch), compile(net).scores(batch), session.run(["scores"], {"input": batch})[0]):
        assert found[0] == found[1]
        assert abs(int(found[0, 0])) == 127


def test_signals_are_fitted_to_data() -> None:
    data = torch.stack([torch.randn(4000) * 3 + 5, torch.randn(4000) * 0.01], 1)
    module = Input.of(data)
    assert isinstance(module, SignalInput)
    values = module(data)
    assert values.mean(0).abs().max() < 0.01
    torch.testing.assert_close(values.std(0), torch.ones(2), atol=0.02, rtol=0)
    error = (values - (data - data.mean(0)) / data.std(0, correction=0)).square().mean().sqrt()
    assert error < 0.012  # levels 1/32 apart
    wide = SignalInput.fitted(torch.cat([torch.zeros(4000, 1), torch.full((200, 1), 30.0)]))
    assert float(wide.scale) > 2**-5, "levels reach what is far from the mean and frequent"
    assert isinstance(Input.of(torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8)), Input)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SignalInput((0.0,), (1.0, 2.0)), "got 1 means and 2 stds"),
        (lambda: SignalInput((0.0,), (0.0,)), "every std must be positive, got .0.0,.: leave channels out"),
        (lambda: SignalInput((0.0,), (1.0,), 9), "between 2 and 8, got 9"),
        (lambda: SignalInput((0.0,), (1.0,), scale=0.3), "a power of two, got 0.3"),
        (lambda: SignalInput.fitted(torch.tensor([[1.0], [torch.nan]])), "not finite"),
        (lambda: SignalInput((0.0,), (1.0,))(torch.zeros(3, 2)), r"signals \(batch, 1, ...\), got \(3, 2\)"),
    ],
)
def test_signals_that_do_not_fit_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_equal_channels_share_one_table_or_one_affine() -> None:
    net = networks.frozen("bytes")
    first = net.operations[0]
    assert isinstance(first, Table)
    assert first.table.shape == (1, 256)
    assert len(packed_bytes(net)) < 2500
    model = nn.Sequential(SignalInput((0.5,) * 20, (2.0,) * 20), linear(20, 3)).eval()
    shared = freeze(model, torch.zeros(1, 20))
    rounds = shared.operations[1]
    assert isinstance(rounds, Round)
    assert len(rounds.mean) == len(rounds.factor) == 1
    batch = torch.randn(8, 20) * 3
    assert torch.equal(compile(shared)(batch), shared.run(batch))


def test_what_prepares_floats_in_the_users_own_words_becomes_thresholds() -> None:
    kinds = [type(operation) for operation in networks.frozen("features").operations[:2]]
    assert kinds[0] is Floats
    assert networks.frozen("features").output.shape == (1, 1, 1)


@pytest.mark.parametrize("name", ["motion", "bytes", "features"])
def test_a_batch_of_another_shape_or_type_is_refused_with_what_is_right(name: str) -> None:
    net, batch = networks.frozen(name), networks.batch(name)
    for run in (net.run, compile(net).run):
        with pytest.raises(TypeError, match=f"the input is {net.input_dtype}, got torch.uint8"):
            run(batch.to(torch.uint8))
        with pytest.raises(TypeError, match=f"the input is {net.input_dtype}, got float64"):
            run(batch.double().numpy())
        with pytest.raises(ValueError, match=r"the input has shape \(batch, .*: add a batch dimension"):
            run(batch[0])
        with pytest.raises(ValueError, match=r"the input has shape \(batch, "):
            run(batch[:, None])


def both() -> tuple[nn.Module, Tensor, IntegerNet]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, images = Both().eval(), torch.randint(0, 256, (6, 2, 9, 7), dtype=torch.uint8)
    return model, images, freeze(model, images, classes=("sky", "road", "car"))


def test_several_outputs_have_their_names_and_shapes_in_every_backend(tmp_path: Path) -> None:
    model, images, net = both()
    with torch.no_grad():
        expected = model(images)
    net.save(tmp_path / "net.lehr")
    to_onnx(net, tmp_path / "net.onnx", opset=NEWEST)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    answers = {
        "reference": net.run(images),
        "packed": load(tmp_path / "net.lehr").run(images),
        "engine": compile(net, threads=2)(images),
        "pickled": pickle.loads(pickle.dumps(net)).run(images),
        "onnx": dict(zip(("mask", "size"), session.run(["mask", "size"], {"pixels": images.numpy()}), strict=True)),
    }
    for backend, found in answers.items():
        assert list(found) == ["mask", "size"], backend
        for name, value in found.items():
            torch.testing.assert_close(torch.as_tensor(value), expected[name], rtol=1e-6, atol=1e-6)
    scores = session.run(["mask.scores", "size.scores"], {"pixels": images.numpy()})
    for name, value in zip(("mask", "size"), scores, strict=True):
        assert np.array_equal(value, net.scores(images.numpy())[name])
        assert np.array_equal(value, compile(net).scores(images.numpy())[name])
    assert net.predict(images).shape == (6, 9, 7)
    assert torch.equal(compile(net).predict(images), expected["mask"].argmax(1))
    assert repr(net).startswith("IntegerNet(2x9x7 images to 3x9x7 mask, 2 size, ")
    for check in verify(model, net, images):
        assert check.passed, check
    with pytest.raises(ValueError, match="WebAssembly gives one output, and this network has mask, size"):
        to_wasm(net, tmp_path / "net.wasm")


@pytest.mark.parametrize("target", ["host", "cortex-m4"])
def test_several_outputs_in_c_are_computed_by_one_run_and_all_of_them_are_checked(target: str, tmp_path: Path) -> None:
    missing = devices.missing(target) if target != "host" else [x for x in ("make", "gcc") if shutil.which(x) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    _, images, net = both()
    to_c(net, tmp_path, images=images.numpy()[:2], target=target)
    header = (tmp_path / "model.h").read_text()
    assert "&model_output_mask: mask, 3 x 9 x 7" in header
    assert "#define MODEL_OUTPUT_SIZE_SIZE 2\nextern const lehr_net model_output_size;" in header

    def make(*arguments: str) -> tuple[int, str]:
        quickly = "CFLAGS=-std=c99 -O0 -Wall -Wextra -Werror -pedantic"
        done = subprocess.run(["make", quickly, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, told = make("check")
    assert code == 0, told
    assert "2 images" in told
    assert ": 0 differ" in told
    if target == "host":
        assert make("classify")[0] == 0
        pixels = images.numpy()[:1].tobytes()
        lines = subprocess.run(
            [tmp_path / "classify"], input=pixels, capture_output=True, check=True
        ).stdout.splitlines()
        assert [line.partition(b":")[0] for line in lines] == [b"mask", b"size"]
        assert list(map(int, lines[1].split()[1:])) == net.scores(images.numpy()[:1])["size"].ravel().tolist()
    vector = tmp_path / "test_vector.h"
    before, scores = vector.read_text().split("test_scores", 1)
    wrong, count = re.subn(r"(-?\d+),\n    \},", lambda last: f"{int(last[1]) + 1},\n    }},", scores, count=1)
    assert count == 1  # the last score of the last output
    vector.write_text(f"{before}test_scores{wrong}")
    code, told = make("check")
    assert code != 0
    assert re.search(r"[1-9] differ", told), told  # once on each instruction set


def test_outputs_of_a_tuple_are_numbered_and_one_value_may_be_two_outputs() -> None:
    class Pair(Both):
        def forward(self, x):  # pyright: ignore[reportIncompatibleMethodOverride]
            found = super().forward(x)
            return found["size"], found["size"]

    found = freeze(Pair().eval(), torch.zeros(1, 2, 9, 7, dtype=torch.uint8)).run(np.zeros((3, 2, 9, 7), np.uint8))
    assert list(found) == ["output0", "output1"]
    assert np.array_equal(found["output0"], found["output1"])


def test_a_network_of_one_number_has_no_classes() -> None:
    net, batch = networks.frozen("features"), networks.batch("features")
    assert net.run(batch).shape == (64,)
    for run in (net, compile(net)):
        with pytest.raises(ValueError, match="one number, and no scores of classes"):
            run.predict(batch)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([Output("a", "x", (2,))], "output 'a' has shape .2,., and x has .1, 1, 1."),
        ([Output("a", "y", (1,))], "output 'a' is made of 'y', which no operation makes"),
        ([Output("a", "x", (1,)), Output("a", "x", (1,))], "outputs need names of their own"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(outputs: list[Output], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IntegerNet((1,), (Table("x", np.arange(256)[None]),), outputs=tuple(outputs))


def test_floats_begin_with_floats_and_bytes_with_a_table() -> None:
    with pytest.raises(ValueError, match="the first operation is the Floats that the float32 input goes through"):
        IntegerNet((1,), (Table("x", np.arange(256)[None]),), input_dtype="float32")
    with pytest.raises(ValueError, match="the first operation is the Table that the int8 input goes through"):
        IntegerNet((1,), (Floats("x"),), input_dtype="int8")
    with pytest.raises(ValueError, match="input_dtype is one of uint8, int8, float32, got 'int4'"):
        IntegerNet((1,), (Floats("x"),), input_dtype="int4")  # pyright: ignore[reportArgumentType]


def test_files_that_older_lehr_can_read_stay_of_version_1() -> None:
    assert b'\\"version\\":1,' in packed_bytes(networks.frozen("vgg"))
    for name in (*OTHER_INPUTS, "mask", "one dimension"):
        assert b'\\"version\\":2,' in packed_bytes(networks.frozen(name)), name


def test_floats_that_reach_a_quantized_layer_are_warned_about_and_run() -> None:
    model, batch = nn.Sequential(linear(5, 3)).eval(), torch.randn(7, 5)
    with (
        pytest.warns(lehr.deploy.FloatWarning, match="all of this network runs in float"),
        pytest.warns(lehr.deploy.FloatWarning, match="0: its input is that of the network, in float"),
    ):
        net = freeze(model, batch)
    with torch.no_grad():
        torch.testing.assert_close(net.run(batch), model(batch))
    torch.testing.assert_close(compile(net)(batch), net.run(batch))


@pytest.mark.parametrize("name", ["motion", "bytes", "features"])
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make and a C compiler")
def test_the_c_program_takes_the_input_as_it_is(name: str, tmp_path: Path) -> None:
    net, batch = networks.frozen(name), networks.batch(name).numpy()
    to_c(net, tmp_path, images=batch[:5])
    done = subprocess.run(
        ["make", "-C", str(tmp_path), "CFLAGS=-std=c99 -O1 -Wall -Wextra -Werror -pedantic", "check", "classify"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differ" in done.stdout
    kind = {"int8": "int8_t", "float32": "float"}[net.input_dtype]
    assert f"typedef {kind} model_input;" in (tmp_path / "model.h").read_text()
    shown = subprocess.run([tmp_path / "classify"], input=batch[:5].tobytes(), capture_output=True, check=True)
    scores = [[int(x) for x in line.split(b":")[1].split()] for line in shown.stdout.splitlines()]
    assert np.array_equal(np.array(scores), net.scores(batch[:5]).reshape(5, -1))


def test_predict_reads_npy_and_csv(tmp_path: Path) -> None:
    net, batch = networks.frozen("motion"), networks.batch("motion").numpy()
    net.save(tmp_path / "net.lehr")
    np.save(tmp_path / "several.npy", batch[:3])
    np.save(tmp_path / "one.npy", batch[3])
    np.savetxt(tmp_path / "rows.csv", batch[:2].reshape(2, -1), delimiter=",", fmt="%.9g")
    np.save(tmp_path / "wrong.npy", batch[:3, :2])
    (tmp_path / "words.csv").write_text("a,b\n")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    names = ("several.npy", "one.npy", "rows.csv", "wrong.npy", "words.csv", "objects.npy", "none.csv", "image.png")
    found = {path.name: answer for path, answer in predict(tmp_path / "net.lehr", [tmp_path / name for name in names])}
    classes = [str(x) for x in net.predict(batch)]
    assert [found[f"several.npy[{number}]"][0] for number in range(3)] == classes[:3]
    assert found["one.npy"][0] == classes[3]
    assert [found[f"rows.csv[{number}]"][0] for number in range(2)] == classes[:2]
    assert "holds shape (3, 2, 37), and this network takes (batch, 3, 37), or 111 numbers in a line" in str(
        found["wrong.npy"]
    )
    for name in ("words.csv", "objects.npy"):
        assert "holds no numbers that can be read" in str(found[name])
    assert "there is no file" in str(found["none.csv"])
    assert "takes float32 of shape 3x37: give a .npy or .csv file" in str(found["image.png"])


@pytest.mark.parametrize("hop", [None, 10])
def test_predict_cuts_a_recording_into_windows(tmp_path: Path, hop: int | None) -> None:
    net, batch = networks.frozen("motion"), networks.batch("motion").numpy()
    net.save(tmp_path / "net.lehr")
    recording = np.concatenate([*batch[:3]], axis=1).T  # (time, channel)
    header = "x,y,z"
    np.savetxt(tmp_path / "walk.csv", recording, delimiter=",", fmt="%.9g", header=header, comments="")
    np.save(tmp_path / "short.npy", recording[:36])
    paths = [tmp_path / "walk.csv", tmp_path / "short.npy"]
    found = {path.name: answer for path, answer in predict(tmp_path / "net.lehr", paths, hop=hop)}
    starts = range(0, 3 * 37 - 37 + 1, hop or 18)
    classes = [str(net.predict(recording.T[None, :, start : start + 37].copy())[0]) for start in starts]
    assert [found[f"walk.csv[{number}]"][0] for number in range(len(starts))] == classes
    assert len(found) == len(starts) + 1
    assert "or a recording of at least 37 lines of 3 numbers" in str(found["short.npy"])


def test_predict_refuses_numbers_that_are_no_bytes(tmp_path: Path) -> None:
    networks.frozen("bytes").save(tmp_path / "net.lehr")
    np.save(tmp_path / "a.npy", np.full((1, 20), 200))
    np.save(tmp_path / "b.npy", np.full((1, 20), -3.0))
    found = {
        path.name: answer for path, answer in predict(tmp_path / "net.lehr", [tmp_path / "a.npy", tmp_path / "b.npy"])
    }
    assert "holds int64 that are no int8" in str(found["a.npy"])
    assert isinstance(found["b.npy"], tuple)


def test_batch_norm_of_floats_is_told_as_inexact() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), hard(), linear(4, 3)).eval()
    net = freeze(model, torch.randn(2, 4))
    assert any("floats that BatchNorm has rounded" in why for why in net.inexact)


def test_a_copy_of_the_model_takes_another_size() -> None:
    """The example's shape, not the model's, is the network's input shape."""
    model = nn.Sequential(
        SignalInput((0.0, 0.0), (1.0, 1.0)), nn.Conv1d(2, 3, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    )
    lehr.quantize_(model, weights=hard(), activations=None)
    for length in (10, 21):
        net = freeze(copy.deepcopy(model).eval(), np.zeros((1, 2, length), np.float32))
        assert net.input_shape == (2, length)
        assert isinstance(net.operations[-1], Affine)
    with pytest.raises(FreezeError, match="does not run on example_input, float32 of shape"):
        freeze(model.eval(), np.zeros((1, 5, 10), np.float32))


def test_images_of_bytes_keep_their_zero_padding() -> None:
    class Front(nn.Module):
        def forward(self, x):
            return x.float() / 8

    model, images = nn.Sequential(Front(), conv(2, 4), nn.Flatten()).eval(), torch.randint(-128, 128, (5, 2, 6, 6))
    images = images.to(torch.int8)
    net = freeze(model, images)
    with torch.no_grad():
        assert torch.equal(net.run(images), model(images))
    assert torch.equal(compile(net)(images), net.run(images))
