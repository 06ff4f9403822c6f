"""The engine: built once for a machine, equal to the reference run, usable from threads and processes."""

import copy
import os
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from lehr.deploy import build, compile
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Affine, Conv, Flatten, Linear, MaxPool, Table, Threshold, Weights

TRITS = (-1, 0, 1)


@pytest.fixture(scope="module")
def net():
    rng = np.random.default_rng(0)

    def trits(*shape):
        return Weights(rng.integers(0, 3, shape), TRITS)

    return IntegerNet(
        (3, 12, 12),
        (
            Table("pixels", np.tile(np.arange(-128, 128), (3, 1))),
            Conv("conv1", "pixels", trits(16, 3, 3, 3), padding=(1, 1)),
            Threshold("act1", "conv1", np.sort(rng.integers(-200, 200, (16, 2))), rng.choice([-1, 1], 16), TRITS),
            Conv("conv2", "act1", trits(24, 16, 3, 3), padding=(1, 1)),
            MaxPool("pool2", "conv2", (2, 2), (2, 2)),
            Threshold("act2", "pool2", np.sort(rng.integers(-9, 20, (24, 2))), rng.choice([-1, 1], 24), TRITS),
            Flatten("flat", "act2"),
            Linear("fc", "flat", trits(10, 864)),
            Affine("logits", "fc", rng.normal(size=10), rng.normal(size=10)),
        ),
    )


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(1).integers(0, 256, (37, 3, 12, 12), dtype=np.uint8)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_an_engine_equals_the_reference_run(net, images, threads):
    built = compile(net, threads=threads)
    np.testing.assert_array_equal(built(images), net.run(images))
    np.testing.assert_array_equal(built.scores(images), net.scores(images))
    np.testing.assert_array_equal(built.predict(images), net.predict(images))


def test_torch_in_torch_out(net, images):
    logits = compile(net)(torch.from_numpy(images))
    assert isinstance(logits, torch.Tensor)
    np.testing.assert_array_equal(logits.numpy(), net.run(images))


def test_an_empty_batch_and_strided_images(net, images):
    built = compile(net, threads=2)
    assert built(images[:0]).shape == (0, 10)
    np.testing.assert_array_equal(built(images[::3, :, ::-1]), net.run(images[::3, :, ::-1]))


def test_one_engine_serves_several_threads_at_once(net, images):
    built = compile(net, threads=2)
    expected = net.run(images)
    with ThreadPoolExecutor(8) as pool:
        for logits in pool.map(lambda _: built(images), range(40)):
            np.testing.assert_array_equal(logits, expected)


def test_describe_names_the_routine_of_every_layer(net):
    rows = compile(net, instruction_set="scalar").describe().rows
    assert [(row.layer, row.routine) for row in rows] == [
        ("pixels", "table"),
        ("act1", "wide tables"),
        ("act2", "tables"),
        ("fc", "bit-planes"),
        ("logits", "affine"),
    ]
    assert [row.instruction_set for row in rows] == ["reference", *["scalar"] * 3, "reference"]


def test_wrong_images_are_refused(net, images):
    built = compile(net)
    with pytest.raises(TypeError, match="uint8 pixels, 0 to 255 and not normalised, got float32"):
        built(images.astype(np.float32))
    with pytest.raises(ValueError, match=r"\(image, 3, 12, 12\), got \(3, 12, 12\): add a batch dimension"):
        built(images[0])


def test_wrong_arguments_are_refused(net):
    with pytest.raises(ValueError, match="threads is at least 1, got 0"):
        compile(net, threads=0)
    with pytest.raises(ValueError, match="instruction_set is one of auto, reference, small, scalar, .*, got 'sse9'"):
        compile(net, instruction_set="sse9")


def test_without_a_compiler_the_error_says_what_still_works(net, images, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LEHR_CACHE", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(RuntimeError, match=r"no C compiler .* IntegerNet.run works without"):
        compile(net)
    monkeypatch.setenv("CC", "no-such-compiler -O9")
    with pytest.raises(RuntimeError, match="CC is 'no-such-compiler -O9', which is not a program here"):
        compile(net)
    assert len(net.run(images)) == len(images)


def test_a_failing_compiler_is_shown(net, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", f"{build.find_compiler()[0]} --no-such-option")
    monkeypatch.setenv("LEHR_CACHE", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"the C compiler failed .*no-such-option"):
        compile(net)
    assert not list(tmp_path.rglob("*.so"))


def test_a_compiler_that_fails_once_does_not_leave_a_slow_runtime(net, monkeypatch, tmp_path):
    best = compile(net).instruction_set
    compiler, failed = tmp_path / "cc", tmp_path / "failed"
    once = f'case "$*" in *avx2.c*) [ -e {failed} ] || {{ touch {failed}; kill -9 $$; }};; esac'
    compiler.write_text(f'#!/bin/sh\n{once}\nexec {build.find_compiler()[0]} "$@" -O0\n')  # quickly
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("LEHR_CACHE", str(tmp_path))
    assert compile(net).instruction_set == best
    assert failed.exists()


def test_a_network_whose_memory_c_cannot_count_is_refused():
    wide = Conv("wide", "pixels", Weights.of(np.ones((3, 1, 1, 1), np.int8)), padding=(6000, 6000))
    large = IntegerNet((1, 1, 1), (Table("pixels", np.arange(256)[None]), wide, Affine("a", "wide", *np.ones((2, 3)))))
    with pytest.raises(ValueError, match=r"a run would take \d+ bytes, more than 2147483647"):
        compile(large)


def test_integers_that_float32_does_not_hold_are_rounded_for_float_weights_everywhere():
    table = np.where(np.arange(256) == 255, 16387, 0)[None].repeat(16, 0)
    ones = np.full((2, 16), 127)
    ones[1, 0] = 126
    operations = (
        Table("pixels", table),
        Flatten("flat", "pixels"),
        Linear("sums", "flat", Weights.of(ones)),
        Linear("difference", "sums", np.array([[1.0, -1.0]], np.float32)),
    )
    net = IntegerNet((16, 1, 1), operations)
    images = np.full((1, 16, 1, 1), 255, np.uint8)
    assert compile(net)(images) == compile(net, instruction_set="scalar")(images) == net.run(images) == 16388


def test_networks_and_engines_are_copied_and_sent(net, images):
    expected = net.run(images)
    for thing in (net, compile(net, threads=2, instruction_set="scalar")):
        for other in (copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))):
            assert np.array_equal(other.run(images), expected)
    assert (other.threads, other.instruction_set) == (2, "scalar")


def test_processes_that_build_at_once_agree_and_leave_one_file(tmp_path):
    program = textwrap.dedent("""
        from lehr.deploy import build
        import ctypes
        library = ctypes.CDLL(str(build.build(build.find_compiler(), flags=("-O0",))))
        assert library.lehr_best_instruction_set() >= 0
    """)
    environment = {
        **os.environ,
        "LEHR_CACHE": str(tmp_path),
        "PYTHONPATH": str(Path(build.__file__).parents[2]),
    }
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert [path.suffix for path in (tmp_path / "runtime").iterdir()] == [".so"]


def test_a_cached_runtime_is_not_built_again():
    compiler = build.find_compiler()
    path = build.build(compiler)
    written = path.stat().st_mtime_ns
    assert build.build(compiler) == path
    assert path.stat().st_mtime_ns == written
