"""What a stranger's file may cost: the promises of SECURITY.md, and that honest networks pass."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import hostile_networks
from classic_networks import resnet152, vgg16
from hostile_networks import HOSTILE, LONG
from lehr import zoo
from lehr.deploy import BadFile, IntegerNet, compile, limits, load
from lehr.deploy.limits import Limits
from lehr.deploy.operations import Conv, Flatten, MaxPool, SumPool, Table, Weights

SECONDS, MEGABYTES = 60, 2048  # SECURITY.md
PIXELS = Table("pixels", np.arange(256)[None] % 3 - 1)


def promised(names, folder: Path) -> None:
    """Load, show and predict in a process of its own, in both backends, within the time and memory promised."""
    words = []
    for name in names:
        HOSTILE[name]().save(folder / f"{name}.lehr")
        words += [str(folder / f"{name}.lehr"), "engine", str(folder / f"{name}.lehr"), "reference"]
    program = [sys.executable, hostile_networks.__file__, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 2 * len(names)
    for file, backend, seconds, megabytes in lines:
        assert float(seconds) < SECONDS, (file, backend, seconds)
        assert float(megabytes) < MEGABYTES, (file, backend, megabytes)


def test_the_page_promises_what_is_tested():
    page = (Path(__file__).parent.parent / "SECURITY.md").read_text()
    assert f"at most {SECONDS} seconds and {MEGABYTES} MB" in page


def test_what_is_allowed_takes_no_more_than_promised(tmp_path):
    promised([name for name in HOSTILE if name not in LONG], tmp_path)


@pytest.mark.skipif("LEHR_FUZZ_SECONDS" not in os.environ, reason="takes minutes: make fuzz")
@pytest.mark.parametrize("name", LONG)
def test_what_takes_longest_takes_no_longer_than_promised(name, tmp_path):
    promised([name], tmp_path)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_dear_networks_are_near_a_limit(name):
    net = HOSTILE[name]()
    limits.check(net, Limits())
    with pytest.raises(ValueError, match=r"are allowed: lehr.deploy.load\(file, limits=None\) for a file you trust"):
        limits.check(net, Limits(2_500, 2**24, 2**24, 2**23, 2**25, 2**33))


ONE = Weights(np.zeros((1, 1, 1, 1), np.uint8), (1,))
TOO_MUCH = {
    "windows of a million": ((1, 8, 8), [MaxPool("pool", "pixels", (2**20 - 2,) * 2, (1, 1), (2**19 - 1,) * 2)], None),
    "sums over a million": (
        (1, 8, 8),
        [SumPool("pool", "pixels", (2**20 - 2,) * 2, (1, 1), (2**19 - 1,) * 2)],
        "places",
    ),
    "an image of a million rows": ((1, 2**15, 2**14), [Flatten("flat", "pixels")], "numbers"),
    "pools over everything": ((1, 999, 999), [MaxPool("pool", "pixels", (999, 999), (1, 1), (499, 499))], "steps"),
    "much padding": ((1, 1, 1), [Conv("conv", "pixels", ONE, padding=(4000, 4000))], "numbers"),
    "padding that is skipped": ((1, 1, 1), [Conv("conv", "pixels", ONE, (2**19, 2**19), (2**18, 2**18))], "numbers"),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_a_small_file_that_asks_for_much_is_refused(case, tmp_path):
    shape, operations, unit = TOO_MUCH[case]
    IntegerNet(shape, (PIXELS, *operations)).save(tmp_path / "net.lehr")
    assert (tmp_path / "net.lehr").stat().st_size < 2000
    if unit is None:  # it only looks dear: what lies outside the image is not walked
        start = time.perf_counter()
        net = load(tmp_path / "net.lehr")
        image = np.zeros((1, *shape), np.uint8)
        assert np.array_equal(net.run(image), compile(net)(image))
        assert time.perf_counter() - start < 10
        return
    with pytest.raises(BadFile, match=f"{unit}, and .* are allowed"):
        load(tmp_path / "net.lehr")
    if unit != "steps":
        load(tmp_path / "net.lehr", limits=None)


def test_honest_networks_pass_comfortably():
    for network in zoo.networks().values():
        limits.check(network.load(), Limits(100, 2**22, 2**20, 2**18, 2**20, 2**30))


@pytest.mark.parametrize(("make", "products"), [(vgg16, 15.5), (resnet152, 11.5)])
def test_the_largest_of_the_classics_pass(make, products):
    net = make()
    assert round(net.summary().macs / 1e9, 1) == products
    limits.check(net, Limits())


def test_long_batches_run_in_parts_and_an_interrupt_is_heard():
    net = IntegerNet((1, 64, 64), (PIXELS, MaxPool("pool", "pixels", (63, 63), (1, 1), (31, 31))))
    images = np.zeros((20_000, 1, 64, 64), np.uint8)  # minutes
    for run in (compile(net), compile(net, threads=2), net):
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        start = time.perf_counter()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run.run(images)
        assert time.perf_counter() - start < 60, "the whole batch takes minutes"


def test_parts_of_a_batch_are_the_whole(monkeypatch):
    from lehr.deploy import cpu

    monkeypatch.setattr(cpu, "STEPS_AT_ONCE", 30_000)
    net = IntegerNet((1, 8, 8), (PIXELS, MaxPool("pool", "pixels", (3, 3), (1, 1), (1, 1))))
    images = np.random.default_rng(0).integers(0, 256, (101, 1, 8, 8), dtype=np.uint8)
    for threads in (1, 2, 3):
        assert np.array_equal(compile(net, threads=threads)(images), net.run(images))
