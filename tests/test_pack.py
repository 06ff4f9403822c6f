"""A packed file holds the network it was made of, is small, and nothing in it can hurt who reads it."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import resource
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as to_bytes
from torch import nn

import frozen_networks as networks
from frozen_networks import NETWORKS
from lehr.deploy import BadFile, pack, unpack
from lehr.deploy.card import Card
from lehr.deploy.integer_net import IntegerNet
from lehr.deploy.operations import (
    Add,
    Affine,
    Clip,
    Conv,
    Flatten,
    Floats,
    Linear,
    MaxPool,
    Operation,
    Round,
    SumPool,
    Table,
    Threshold,
    Weights,
)
from lehr.deploy.pack import load, save
from lehr.deploy.packed_codes import pack_codes, unpack_codes


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(
            same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a)
        )
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b)) and list(map(type, a)) == list(map(type, b))
    return a == b


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    net = networks.frozen(name)
    net.save(tmp_path / "net.lehr")
    loaded = load(tmp_path / "net.lehr")
    assert same(loaded, net)
    assert torch.equal(loaded.run(networks.batch(name)), net.run(networks.batch(name)))


def test_every_operation_can_be_packed(tmp_path):
    floats = IntegerNet((2,), (Floats("x"), Round("round", "x", np.zeros(2), np.ones(2), 127)), input_dtype="float32")
    save(floats, tmp_path / "floats.lehr")
    assert same(load(tmp_path / "floats.lehr"), floats)
    packed = [floats, *map(networks.frozen, NETWORKS)]  # the others by the test above
    concrete = {kind for kind in all_kinds(Operation) if not kind.__abstractmethods__}
    assert {type(operation) for net in packed for operation in net.operations} == {
        kind for kind in concrete if not kind.__name__.startswith("_")
    }


def all_kinds(kind: type) -> set[type]:
    return {kind}.union(*(all_kinds(below) for below in kind.__subclasses__()))


@given(st.data())
def test_codes_survive_packing_in_the_fewest_whole_bits(data):
    levels = data.draw(st.integers(1, 256))
    codes = np.array(data.draw(st.lists(st.integers(0, levels - 1), max_size=40)), np.uint8)
    packed = pack_codes(codes, levels)
    bits = math.log2(243) / 5 if levels == 3 else max(1, math.ceil(math.log2(levels)))
    assert len(packed) == (-(-len(codes) // 5) if levels == 3 else math.ceil(len(codes) * bits / 8))
    assert np.array_equal(unpack_codes(packed, len(codes), levels), codes)


@cache
def vgg() -> IntegerNet:
    """The paper's network at width 1 with random ternary weights: 617 M multiply-accumulates, 14.0 M weights."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> Weights:
        return Weights(random.integers(0, 3, shape, dtype=np.uint8), (-1, 0, 1))

    def threshold(name: str, source: str, channels: int) -> Threshold:
        cuts = np.sort(random.integers(-900, 900, (channels, 2)))
        return Threshold(name, source, cuts, random.choice([-1, 1], channels), (-1, 0, 1))

    operations: list[Operation] = [Table("pixels", random.integers(-128, 128, (3, 256)))]
    channels, last = 3, "pixels"
    for number, width in enumerate([128, 128, 256, 256, 512, 512]):
        operations.append(Conv(f"conv{number}", last, weights(width, channels, 3, 3), padding=(1, 1)))
        last = f"conv{number}"
        if number % 2:
            operations.append(MaxPool(f"pool{number}", last, (2, 2), (2, 2)))
            last = f"pool{number}"
        operations.append(threshold(f"step{number}", last, width))
        channels, last = width, f"step{number}"
    operations.append(Flatten("flat", last))
    features, last = 8192, "flat"
    for number, width in enumerate([1024, 1024, 10]):
        operations.append(Linear(f"fc{number}", last, weights(width, features)))
        last = f"fc{number}"
        if width > 10:
            operations.append(threshold(f"fc{number}.step", last, width))
            last = f"fc{number}.step"
        features = width
    operations.append(Affine("logits", last, np.full(10, 0.1), np.zeros(10)))
    return IntegerNet((3, 32, 32), tuple(operations))


def float_vgg() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for number, width in enumerate([128, 128, 256, 256, 512, 512]):
        layers.append(nn.Conv2d(channels, width, 3, padding=1, bias=False))
        layers += [nn.MaxPool2d(2)] * (number % 2) + [nn.BatchNorm2d(width), nn.Hardtanh()]
        channels = width
    layers += [nn.Flatten(), nn.Linear(8192, 1024, bias=False), nn.BatchNorm1d(1024), nn.Hardtanh()]
    layers += [nn.Linear(1024, 1024, bias=False), nn.BatchNorm1d(1024), nn.Hardtanh()]
    return nn.Sequential(*layers, nn.Linear(1024, 10, bias=False), nn.BatchNorm1d(10))


def test_the_papers_network_is_19_times_smaller_than_its_checkpoint(tmp_path):
    net = vgg()
    assert round(net.summary().macs / 1e6) == 617
    save(net, tmp_path / "vgg.lehr")
    checkpoint = io.BytesIO()
    torch.save(float_vgg().state_dict(), checkpoint)
    assert len(checkpoint.getvalue()) / os.path.getsize(tmp_path / "vgg.lehr") >= 19.5
    assert same(load(tmp_path / "vgg.lehr"), net)


def test_saving_replaces_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "net.lehr"
    save(networks.frozen("vgg"), path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save(networks.frozen("levels"), path)
    assert path.read_bytes() == before
    assert [x.name for x in tmp_path.iterdir()] == ["net.lehr"]


# What follows reads files that no lehr wrote.


def small() -> IntegerNet:
    """A network with every kind of field, in a file of two kilobytes."""
    return IntegerNet(
        (1, 4, 4),
        (
            Table("pixels", np.arange(256)[None] // 86 - 1),
            Conv("conv", "pixels", Weights.of(np.array([-1, 0, 1, 1, 1, 0, -1, 0]).reshape(2, 1, 2, 2))),
            Threshold("step", "conv", np.array([[0, 300], [-2, 2]]), np.array([1, -1]), (-1, 0, 2)),
            SumPool("pool", "step", (3, 3), (3, 3)),
            Linear("fc", "pool", Weights.of([[1, -3], [2, 5]])),
            Affine("affine", "fc", np.array([0.5, 1.0]), np.array([0.0, -1.0])),
            Clip("relu", "affine", 0.0, math.inf),
            Linear("last", "relu", np.array([[0.5, 0.25]], np.float32)),
            Add("sum", "last", "last"),
        ),
        ("cat",),
    )


def edited(change) -> bytes:
    """The small network's file with its description changed by `change`, which may also change the tensors."""
    data = pack.packed_bytes(small())
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    description = json.loads(header.pop("__metadata__")["lehr"])
    dtypes = {"U8": np.uint8, "I8": np.int8, "I16": np.int16, "I32": np.int32, "F32": np.float32}
    body = data[8 + length :]
    tensors = {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], dtypes[entry["dtype"]]).reshape(entry["shape"]).copy()
        for name, entry in header.items()
    }
    change(description, tensors)
    return to_bytes(tensors, {"lehr": json.dumps(description)})


def setting(*path, value):
    def change(description, tensors):
        place = description
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return edited(change)


def tensor(name, value):
    return edited(lambda _, tensors: tensors.update({name: value}))


WHOLE = pack.packed_bytes(small())
HOSTILE = {
    "empty": (b"", "not all of it"),
    "wrong magic": (b"PK\x03\x04" + b"\0" * 60, "no packed network"),
    "truncated": (WHOLE[:-1], "not all of it"),
    "header cut": (WHOLE[:100], "no packed network"),
    "length that lies": (struct.pack("<Q", 2**62) + WHOLE[8:], "no packed network"),
    "another safetensors file": (to_bytes({"a": np.zeros(3)}), "holds no network"),
    "newer version": (setting("version", value=4), "newer lehr: it has version 4, this lehr reads up to 3"),
    "no version": (setting("version", value="1"), "its version: an integer of 32 bits, found '1'"),
    "no JSON": (to_bytes({}, {"lehr": "{"}), "no JSON"),
    "deep JSON": (to_bytes({}, {"lehr": "[" * 100_000}), "no JSON"),
    "long number": (to_bytes({}, {"lehr": '{"version": 1' + "0" * 9999 + "}"}), "no JSON"),
    "not a number": (to_bytes({}, {"lehr": '{"version": NaN}'}), "no JSON: NaN"),
    "a list": (to_bytes({}, {"lehr": "[1]"}), r"is an object, found \[1\]"),
    "shape that overflows": (
        setting("operations", 1, "weight", "shape", value=[2**31 - 1] * 4),
        r"operation 1, weight: \d+ codes of 3 levels take \d+ bytes",
    ),
    "shape of zero": (setting("operations", 1, "weight", "shape", value=[0, 2**31 - 1]), "0 codes of 3 levels"),
    "negative shape": (setting("operations", 1, "weight", "shape", value=[-2, -4]), "sizes are not negative"),
    "huge size": (setting("operations", 1, "weight", "shape", value=[2**80]), "an integer of 32 bits"),
    "code outside base 3": (tensor("1.weight", np.array([243, 0], np.uint8)), "below 243, found 243"),
    "code beyond the levels": (setting("operations", 4, "weight", "levels", value=[1, 2]), "take 1 bytes|0..1"),
    "codes in the filling": (tensor("1.weight", np.array([0, 242], np.uint8)), "zeros fill the last byte"),
    "levels that fall": (setting("operations", 1, "weight", "levels", value=[1, 0, -1]), "increasing order"),
    "too few codes": (tensor("1.weight", np.zeros(1, np.uint8)), "take 2 bytes, found uint8 of shape"),
    "codes of another kind": (tensor("1.weight", np.zeros(2, np.int8)), "take 2 bytes, found int8"),
    "codes without levels": (setting("operations", 1, "weight", value=None), "packed codes without their levels"),
    "a tensor too many": (tensor("1.bias", np.zeros(1, np.int8)), "tensor of no operation: '1.bias'"),
    "a kind too many": (tensor("1.weight", np.zeros(2, np.float64)), "'1.weight' is of F64"),
    "no tensor": (edited(lambda _, tensors: tensors.pop("2.thresholds")), "operation 2, thresholds: missing"),
    "thresholds that fall": (tensor("2.thresholds", np.array([[3, 1], [0, 0]], np.int8)), "ascend"),
    "not a number in a table": (tensor("5.scale", np.array([np.nan, 0], np.float32)), "finite"),
    "levels beyond float32": (
        setting("operations", 4, "weight", "levels", value=[0.5, 1, 2, 1e39]),
        "float32, at most",
    ),
    "levels that are infinite": (
        setting("operations", 4, "weight", "levels", value=[0.5, 1, 2, 1e999]),
        "finite|no JSON",
    ),
    "clip beyond float32": (setting("operations", 6, "low", value=-1e300), "relu: low are float32, at most 3.4e38"),
    "a name of a megabyte": (
        setting("operations", 1, "name", value="x" * 2**20),
        "at most 1000 characters, got 1048576",
    ),
    "a class of a megabyte": (setting("classes", value=["y" * 2**20]), "at most 1000 characters, got 1048576"),
    "unknown operation": (setting("operations", 1, "operation", value="__import__"), "found '__import__'"),
    "unknown field": (setting("operations", 1, "bias", value=1), "operation 1: unknown 'bias'"),
    "missing field": (edited(lambda net, _: net["operations"][1].pop("groups")), "operation 1, groups: missing"),
    "text for a number": (setting("operations", 1, "groups", value="1"), "operation 1, groups: an integer"),
    "truth for a number": (setting("operations", 1, "groups", value=True), "operation 1, groups: an integer"),
    "one stride": (setting("operations", 1, "stride", value=[1]), "no network"),
    "huge kernel": (setting("operations", 3, "kernel", value=[2**31 - 1] * 2), "no network"),
    "huge kernel in a huge image": (
        edited(
            lambda net, _: (
                net.update(input_shape=[1, 2**31 - 1, 2**31 - 1]),
                net["operations"][3].update(kernel=[2**30, 2**30], stride=[2**30, 2**30]),
            )
        ),
        "pool: kernel is 1 to 1048575",
    ),
    "a value too large": (setting("operations", 1, "padding", value=[2**15] * 2), "conv: it makes 8590721042 numbers"),
    "huge padding": (setting("operations", 1, "padding", value=[2**31 - 1, 0]), "conv: padding is 0 to 1048575"),
    "huge stride": (setting("operations", 1, "stride", value=[2**30, 1]), "conv: stride is 1 to 1048575"),
    "unknown source": (setting("operations", 1, "source", value="nothing"), "reads 'nothing'"),
    "lone surrogate": (setting("operations", 1, "name", value="\ud800"), "no network|no packed network|no JSON"),
    "classes": (setting("classes", value=["a", "b"]), "2 class names for 1 outputs"),
    "operations": (setting("operations", value={}), "operations: a list, found {}"),
    "no operations": (setting("operations", value=[]), "tensor of no operation"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_with_its_reason(case, tmp_path):
    data, message = HOSTILE[case]
    path = tmp_path / "hostile.lehr"
    path.write_bytes(data)
    with pytest.raises(BadFile, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("before", ["", '{"version":1,"classes":[],"operations":[],"input_shape":'])
def test_no_depth_of_nesting_escapes(before, tmp_path):
    """Reading JSON and showing what it holds reach the limit of recursion at different depths."""
    path = tmp_path / "deep.lehr"
    for depth in range(800, 1000):
        path.write_bytes(to_bytes({}, {"lehr": before + '{"a":' * depth + "1" + "}" * (depth + bool(before))}))
        with pytest.raises(BadFile, match=r"many levels|no JSON|found \{|its version"):
            load(path)


def test_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.lehr")
    for path in (tmp_path / "pipe.lehr", Path("/dev/zero")):
        with pytest.raises(BadFile, match="is no file on a disk but a pipe, a device or the like"):
            load(path)


def test_the_file_that_the_hostile_ones_were_made_of_is_good(tmp_path):
    path = tmp_path / "good.lehr"
    path.write_bytes(edited(lambda *_: None))
    assert same(load(path), small())


def test_a_file_that_is_not_there_or_a_folder_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.lehr")
    with pytest.raises(IsADirectoryError):
        load(tmp_path)


def test_ten_thousand_mutated_files_do_no_harm(monkeypatch):
    """Each is a network or a BadFile; none takes more memory than a small multiple of its size."""
    random = np.random.default_rng(0)
    (length,) = struct.unpack("<Q", WHOLE[:8])
    interesting = [b"0", b"9" * 12, b"-", b"1e400", b"[", b"]", b"{", b'"', b"null", b"true", b"\xff", b"\0", b"NaN"]
    refused = 0
    digits = [i for i in range(8, 8 + length) if chr(WHOLE[i]).isdigit()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10_000):
        data = bytearray(WHOLE)
        for _ in range(random.integers(1, 4)):
            place = int(random.integers(0, len(data) if random.random() < 0.3 else 8 + length))
            match random.integers(0, 5):
                case 0:
                    data[place : place + 1] = bytes([random.integers(0, 256)])
                case 1:
                    data[place : place + 1] = interesting[random.integers(0, len(interesting))]
                case 2:
                    del data[place : place + int(random.integers(1, 20))]
                case 3:
                    data[place:place] = data[place : place + int(random.integers(1, 40))]
                case _:  # one number of the header is another
                    digit = min(digits[random.integers(0, len(digits))], len(data) - 1)
                    data[digit] = ord(str(random.integers(0, 10)))
        if random.random() < 0.5:  # most mutations would only break the header's length
            data[:8] = struct.pack("<Q", max(0, length + len(data) - len(WHOLE)))
        monkeypatch.setattr(Path, "read_bytes", lambda _, data=bytes(data): data)  # a disk would take most of the time
        try:
            load("mutated.lehr")
        except BadFile:
            refused += 1
    assert 5_000 < refused < 10_000, "the mutations reach beyond the header, and some are harmless"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50_000, f"{grown} KiB for files of {len(WHOLE)} bytes"


def with_card(text: str | None) -> bytes:
    """A small network's file with this text as its model card, or with none, as files were before there were cards."""
    described = json.loads(WHOLE[8 : 8 + struct.unpack("<Q", WHOLE[:8])[0]])["__metadata__"]["lehr"]
    tensors = load_tensors(WHOLE)
    return to_bytes(tensors, {"lehr": described} | ({} if text is None else {"card": text}))


def test_a_card_that_is_none_is_refused_before_it_is_saved():
    with pytest.raises(TypeError, match=r"card is a Card\(name, data=, recipe=, ...\), got {'name': 'mine'}"):
        dataclasses.replace(small(), card={"name": "mine"})


def test_a_card_is_kept_and_a_file_without_one_loads(tmp_path):
    card = Card("mine", data="digits", recipe="by hand", accuracy=0.5, licence="MIT", limits="for tests")
    dataclasses.replace(small(), card=card).save(tmp_path / "net.lehr")
    assert load(tmp_path / "net.lehr").card == card
    (tmp_path / "old.lehr").write_bytes(with_card(None))
    assert load(tmp_path / "old.lehr").card == Card()
    (tmp_path / "newer.lehr").write_bytes(with_card('{"name": "mine", "colour": "blue"}'))
    assert load(tmp_path / "newer.lehr").card == Card("mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", r"card: an object of names and texts, got \[1, 2\]"),
        ('{"accuracy": 87}', "card: accuracy is a share, 0 to 1, got 87"),
        ('{"accuracy": "good"}', "card: accuracy is a number, got 'good'"),
        ('{"licence": 3}', "card: licence is text, got 3"),
        (json.dumps({"limits": "x" * 5000}), "card: limits has at most 4000 characters, got 5000"),
        ("{", "Expecting property name"),
    ],
)
def test_a_wrong_card_is_refused_in_one_sentence(text, message, tmp_path):
    (tmp_path / "net.lehr").write_bytes(with_card(text))
    with pytest.raises(BadFile, match=message):
        load(tmp_path / "net.lehr")


def test_the_newest_version_is_that_of_an_operation():
    assert set(pack.FIRST_VERSION) <= set(unpack.OPERATIONS.values())
    assert max(pack.FIRST_VERSION.values()) == unpack.VERSION


def test_a_field_without_a_reader_is_no_fault_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "net.lehr"
    networks.frozen("vgg").save(path)
    monkeypatch.delitem(unpack._READERS, "Pair")
    with pytest.raises(NotImplementedError, match=r"Conv\.stride: add a reader for fields of type Pair to _READERS"):
        load(path)
