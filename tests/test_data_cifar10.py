import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pickles import array, dictionary, integers
from lehr.data import DataError, Dataset, folder, load
from lehr.data.cifar10 import ARCHIVE, BINARY, PYTHON, TEST, TRAINING, Cifar10, read_python

SMALL = Cifar10(per_file=20)
PIXELS = torch.randint(256, (6, 20, 3072), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
LABELS = torch.arange(20).to(torch.uint8) % 10


def write_binary(root: Path) -> Path:
    home = root / BINARY
    home.mkdir(parents=True)
    for name, pixels in zip((*TRAINING, TEST), PIXELS, strict=True):
        (home / f"{name}.bin").write_bytes(torch.cat([LABELS[:, None], pixels], dim=1).numpy().tobytes())
    return home


def batch(pixels: torch.Tensor, labels: list[int]) -> bytes:
    content = array(pixels.numpy().tobytes(), (pixels.shape[0], pixels.shape[1]))
    return dictionary({b"labels": integers(labels), b"data": content})


def pickled_data(content: bytes) -> bytes:
    return dictionary({b"labels": integers(LABELS.tolist()), b"data": content})


def write_python(root: Path) -> Path:
    home = root / PYTHON
    home.mkdir(parents=True)
    for name, pixels in zip((*TRAINING, TEST), PIXELS, strict=True):
        (home / name).write_bytes(batch(pixels, LABELS.tolist()))
    return home


def same(a: Dataset, b: Dataset) -> bool:
    return torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)


def test_binary_records_come_as_images_channel_by_channel(tmp_path):
    write_binary(tmp_path)
    train, test = SMALL.read(tmp_path)
    assert (len(train), len(test), train.shape) == (100, 20, (3, 32, 32))
    assert torch.equal(train.images, PIXELS[:5].reshape(100, 3, 32, 32))
    assert torch.equal(test.images, PIXELS[5].reshape(20, 3, 32, 32))
    assert train.labels.tolist() == LABELS.tolist() * 5
    assert test.labels.tolist() == LABELS.tolist()


def test_both_layouts_are_the_same_data_set(tmp_path):
    write_binary(tmp_path / "a")
    write_python(tmp_path / "b")
    for binary, python in zip(SMALL.read(tmp_path / "a"), SMALL.read(tmp_path / "b"), strict=True):
        assert same(binary, python)


def test_the_binary_layout_is_read_where_both_are_there(tmp_path):
    write_binary(tmp_path)
    (write_python(tmp_path) / TEST).write_bytes(b"damaged")
    SMALL.read(tmp_path)


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_the_layouts_own_folder_will_do(tmp_path, monkeypatch, write):
    home = write(tmp_path)
    assert same(SMALL.read(home)[0], SMALL.read(tmp_path)[0])
    monkeypatch.chdir(home)
    assert len(SMALL.read(Path("."))[0]) == 100


def test_the_papers_constants():
    assert SMALL.validation == 5000
    assert Cifar10().per_file == 10_000


def test_a_missing_folder_says_what_is_looked_for(tmp_path):
    with pytest.raises(
        DataError, match=f"expected the folder {BINARY} or {PYTHON}, found neither; `lehr data cifar10`"
    ):
        SMALL.read(tmp_path)
    assert SMALL.missing(tmp_path) == (ARCHIVE,)


def change_label(content: bytes) -> bytes:
    return b"\x0b" + content[1:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:-1], r"expected 61460 bytes \(20 records of 3073\), found 61459"),
        (lambda b: b + b"xy", r"expected 61460 bytes \(20 records of 3073\), found 61462"),
        (change_label, r"expected labels from 0 to 9, found 11 at sample 0 \(1 of 20 labels are wrong\)"),
    ],
)
def test_a_damaged_binary_file_raises_with_expected_and_found(tmp_path, damage, message):
    path = write_binary(tmp_path) / "data_batch_3.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"data_batch_3\.bin: {message}"):
        SMALL.read(tmp_path)
    assert SMALL.missing(tmp_path) == (ARCHIVE,)


def test_one_label_too_many_of_a_class_raises(tmp_path):
    path = write_binary(tmp_path) / "data_batch_3.bin"
    path.write_bytes(b"\x09" + path.read_bytes()[1:])
    with pytest.raises(
        DataError,
        match=r"data_batch_\*\.bin: expected 10 images of each class, found 9 of class 0 \(airplane\)",
    ):
        SMALL.read(tmp_path)


def test_a_missing_binary_file_is_named(tmp_path):
    (write_binary(tmp_path) / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"test_batch\.bin: .*No such file"):
        SMALL.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (batch(PIXELS[0][:19], LABELS.tolist()), r"58368 bytes for b'u1' of shape \(19, 3072\)"),
        (batch(PIXELS[0], LABELS.tolist()[:19]), "19 labels"),
        (batch(PIXELS[0], [-1, *LABELS.tolist()[1:]]), "expected labels from 0 to 9, found -1 at sample 0"),
        (dictionary({b"labels": integers(LABELS.tolist())}), "KeyError: b'data'"),
        (dictionary({b"data": array(PIXELS[0].numpy().tobytes(), (20, 3072))}), "KeyError: b'labels'"),
        (pickled_data(array(PIXELS[0].numpy().tobytes(), (20, 3072), code=b"O")), "61440 bytes for b'O'"),
        (pickled_data(array(bytes(12), (20, 3072))), r"12 bytes for b'u1' of shape \(20, 3072\)"),
        (pickle.dumps([1]), "found: TypeError"),
        (b"cos\nsystem\n(U\x04trueltR.", "it names os.system"),
    ],
)
def test_a_damaged_python_batch_raises_with_expected_and_found(tmp_path, content, message):
    (write_python(tmp_path) / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_2: .*{message}"):
        SMALL.read(tmp_path)


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, exec, os.mkdir, getattr, __import__])
def test_a_hostile_pickle_is_refused_before_it_does_anything(tmp_path, monkeypatch, protocol, function):
    path = write_python(tmp_path) / "data_batch_2"
    path.write_bytes(pickle.dumps({"data": Hostile(function, "mkdir evil")}, protocol))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    name = rf"(posix|nt|builtins|__builtin__)\.{function.__name__}"  # as pickles of old and new protocols say it
    with pytest.raises(DataError, match=rf"data_batch_2: .* UnpicklingError: it names {name}"):
        SMALL.read(tmp_path)
    assert [*Path().iterdir()] == []


@pytest.mark.parametrize("name", ["numpy\nload", "numpy\nndarray.tofile", "numpy.core.multiarray\nfromfile"])
def test_no_other_name_of_numpy_is_known(tmp_path, name):
    (write_python(tmp_path) / "data_batch_2").write_bytes(b"\x80\x02c" + name.encode() + b"\n.")
    with pytest.raises(DataError, match="which no official file does"):
        SMALL.read(tmp_path)


def test_any_damage_to_a_pickle_raises_with_the_file(tmp_path):
    whole, path = batch(PIXELS[0], LABELS.tolist()), tmp_path / "batch"
    chance = random.Random(0)
    told = 0
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(300) - 150  # the program about the pixels
            damaged[place] = chance.randrange(256)
        damaged = damaged[: chance.randrange(len(damaged) + 1)] if chance.random() < 0.3 else damaged
        path.write_bytes(bytes(damaged))
        try:
            pixels, labels = read_python(path, 20)
            assert (tuple(pixels.shape), len(labels)) == ((20, 3072), 20)
        except DataError as error:
            told += str(error).startswith(str(path))
    assert told > 300


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # numpy answers to its old module names, with a warning
def test_numpy_itself_reads_the_test_pickles_the_same_way():
    value = pickle.loads(batch(PIXELS[0], LABELS.tolist()), encoding="bytes")
    assert np.array_equal(value[b"data"], PIXELS[0].numpy())


@pytest.mark.skipif(
    not any((folder() / layout).is_dir() for layout in (BINARY, PYTHON)),
    reason=f"no CIFAR-10 below {folder()} (set LEHR_DATA)",
)
def test_the_real_cifar10():
    train, validation, test = load("cifar10")
    assert [len(part) for part in (train, validation, test)] == [45_000, 5_000, 10_000]
    assert torch.bincount(validation.labels).tolist() == [500] * 10
    assert [test.classes[label] for label in test.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    some = train.images[::10] / 255
    assert some.mean((0, 2, 3)).tolist() == pytest.approx(train.mean, abs=5e-3)
    assert some.std((0, 2, 3)).tolist() == pytest.approx(train.std, abs=5e-3)
