"""Random networks and damaged files: every backend agrees, nothing crashes, whatever is wrong is a BadFile.

A failure prints its seed, and LEHR_FUZZ_SEED=N begins with it.
"""

import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest

import fuzzed_networks
from fuzzing import seeds
from lehr.deploy import BadFile, IntegerNet, build, compile, limits, load, to_c, to_onnx
from lehr.deploy.cpu import available
from lehr.deploy.operations import Threshold

ROUNDING = 1e-5  # of the largest float of a layer: runtimes sum float32 in their own order, the reference in float64
SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def started(seed: int) -> np.random.Generator:
    """Where this round's random numbers come from; pytest shows what was printed if it fails."""
    print(f"LEHR_FUZZ_SEED={seed}", flush=True)
    return np.random.default_rng(seed)


def same(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """For each image, whether integers are equal, and floats up to their last bits."""
    rounding = 0.0 if expected.dtype == np.int64 else 1e-4
    atol = rounding * max(1, float(np.abs(expected).max(initial=0)))
    close = np.isclose(found, expected, rtol=rounding, atol=atol).reshape(len(expected), -1)
    return np.asarray(close.all(axis=1))


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert same(found, expected).all(), (found, expected)


def undecided(net: IntegerNet, images: np.ndarray) -> np.ndarray:
    """For each image, whether a float lies so near a threshold that rounding decides on which side it is."""
    found = np.zeros(len(images), bool)
    for at, operation in enumerate(net.operations):
        if isinstance(operation, Threshold) and operation.thresholds.dtype == np.float32:
            floats = IntegerNet(net.input_shape, net.operations[:at], input_dtype=net.input_dtype).run(images)
            signed = floats.reshape(len(images), len(operation.thresholds), -1, 1) * operation.directions[:, None, None]
            near = np.abs(signed - operation.thresholds[:, None]) <= ROUNDING * max(1, float(np.abs(floats).max()))
            found |= near.any(axis=(1, 2, 3))
    return found


def show(net: IntegerNet) -> None:
    for text in (str(net.summary()), str(compile(net).describe())):
        assert all(line.isprintable() for line in text.split("\n"))


def test_damaged_files_are_refused_or_run(tmp_path):
    path, written, loaded, refused = tmp_path / "net.lehr", 0, 0, 0
    for seed in seeds():
        random = started(seed)
        net = fuzzed_networks.network(random)
        for _ in range(20):
            written += 1
            path.write_bytes(fuzzed_networks.damaged(random, net))
            try:
                found = load(path)
            except BadFile as error:
                refused += str(error).isprintable()
                continue
            loaded += 1
            if limits.steps(found) < 2**22:
                show(found)
                image = fuzzed_networks.images(random, found, 1)
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    expected = found.run(image)
                    answer = compile(found)(image)
                if np.isfinite(expected).all():
                    assert_close(answer, expected)
    assert loaded
    assert refused == written - loaded, "a message with control characters"


def test_every_backend_gives_the_reference_result(tmp_path):
    import onnxruntime

    for seed in seeds():
        random = started(seed)
        net = fuzzed_networks.network(random)
        images = fuzzed_networks.images(random, net)
        expected = net.run(images)
        show(net)
        for name in available():
            assert_close(compile(net, instruction_set=name)(images), expected)
        net.save(tmp_path / "net.lehr")
        assert_close(load(tmp_path / "net.lehr").run(images), expected)
        try:
            to_onnx(net, tmp_path / "net.onnx")
        except ValueError as error:
            if "exact only below" not in str(error):
                raise
            continue
        session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
        name = "scores" if expected.dtype == np.int64 else "logits"
        found = np.asarray(session.run([name], {session.get_inputs()[0].name: images})[0]).astype(expected.dtype)
        assert (same(found, expected) | undecided(net, images)).all(), (found, expected)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory) -> tuple[Path, list[str]]:
    """The runtime of an exported network, compiled once with sanitizers; its objects and its macros."""
    folder = tmp_path_factory.mktemp("sanitized")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    macros = []
    for file in ("avx2.c", "avx512.c", *build.PORTABLE_FILES):
        macro, own = build.VECTOR_FILES.get(file, ("", ()))
        command = ["gcc", *build.FLAGS, *SANITIZED, *own, *macros, "-c", str(build.RUNTIME / file)]
        command += ["-o", str(folder / f"{file}.o"), *([f"-D{macro}"] if macro else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and macro:
            continue
        if done.returncode:
            pytest.skip(f"gcc has no sanitizers here: {done.stderr[-200:]}")
        macros += [f"-D{macro}"] if macro else []
    return folder, macros


def test_exported_c_is_clean_under_sanitizers(tmp_path, sanitized):
    folder, macros = sanitized
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
    for seed in seeds():
        random = started(seed)
        net = fuzzed_networks.network(random)
        to_c(net, tmp_path, images=fuzzed_networks.images(random, net))
        objects = [str(path) for path in folder.glob("*.o")]
        command = ["gcc", *build.FLAGS, *SANITIZED, *strict, *macros, "-o", "test", "test.c", "model.c", *objects]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        done = subprocess.run([str(tmp_path / "test")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ": 0 differ" in done.stdout
