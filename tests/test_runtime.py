"""Every routine of the C runtime, the plain loops too, equals the reference run bit for bit, whatever the shapes."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compilers import with_last
from lehr.deploy import build, cpu
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import (
    ALWAYS,
    NEVER,
    Add,
    Affine,
    Clip,
    Conv,
    Flatten,
    Linear,
    MaxPool,
    Requantize,
    SumPool,
    Table,
    Threshold,
    Weights,
)
from lehr.deploy.plan import plan
from lehr.deploy.structs import Routine

TRITS = (-1, 0, 1)


@pytest.fixture(autouse=True, scope="module")
def _used_memory():
    """Engines work in memory that is not zero, as it is after other layers and images."""

    class UsedMemory(cpu.Memory):
        def __init__(self, size):
            super().__init__(size)
            self.bytes[:] = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "Memory", UsedMemory)
        yield


def images_for(net, rng, count=2):
    return rng.integers(0, 256, (count, *net.input_shape), dtype=np.uint8)


def assert_every_routine_equals_the_reference(net, rng):
    images = images_for(net, rng)
    expected, scores = net.run(images), net.scores(images)
    for name in cpu.available():
        engine = cpu.compile(net, instruction_set=name)
        np.testing.assert_array_equal(engine.scores(images), scores, err_msg=name)
        np.testing.assert_array_equal(engine.run(images), expected, err_msg=name)


def trit_table(channels):
    """Pixels to -1, 0 or 1."""
    return Table("x", np.tile(np.arange(256) % 3 - 1, (channels, 1)))


def table_between(channels, low, high):
    return Table("x", np.tile(np.linspace(low, high, 256).round().astype(int), (channels, 1)))


def weights(rng, shape, levels):
    return Weights(rng.integers(0, len(levels), shape), levels)


def thresholds(rng, name, source, value, levels=TRITS, dtype=np.int64):
    """Random thresholds inside the range of `value`, some of them always or never reached."""
    channels, steps = value.shape[0], len(levels) - 1
    cut = rng.integers(value.low // 2 - 2, value.high // 2 + 3, (channels, steps))
    cut[rng.random(channels) < 0.1] = ALWAYS
    cut[rng.random(channels) < 0.1, -1] = NEVER
    return Threshold(name, source, np.sort(cut, axis=1).astype(dtype), rng.choice([-1, 1], channels), levels)


def then_threshold(shape, operations, rng, levels=TRITS):
    """The network with a threshold after the last of `operations`."""
    value = IntegerNet(shape, operations).output
    return IntegerNet(shape, (*operations, thresholds(rng, "codes", operations[-1].name, value, levels)))


@st.composite
def convolutions(draw):
    """A shape, and the arguments of a convolution that fits it."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    # from 16 channels on matrix tiles load straight from the source; 64 channels and 32 outputs fill them
    channels = groups * draw(st.sampled_from([1, 2, 3, 4, 5, 7, 16, 19, 64, 67]))
    outs = groups * draw(st.sampled_from([1, 2, 7, 8, 9, 13, 16, 19, 32, 35]))
    window, space, stride, padding, dilation = [], [], [], [], []
    for _ in range(2):
        k, d, p = draw(st.integers(1, 11)), draw(st.sampled_from([1, 1, 1, 2, 3])), draw(st.integers(0, 5))
        reach = d * (k - 1) + 1
        window.append(k)
        dilation.append(d)
        padding.append(p)
        stride.append(draw(st.sampled_from([1, 1, 1, 2, 3, 4])))
        smallest = max(1, reach - 2 * p)
        space.append(smallest + draw(st.sampled_from([*range(20), 15 * stride[-1], 31 * stride[-1]])))
    arguments = {
        "stride": tuple(stride),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
        "groups": groups,
    }
    return (channels, *space), (outs, channels // groups, *window), arguments


EXAMPLES = int(os.environ.get("LEHR_EXAMPLES", "60"))
QUICK = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(
    convolutions(),
    st.sampled_from(["trits", "bytes", "shorts", "unsigned"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_ternary_convolutions_of_any_shape(case, values, pooled, seed):
    shape, kernel, arguments = case
    rng = np.random.default_rng(seed)
    table = {
        "trits": trit_table(shape[0]),
        "bytes": table_between(shape[0], -128, 127),
        "shorts": table_between(shape[0], -300, 290),
        "unsigned": table_between(shape[0], 0, 3),
    }[values]
    operations = [table, Conv("sums", "x", weights(rng, kernel, TRITS), **arguments)]
    _, rows, columns = IntegerNet(shape, tuple(operations)).output.shape
    if pooled:
        window = (min(rows, 1 + seed % 3), min(columns, 1 + seed % 2))
        operations.append(MaxPool("pool", "sums", window, window))
    assert_every_routine_equals_the_reference(IntegerNet(shape, tuple(operations)), rng)
    assert_every_routine_equals_the_reference(then_threshold(shape, tuple(operations), rng), rng)


@pytest.mark.parametrize("columns", [8, 16, 32])
@pytest.mark.parametrize("pool", [1, 2])
@pytest.mark.parametrize(("kernel", "dilation", "groups"), [(3, 1, 1), (1, 1, 1), (5, 2, 2)])
def test_maps_whose_rows_fill_vectors(columns, pool, kernel, dilation, groups):
    """Where some rows of the output make a vector, it is loaded a row at a time; the last vector may be half empty."""
    rng = np.random.default_rng(columns)
    for rows in (6, 10):
        shape, padding = (4, rows, columns), kernel // 2 * dilation
        arguments = {"padding": (padding, padding), "dilation": (dilation, dilation), "groups": groups}
        conv = Conv("sums", "x", weights(rng, (16, 4 // groups, kernel, kernel), TRITS), **arguments)
        operations = (trit_table(4), conv, MaxPool("pool", "sums", (pool, pool), (pool, pool)))
        assert_every_routine_equals_the_reference(then_threshold(shape, operations[: pool + 1], rng), rng)


@QUICK
@given(
    st.tuples(st.sampled_from([1, 3, 16]), st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.sampled_from([8, 17]), st.integers(1, 4), st.sampled_from([1, 3, 5, 7])),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from([(1, 1), (2, 2), (2, 2), (2, 1), (3, 3)]),
    st.sampled_from([TRITS, (-1, 1), (-2, 0, 3), tuple(range(-9, 9))]),
    st.integers(0, 2**32 - 1),
)
def test_convolutions_that_keep_their_width(shape, kernel, dilation, pool, levels, seed):
    """Of these, values in {-1, 0, 1} are packed in other ways, depending on the pool after them."""
    rng = np.random.default_rng(seed)
    (outs, *window), (channels, *space) = kernel, shape
    padding = (dilation[0] * window[0] // 2, dilation[1] * (window[1] // 2))
    if dilation[0] * (window[0] - 1) >= space[0] + 2 * padding[0]:
        return
    conv = Conv("sums", "x", weights(rng, (outs, channels, *window), TRITS), padding=padding, dilation=dilation)
    for table in (trit_table(channels), table_between(channels, -128, 127)):
        operations = [table, conv]
        _, rows, columns = IntegerNet(shape, tuple(operations)).output.shape
        assert columns == shape[2]
        if pool != (1, 1) and rows >= pool[0] and columns >= pool[1]:
            operations.append(MaxPool("pool", "sums", pool, pool))
        assert_every_routine_equals_the_reference(then_threshold(shape, tuple(operations), rng, levels), rng)


@QUICK
@given(
    convolutions(),
    st.sampled_from([(-128, 127), (-2, -1, 3, 50), (0, 1), (-1, 1)]),
    st.integers(0, 2**32 - 1),
)
def test_convolutions_with_any_integer_weights(case, levels, seed):
    shape, kernel, arguments = case
    rng = np.random.default_rng(seed)
    operations = (
        table_between(shape[0], -128, 127),
        Conv("sums", "x", weights(rng, kernel, levels), **arguments),
    )
    net = then_threshold(shape, operations, rng, levels=tuple(range(-5, 12)))
    assert_every_routine_equals_the_reference(net, rng)


@pytest.mark.parametrize("features", [1, 31, 32, 33, 64, 255, 256, 511, 2047, 2048, 8192, 16385])
@pytest.mark.parametrize("trits", [TRITS, (-1, 1), (0, 1)])
def test_linear_layers_of_any_length(features, trits):
    rng = np.random.default_rng(features)
    net = IntegerNet(
        (1, 1, features),
        (trit_table(1), Flatten("flat", "x"), Linear("sums", "flat", weights(rng, (5, features), trits))),
    )
    assert_every_routine_equals_the_reference(net, rng)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("channels", [1, 2, 31, 32, 33, 3640])
def test_ternary_sums_at_their_limits_do_not_overflow(channels, sign):
    """All weights 1 and all values 1 or -1; 3640 * 9 taps are the most that int16 tables take."""
    net = IntegerNet(
        (channels, 3, 3),
        (
            Table("x", np.full((channels, 256), sign)),
            Conv("sums", "x", Weights(np.zeros((8, channels, 3, 3), int), (1,)), padding=(1, 1)),
        ),
    )
    for name in cpu.available():
        engine = cpu.compile(net, instruction_set=name)
        routine = {"amx": "matrix tiles", "reference": "conv"}.get(name, "tables")
        if (name, channels) == ("small", 3640):
            routine = "direct"  # sums of 15 bits are the most there
        assert engine.describe().rows[1].routine == routine
        sums = engine.scores(np.zeros((1, channels, 3, 3), np.uint8)).reshape(8, 9)
        assert (sums[:, 4] == sign * 9 * channels).all()
        assert (sums[:, 0] == sign * 4 * channels).all()


@pytest.mark.parametrize("sign", [-1, 1])
def test_wide_sums_at_their_limits_do_not_overflow(sign):
    """258 taps of 127 reach 32766, the largest sum that 16 bits take; one more goes to the direct routine."""
    for outs, taps, routine in ((8, 258, "wide tables"), (8, 259, "direct"), (1, 258, "products"), (1, 259, "direct")):
        net = IntegerNet(
            (taps, 1, 40),
            (
                Table("x", np.full((taps, 256), 127 * sign)),
                Conv("sums", "x", Weights(np.zeros((outs, taps, 1, 1), int), (1,))),
            ),
        )
        for name in cpu.available():
            engine = cpu.compile(net, instruction_set=name)
            others = {
                "amx": "matrix tiles",
                "reference": "conv",
                "small": "wide tables",  # 16 bits from the least
            }
            if outs == 1:
                others = {"amx": routine, "reference": "conv", "small": "direct"}
            assert engine.describe().rows[1].routine == others.get(name, routine)
            assert (engine.scores(np.zeros((1, taps, 1, 40), np.uint8)) == sign * 127 * taps).all()


def test_direct_sums_at_the_limits_of_int32():
    taps = (2**31 - 2) // (32767 * 127)
    net = IntegerNet(
        (taps, 1, 1),
        (
            Table("x", np.full((taps, 256), 32767)),
            Conv("sums", "x", Weights(np.zeros((1, taps, 1, 1), int), (127,))),
        ),
    )
    for name in cpu.available():
        sums = cpu.compile(net, instruction_set=name).scores(np.zeros((1, taps, 1, 1), np.uint8))
        assert sums[0, 0] == taps * 32767 * 127


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_narrow_kernels_that_skip_columns(columns, stride):
    """Output rows that are not whole tiles go on in the next row, at the distance of the columns between them."""
    rng = np.random.default_rng(stride)
    conv = Conv("sums", "x", weights(rng, (8, 16, 3, columns), TRITS), stride=(1, stride))
    assert_every_routine_equals_the_reference(IntegerNet((16, 9, 19), (trit_table(16), conv)), rng)


def test_depthwise_convolutions():
    rng = np.random.default_rng(0)
    operations = (
        trit_table(24),
        Conv("sums", "x", weights(rng, (24, 1, 3, 3), TRITS), padding=(1, 1), groups=24),
    )
    net = then_threshold((24, 9, 13), operations, rng)
    assert_every_routine_equals_the_reference(net, rng)
    row = cpu.compile(net).describe().rows[1]
    assert (row.routine, row.why) == ("products", "fewer than 8 outputs share a table")


@pytest.mark.parametrize("steps", [1, 2, 3, 15, 255])
def test_any_number_of_thresholds_and_any_levels(steps):
    rng = np.random.default_rng(steps)
    levels = tuple(rng.permutation(np.arange(-400, 400))[: steps + 1].tolist())
    operations = (trit_table(8), Conv("sums", "x", weights(rng, (9, 8, 3, 3), TRITS)))
    assert_every_routine_equals_the_reference(then_threshold((8, 7, 7), operations, rng, levels), rng)


def test_a_sum_on_its_threshold_goes_up():
    """H(0) = 1, in both directions: codes of sums -1, 0, 1 with the thresholds 0 and 1."""
    net = IntegerNet(
        (1, 1, 3),
        (
            Table("x", np.arange(256)[None] - 1),
            Conv("sums", "x", Weights(np.zeros((8, 1, 1, 1), int), (1,))),
            Threshold("codes", "sums", np.tile([0, 1], (8, 1)), np.array([1, -1] * 4), TRITS),
        ),
    )
    image = np.array([[[[0, 1, 2]]]], np.uint8)
    expected = [[-1, 0, 1], [1, 0, -1]] * 4
    assert net.run(image).reshape(8, 3).tolist() == expected
    for name in cpu.available():
        assert cpu.compile(net, instruction_set=name).run(image).reshape(8, 3).tolist() == expected


@QUICK
@given(
    st.tuples(st.integers(1, 5), st.integers(5, 20), st.integers(5, 40)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from([1, 100, 30000]),
    st.sampled_from([MaxPool, SumPool]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_pools_of_any_shape(shape, kernel, stride, most, kind, whole, seed):
    rng = np.random.default_rng(seed)
    if whole:  # rows of a window are neighbours
        kernel = (kernel[0], shape[2])
    padding = (int(rng.integers(kernel[0] // 2 + 1)), 0 if whole else int(rng.integers(kernel[1] // 2 + 1)))
    net = IntegerNet(shape, (table_between(shape[0], -most, most), kind("pool", "x", kernel, stride, padding)))
    assert_every_routine_equals_the_reference(net, rng)


def test_residual_additions_pools_and_branches():
    rng = np.random.default_rng(3)
    shape = (8, 11, 10)
    operations = [
        trit_table(8),
        Conv("a", "x", weights(rng, (8, 8, 3, 3), TRITS), padding=(1, 1)),
        Add("sum", "a", "x"),
    ]
    value = IntegerNet(shape, tuple(operations)).output
    operations += [
        thresholds(rng, "b", "sum", value),
        MaxPool("overlapping", "b", (3, 3), (2, 2), (1, 1)),
        Conv("c", "overlapping", weights(rng, (12, 8, 3, 2), TRITS), stride=(2, 1)),
        SumPool("average", "c", (2, 3), (1, 2), (1, 0)),
        Flatten("flat", "average"),
    ]
    features = IntegerNet(shape, tuple(operations)).output.size
    operations += [
        Linear("scores", "flat", weights(rng, (4, features), (-3, 0, 7))),
        Affine("logits", "scores", rng.normal(size=4), rng.normal(size=4)),
    ]
    assert_every_routine_equals_the_reference(IntegerNet(shape, tuple(operations)), rng)


@pytest.mark.parametrize("shift", [20, 24, 28])
@pytest.mark.parametrize("factors", [(1, 1), (-3, 200), (-128, -127), (129, -127), (30000, 2)])
def test_many_even_levels_after_convolutions_and_additions(shift, factors):
    """At a shift of 20 the products may stay in 32 bits; sums of two bytes stay in 16 with small factors."""
    rng = np.random.default_rng(shift)
    shape = (8, 11, 13)

    def levels(name, source, slope):
        multipliers = (rng.normal(0, slope, 8) * 2.0**shift).astype(int)
        return Requantize(name, source, multipliers, rng.integers(-(2**22), 2**22, 8), shift, -128, 127)

    operations = (
        table_between(8, -128, 127),
        Threshold("trits", "x", np.tile([-30, 40], (8, 1)), np.ones(8), TRITS),
        Conv("sums", "trits", weights(rng, (8, 8, 3, 3), TRITS), padding=(1, 1)),
        levels("many", "sums", 2),
        Conv("others", "x", weights(rng, (8, 1, 3, 3), TRITS), padding=(1, 1), groups=8),
        levels("also many", "others", 0.1),
        Add("sum", "many", "also many", *factors),
        levels("out", "sum", 0.5 / max(map(abs, factors))),
    )
    assert_every_routine_equals_the_reference(IntegerNet(shape, operations), rng)
    assert_every_routine_equals_the_reference(then_threshold(shape, operations[:-1], rng), rng)


def test_float_layers_around_a_quantized_branch():
    """A MobileNetV2 block: float stem, quantized residual branch, float sum and head."""
    rng = np.random.default_rng(4)
    channels = 8

    def affine(name, source, n):
        return Affine(name, source, rng.normal(0.1, 0.05, n), rng.normal(0, 0.3, n))

    def quantized(name, source):
        cut = np.sort(rng.normal(0, 0.5, (channels, 2)), axis=1)
        return Threshold(name, source, cut, rng.choice([-1, 1], channels), TRITS)

    net = IntegerNet(
        (3, 12, 12),
        (
            Table("x", (np.arange(256)[None] / 64 - 2) * np.ones((3, 1))),
            Conv("stem", "x", rng.normal(size=(channels, 3, 3, 3)), (2, 2), (1, 1)),
            affine("norm", "stem", channels),
            Clip("relu6", "norm", 0.0, 6.0),
            quantized("branch", "relu6"),
            Conv("expand", "branch", weights(rng, (channels, channels, 1, 1), TRITS)),
            affine("norm 2", "expand", channels),
            quantized("inner", "norm 2"),
            Conv(
                "depthwise",
                "inner",
                weights(rng, (channels, 1, 3, 3), TRITS),
                (1, 1),
                (1, 1),
                (1, 1),
                channels,
            ),
            affine("branch out", "depthwise", channels),
            Add("sum", "relu6", "branch out"),
            MaxPool("pool", "sum", (3, 3), (2, 2), (1, 1)),
            SumPool("average", "pool", (3, 3), (3, 3)),
            Flatten("flat", "average"),
            Linear("head", "flat", rng.normal(size=(5, channels))),
            affine("logits", "head", 5),
        ),
    )
    images = images_for(net, rng, 3)
    for name in cpu.available():
        np.testing.assert_allclose(
            cpu.compile(net, instruction_set=name)(images), net.run(images), rtol=2e-7, atol=1e-7
        )


def test_quantized_weights_on_floats_and_float_weights_on_integers():
    rng = np.random.default_rng(5)
    net = IntegerNet(
        (2, 6, 6),
        (
            Table("x", np.arange(512).reshape(2, 256) / 512),
            Conv("a", "x", weights(rng, (8, 2, 3, 3), TRITS)),
            Threshold("codes", "a", np.zeros((8, 1), np.float32), np.ones(8), (0, 1)),
            Conv("b", "codes", weights(rng, (3, 8, 2, 2), (-0.5, 0.25, 1.5))),
        ),
    )
    assert_every_routine_equals_the_reference(net, rng)


@pytest.mark.skipif("LEHR_SANITIZED" in os.environ, reason="this is the run it starts")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc with its sanitizers (Debian: gcc)")
def test_the_routines_are_clean_under_address_and_undefined_behaviour_sanitizers(tmp_path):
    """This file again, with the runtime built with both sanitizers and any finding fatal."""
    preload = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    if not os.path.isabs(preload[0]):
        pytest.skip("gcc has no libasan (Debian: libgcc-12-dev)")
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=0",
        "CC": with_last(["gcc"], "-O1", "-DLEHR_DEBUG", *sanitizers, folder=tmp_path),
        "LD_PRELOAD": " ".join(preload),
        "LEHR_CACHE": str(tmp_path),
        "LEHR_EXAMPLES": "15",
        "LEHR_SANITIZED": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("file", build.VECTOR_FILES)
def test_routines_compile_wherever_the_compiler_knows_their_instructions(file, tmp_path):
    """`build` leaves out a file that does not compile: an error in it must not pass for an old compiler."""
    macro, own = build.VECTOR_FILES[file]
    empty = tmp_path / "empty.c"
    empty.write_text("typedef int nothing;\n")
    command = [*build.find_compiler(), *build.FLAGS, *own, "-c", "-o", os.devnull]
    if subprocess.run([*command, str(empty)], capture_output=True).returncode:
        pytest.skip(f"the compiler does not know {' '.join(own)}")
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", f"-D{macro}", str(build.RUNTIME / file)]
    done = subprocess.run([*command, *strict], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("pixel", "routine"), [(127, Routine.TRITS), (-128, Routine.MATRIX)])
def test_trits_whose_sums_could_leave_int32_are_multiplied_as_they_are(pixel, routine):
    """Tiles of trits make 64 times the sums: these end at 64 * 127 * 2**18, or would at 2**31."""
    channels = 2**18 // 64
    pixels = Table("x", np.full((channels, 256), pixel))
    weights = Weights(np.full((16, channels, 8, 8), 2, np.uint8), TRITS)
    net = IntegerNet((channels, 8, 8), (pixels, Conv("sums", "x", weights)))
    assert plan(net, "amx").layers[1].routine == routine
    images = np.zeros((1, *net.input_shape), np.uint8)
    for name in cpu.available():
        assert np.all(cpu.compile(net, instruction_set=name).scores(images) == pixel * 2**18), name
