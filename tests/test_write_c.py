"""The C a network becomes: it builds without warnings everywhere and gives the reference scores."""

import os
import shutil
import subprocess

import numpy as np
import pytest

from lehr.deploy import to_c
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import Add, Affine, Clip, Conv, Flatten, Linear, MaxPool, SumPool, Table, Threshold, Weights

TRITS = (-1, 0, 1)


def make_net(classes=()):
    """A network the size of one for 8 x 8 digits, with every kernel of integers."""
    rng = np.random.default_rng(0)

    def weights(*shape, levels=TRITS):
        return Weights(rng.integers(0, len(levels), shape), levels)

    def cut(name, source, channels, spread):
        t = np.sort(rng.integers(-spread, spread, (channels, 2)))
        return Threshold(name, source, t, rng.choice([-1, 1], channels), TRITS)

    return IntegerNet(
        (1, 8, 8),
        (
            Table("pixels", np.arange(-128, 128)[None]),
            Conv("conv1", "pixels", weights(16, 1, 3, 3), padding=(1, 1)),
            cut("act1", "conv1", 16, 200),
            Conv("conv2", "act1", weights(16, 16, 3, 3), padding=(1, 1)),
            Add("sum", "conv2", "act1"),
            cut("act2", "sum", 16, 12),
            Conv("conv3", "act2", weights(24, 16, 3, 3), padding=(1, 1)),
            MaxPool("pool3", "conv3", (2, 2), (2, 2)),
            cut("act3", "pool3", 24, 12),
            Conv("depthwise", "act3", weights(24, 1, 3, 3, levels=(-3, 1, 2)), groups=24),
            Flatten("flat", "depthwise"),
            Linear("hidden", "flat", weights(40, 96, levels=(-7, 0, 5))),
            cut("act4", "hidden", 40, 90),
            Linear("scores", "act4", weights(10, 40)),
            Affine("logits", "scores", rng.normal(size=10), rng.normal(size=10)),
        ),
        classes,
    )


@pytest.fixture(scope="module")
def net():
    return make_net(tuple("abcdefghij"))


@pytest.fixture(scope="module")
def directory(net, tmp_path_factory):
    path = tmp_path_factory.mktemp("c")
    to_c(net, path, images=np.random.default_rng(1).integers(0, 256, (6, 1, 8, 8), dtype=np.uint8))
    return path


QUICKLY = "CFLAGS=-std=c99 -O0 -Wall -Wextra -Werror -pedantic"
ELSEWHERE = QUICKLY.replace("-O0", "-O1")  # gcc builds it as the Makefile says, others with less effort


def make(directory, *arguments, stdin=None):
    done = subprocess.run(["make", *arguments], cwd=directory, capture_output=True, input=stdin, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout.decode()


def need(*programs, packages):
    missing = [program for program in ("make", *programs) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (Debian: {packages})")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_it_builds_without_warnings_and_gives_the_scores(directory, compiler):
    need(compiler, packages="gcc clang")
    make(directory, "clean")
    flags = () if compiler == "gcc" else (ELSEWHERE,)
    assert "6 images" in make(directory, f"CC={compiler}", *flags, "check")


def test_it_builds_for_32_bits(directory):
    need("gcc", packages="gcc")
    probe = subprocess.run(
        ["gcc", "-m32", "-x", "c", "-", "-o", os.devnull],
        input=b"#include <stdio.h>\nint main(void) { return 0; }",
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip("gcc cannot build for 32 bits (Debian: lib32gcc-12-dev libc6-dev-i386)")
    make(directory, "clean")
    assert "6 images, 1 instruction sets" in make(directory, "CC=gcc -m32", ELSEWHERE, "check")


def test_it_runs_on_arm_linux(directory):
    need(
        "arm-linux-gnueabihf-gcc",
        "qemu-arm",
        packages="gcc-arm-linux-gnueabihf libc6-dev-armhf-cross qemu-user",
    )
    make(directory, "clean")
    run = "RUN=qemu-arm -L /usr/arm-linux-gnueabihf"
    assert "6 images, 1 instruction sets" in make(directory, "CC=arm-linux-gnueabihf-gcc", run, ELSEWHERE, "check")


def test_it_runs_on_64_bit_arm_with_vectors(directory):
    need(
        "aarch64-linux-gnu-gcc",
        "qemu-aarch64",
        packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
    )
    make(directory, "clean")
    run = "RUN=qemu-aarch64 -L /usr/aarch64-linux-gnu"
    assert "6 images, 2 instruction sets" in make(directory, "CC=aarch64-linux-gnu-gcc", run, ELSEWHERE, "check")


def test_the_program_classifies_images_from_standard_input(net, directory):
    need("gcc", packages="gcc")
    images = np.random.default_rng(2).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    make(directory, "clean")
    make(directory, "CC=gcc", QUICKLY, "classify")
    run = [str(directory / "classify")]
    done = subprocess.run(run, input=images.tobytes(), capture_output=True, check=True)
    expected = [
        f"{net.classes[label]}: {' '.join(map(str, scores))}"
        for label, scores in zip(net.predict(images), net.scores(images), strict=True)
    ]
    assert done.stdout.decode().splitlines() == expected
    done = subprocess.run(run, input=images.tobytes()[:-1], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"the input ends inside an image: 63 of 64 bytes" in done.stderr


def test_a_wrong_score_fails_the_test_vector(directory, tmp_path):
    need("gcc", packages="gcc")
    broken = shutil.copytree(directory, tmp_path / "broken")
    vector = (broken / "test_vector.h").read_text()
    head, scores = vector.split("test_scores[6][10] = {\n    {\n        ")
    first, rest = scores.split(",", 1)
    (broken / "test_vector.h").write_text(f"{head}test_scores[6][10] = {{\n    {{\n        {int(first) + 1},{rest}")
    make(broken, "clean")
    make(broken, "CC=gcc", QUICKLY, "test")
    done = subprocess.run([str(broken / "test")], capture_output=True, check=False)
    assert done.returncode == 1


def test_float_layers_and_awkward_names(tmp_path):
    need("gcc", packages="gcc")
    rng = np.random.default_rng(3)
    net = IntegerNet(
        (1, 6, 6),
        (
            Table("x */ é", np.arange(256)[None] / 255),
            Conv("conv", "x */ é", rng.normal(size=(4, 1, 3, 3)), padding=(1, 1)),
            Clip("relu", "conv", 0.0, np.inf),
            SumPool("average", "relu", (6, 6), (6, 6)),
            Flatten("flat", "average"),
            Linear("logits", "flat", rng.normal(size=(2, 4))),
        ),
        ('a "quoted" ?? name', "Käfer"),
    )
    to_c(net, tmp_path)
    assert "4 images" in make(tmp_path, "CC=gcc", QUICKLY, "check")
    make(tmp_path, "CC=gcc", QUICKLY, "classify")
    image = np.full((1, 1, 6, 6), 9, np.uint8)
    done = subprocess.run([str(tmp_path / "classify")], input=image.tobytes(), capture_output=True, check=True)
    assert done.stdout.decode().startswith(net.classes[int(net.predict(image)[0])] + ":")


def test_a_test_vector_needs_an_image(tmp_path):
    with pytest.raises(ValueError, match="the test vector needs at least one, got none"):
        to_c(make_net(), tmp_path / "c", images=np.zeros((0, 1, 8, 8), np.uint8))
    assert not (tmp_path / "c").exists()


INJECTED = "__attribute__((constructor)) static void boom(void) { __builtin_exit(66); }"


HOSTILE = (
    f"*\\\r/ {INJECTED} /*",  # gcc joins a line after a backslash and a carriage return
    f"*\\\n/ {INJECTED} /*",
    f"*\\ \r\n/ {INJECTED} /*",
    f"*??/\n/ {INJECTED} /*",  # a trigraph of -std=c99 is a backslash
    f"\r\n*/\r\n{INJECTED}\r\n/*",
    f"\v\f\x85\u2028*\x00/ {INJECTED} /*",
    "*\\\r/\r#error injected\r/*",
    "a/*b",
    "a//b\\",
    f'"}};{INJECTED}',
)


def test_no_name_becomes_code(tmp_path):
    need("gcc", packages="gcc")
    names = ("flat", *HOSTILE)
    net = IntegerNet(
        (1, 1, len(HOSTILE)),
        (
            Table("pixels", np.arange(256)[None] // 128),
            Flatten("flat", "pixels"),
            *(
                Affine(name, source, np.ones(len(HOSTILE)), np.zeros(len(HOSTILE)))
                for source, name in zip(names, HOSTILE, strict=False)
            ),
        ),
        HOSTILE,
    )
    to_c(net, tmp_path)
    assert "4 images" in make(tmp_path, "CC=gcc", QUICKLY, "check")
    for file in ("model.c", "model.h", "test_vector.h", "README.md"):
        assert set((tmp_path / file).read_bytes()) <= {ord("\n"), *range(32, 127)}, file


def test_the_program_prints_no_control_characters(tmp_path):
    need("gcc", packages="gcc")
    operations = (Table("pixels", np.arange(256)[None] // 128), Flatten("flat", "pixels"))
    to_c(IntegerNet((1, 1, 2), operations, ("\x1b[2J\x07\r", "\u202e\x00tail")), tmp_path)
    make(tmp_path, "CC=gcc", QUICKLY, "classify")
    done = subprocess.run([str(tmp_path / "classify")], input=bytes([255, 0, 0, 255]), capture_output=True, check=True)
    assert done.stdout.decode() == "\\x1b[2J\\x07\\r: 1 0\n\\u202e\\x00tail: 0 1\n"
