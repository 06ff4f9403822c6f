"""Writes small files in the formats of the sensor data sets, with random signals in them."""

import gzip
import struct
from pathlib import Path

import numpy as np

from lehr.data.har import CHANNELS, FILE


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def integer(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def array(values: np.ndarray) -> bytes:
    """The program with which Python 2's pandas stores an array: its bytes are a text in Latin-1."""
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tc_codecs\nencode\n("
    empty += text("b") + text("latin1") + b"tRtR"
    code = {"f": "f8", "i": "i8"}[values.dtype.kind]
    dtype = (
        b"cnumpy\ndtype\n("
        + text(code)
        + b"K\x00K\x01tR(K\x03"
        + text("<")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    shape = b"(" + b"".join(integer(size) for size in values.shape) + b"t"
    content = b"c_codecs\nencode\n(" + text(values.tobytes().decode("latin1")) + text("latin1") + b"tR"
    return empty + b"(K\x01" + shape + dtype + b"I00\n" + content + b"tb"


def names(columns: tuple[str, ...]) -> bytes:
    """An index of texts: an array of objects."""
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tc_codecs\nencode\n("
    empty += text("b") + text("latin1") + b"tRtR"
    dtype = (
        b"cnumpy\ndtype\n("
        + text("O8")
        + b"K\x00K\x01tR(K\x03"
        + text("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb"
    )
    listed = b"](" + b"".join(map(text, columns)) + b"e"
    stored = empty + b"(K\x01(" + integer(len(columns)) + b"t" + dtype + b"I00\n" + listed + b"tb"
    return b"cpandas.core.indexes.base\n_new_Index\n(cpandas.core.indexes.base\nIndex\n}(" + (
        text("data") + stored + text("name") + b"NutR"
    )


def table(channels: np.ndarray, activities: np.ndarray, columns: tuple[str, ...]) -> bytes:
    """A pandas table as its pickle stores it."""
    numbers = np.stack([np.arange(len(activities)), activities]).astype("<i8")
    rows = b"cpandas.core.indexes.base\n_new_Index\n(cpandas.core.indexes.range\nRangeIndex\n}(" + (
        text("name")
        + b"N"
        + text("start")
        + b"K\x00"
        + text("stop")
        + integer(len(activities))
        + text("step")
        + b"K\x01utR"
    )
    blocks = b"](" + array(channels.astype("<f8")) + array(numbers) + b"e"
    manager = b"ccopy_reg\n_reconstructor\n(cpandas.core.internals.managers\nBlockManager\nc__builtin__\nobject\nNtR"
    manager += b"(](" + names(columns) + rows + b"e" + blocks + b"](e}tb"
    return b"ccopy_reg\n_reconstructor\n(cpandas.core.frame\nDataFrame\nc__builtin__\nobject\nNtR}" + (
        text("_data") + manager + b"sb"
    )


def write_har(
    folder: Path, people: int, activities: np.ndarray, *, columns: tuple[str, ...] = (*CHANNELS, "sequence", "label")
) -> np.ndarray:
    """Write one recording of each person with these activities; return the channels, (person, channel, time)."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = np.random.default_rng(0).normal(size=(people, 6, len(activities)))
    body = b"".join(
        integer(person + 1) + b"](" + table(measured[person], activities, columns) + b"e" for person in range(people)
    )
    (folder / FILE).write_bytes(gzip.compress(b"\x80\x02}(" + body + b"u."))
    return measured


def write_ucr(
    folder: Path, name: str, labels: tuple[int, ...], counts: tuple[tuple[int, ...], ...], length: int
) -> None:
    """Write NAME_TRAIN.tsv and NAME_TEST.tsv, a sine for each label of its own pitch."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, wanted in zip(("TRAIN", "TEST"), counts, strict=True):
        lines = []
        for pitch, (label, count) in enumerate(zip(labels, wanted, strict=True), 1):
            for _ in range(count):
                values = np.sin(np.arange(length) * pitch / 3 + random.uniform(0, 6)) + random.normal(0, 0.1, length)
                lines.append("\t".join([str(label), *(f"{value:.7g}" for value in values)]))
        (folder / f"{name}_{part}.tsv").write_text("\n".join(lines) + "\n")
