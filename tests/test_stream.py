"""The front end of networks of signals: C cuts and normalises the same windows as Python, and the program listens."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import lehr
from lehr.data import windows, z_normalized
from lehr.deploy import to_c

RUNTIME = Path(lehr.deploy.__file__).parent / "runtime" / "signals"


class Stream(ctypes.Structure):
    _fields_ = [
        ("ring", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("channels", "length", "hop", "next", "waiting")),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler, cc")
    path = tmp_path_factory.mktemp("stream") / "stream.so"
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, RUNTIME / "stream.c", "-o", path, "-lm"], check=True)
    return ctypes.CDLL(str(path))


def heard(library, recording, length, hop, units=None):
    """The windows that C makes while the samples of a recording, (time, channel), arrive."""
    channels = recording.shape[1]
    ring, window = np.zeros((length, channels), np.int16), np.zeros((channels, length), np.float32)
    stream, found = Stream(), []
    library.lehr_stream_start(ctypes.byref(stream), ctypes.c_void_p(ring.ctypes.data), channels, length, hop)
    for sample in recording:
        if library.lehr_stream_push(ctypes.byref(stream), ctypes.c_void_p(sample.ctypes.data)):
            out = ctypes.c_void_p(window.ctypes.data)
            if units is None:
                library.lehr_stream_z_normalized(ctypes.byref(stream), out)
            else:
                library.lehr_stream_scaled(ctypes.byref(stream), ctypes.c_void_p(units.ctypes.data), out)
            found.append(window.copy())
    return np.array(found)


@pytest.mark.parametrize(("length", "hop"), [(16, 16), (128, 50), (33, 7), (8, 40)])
def test_c_scales_the_same_windows_as_python(library, length, hop):
    recording = np.random.default_rng(0).integers(-(2**15), 2**15, (300, 3), dtype=np.int16)
    units = np.array([0.001, 1 / 16384, 0.07], np.float32)
    expected = windows(torch.from_numpy(recording), length, hop=hop) * torch.from_numpy(units)[:, None]
    assert len(expected) > 3
    assert np.array_equal(heard(library, recording, length, hop, units), expected.numpy())


@pytest.mark.parametrize("size", [3, 200, 2**15 - 1])
def test_c_normalises_every_sample_as_python_does(library, size):
    recording = np.random.default_rng(size).integers(-size - 1, size + 1, (3000, 2), dtype=np.int16)
    recording[500:1100, 1] = recording[500, 1]  # a channel that does not change
    recording[1500:2200:2] = -(2**15)
    expected = z_normalized(windows(torch.from_numpy(recording), 500, hop=61))
    assert bool((expected == 0).all(2).any())
    assert np.array_equal(heard(library, recording, 500, 61), expected.numpy())


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A network for windows of 2 channels x 32 samples, and the folder of its program."""
    if not shutil.which("cc") or not shutil.which("make"):
        pytest.skip("needs a C compiler and make")
    torch.manual_seed(0)
    model = lehr.models.SignalNet((2, 32), 3, channels=(8, 8), kernels=(5, 3), mean=(0.0, 0.0), std=(1.0, 1.0))
    hard = lehr.Quantizer(lehr.MultiStep.ternary(), lehr.Dirac(), lehr.Uniform(0.3))
    lehr.quantize_(model, weights=hard, activations=hard)
    net = lehr.freeze(model.eval(), torch.zeros(1, 2, 32), classes=("a", "b", "c"))
    folder = tmp_path_factory.mktemp("c")
    to_c(net, folder)
    subprocess.run(
        ["make", "-s", "CFLAGS=-std=c99 -O1 -Wall -Wextra -Werror -pedantic", "listen"], cwd=folder, check=True
    )
    return net, folder


@pytest.mark.parametrize("words", [["z"], ["0.001", "0.0005"]], ids=["z-normalised", "units"])
def test_the_program_decides_as_python_does(program, words):
    net, folder = program
    recording = np.random.default_rng(1).integers(-3000, 3000, (200, 2), dtype=np.int16)
    command = [folder / "listen", "10", *words]
    told = subprocess.run(command, input=recording.tobytes(), capture_output=True, check=True).stdout.decode()
    cut = windows(torch.from_numpy(recording), 32, hop=10)
    window = z_normalized(cut) if words == ["z"] else cut * torch.tensor([float(word) for word in words])[:, None]
    scores = net.run(window.numpy())
    best = scores.argmax(1)
    expected = [f"{32 + 10 * i} {'abc'[k]} {scores[i, k]:.9g}" for i, k in enumerate(best)]
    assert len(set(best.tolist())) > 1
    assert told.splitlines() == expected


def test_the_readme_states_the_memory_of_a_stream(program):
    assert "2 channels, int16_t, in a ring of 128 bytes" in (program[1] / "README.md").read_text()
