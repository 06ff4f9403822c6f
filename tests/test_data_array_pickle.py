import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pickles import array, dictionary, integers, python2_string
from lehr.data import DataError
from lehr.data.array_pickle import load_arrays

CONTENT = bytes(range(12))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_arrays_come_as_tensors_and_the_rest_as_it_is(tmp_path):
    program = dictionary(
        {
            b"data": array(CONTENT, (3, 4)),
            b"labels": integers([7, 8]),
            b"batch_label": python2_string(b"batch 1"),
        }
    )
    found = load_arrays(write(tmp_path / "batch", program))
    assert found[b"data"].dtype == torch.uint8
    assert found[b"data"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert found[b"labels"] == [7, 8]
    assert found[b"batch_label"] == b"batch 1"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # numpy answers to its old module names, with a warning
def test_numpy_itself_reads_the_test_pickles_the_same_way():
    value = pickle.loads(dictionary({b"data": array(CONTENT, (3, 4))}), encoding="bytes")
    assert np.array_equal(value[b"data"], np.arange(12, dtype=np.uint8).reshape(3, 4))


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, exec, os.mkdir, getattr, __import__])
def test_a_hostile_pickle_is_refused_before_it_does_anything(tmp_path, monkeypatch, protocol, function):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "batch", pickle.dumps({"data": Hostile(function, "mkdir evil")}, protocol))
    name = rf"(posix|nt|builtins|__builtin__)\.{function.__name__}"  # as pickles of old and new protocols say it
    with pytest.raises(DataError, match=rf"batch: expected .*, found: UnpicklingError: it asks for {name}"):
        load_arrays(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["batch"]


@pytest.mark.parametrize("name", ["numpy\nload", "numpy\nndarray.tofile", "numpy.core.multiarray\nfromfile"])
def test_no_other_name_of_numpy_is_known(tmp_path, name):
    path = write(tmp_path / "batch", b"\x80\x02c" + name.encode() + b"\n.")
    with pytest.raises(DataError, match="which no official file needs"):
        load_arrays(path)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (array(CONTENT, (3, 5)), r"an array of shape \(3, 5\) with 12 bytes"),
        (array(CONTENT, (3, 4), code=b"O"), "an array that is not of bytes"),
        (array(CONTENT, (3, 4), code=b"f4"), "an array that is not of bytes"),
    ],
)
def test_an_array_of_anything_but_bytes_is_refused(tmp_path, program, message):
    path = write(tmp_path / "batch", dictionary({b"data": program}))
    with pytest.raises(DataError, match=message):
        load_arrays(path)


def test_what_is_no_dictionary_is_refused(tmp_path):
    with pytest.raises(DataError, match="a list instead of a dictionary"):
        load_arrays(write(tmp_path / "batch", pickle.dumps([1])))


def test_damage_of_any_kind_is_a_data_error_or_plain_values(tmp_path):
    whole = dictionary({b"data": array(CONTENT, (3, 4)), b"labels": integers([7, 8])})
    chance = random.Random(0)
    told = 0
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        damaged = damaged[: chance.randrange(len(damaged) + 1)] if chance.random() < 0.3 else damaged
        try:
            assert isinstance(load_arrays(write(tmp_path / "batch", bytes(damaged))), dict)
        except DataError as error:
            told += str(error).startswith(str(tmp_path / "batch"))
    assert told > 300


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"batch: expected a file that can be read, found: .*No such file"):
        load_arrays(tmp_path / "batch")
