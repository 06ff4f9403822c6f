import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lehr.data
from data_server import Answer, serve
from lehr.data import DataError, DownloadError, catalogue
from lehr.data.download import Download
from test_data_cifar10 import SMALL as SMALL_CIFAR
from test_data_cifar10 import write_binary
from test_data_mnist import SMALL, contents

PACKED = {f"{name}.gz": gzip.compress(content) for name, content in contents().items()}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch):
    """Serve a small data set in MNIST's files, and put it in the catalogue as `small`."""
    with serve({f"/{name}": Answer(content) for name, content in PACKED.items()}) as site:
        one, two, three, four = (hashlib.md5(content).hexdigest() for content in PACKED.values())
        source = replace(SMALL, mirrors=(site.url,), md5=(one, two, three, four), validation=10)
        monkeypatch.setitem(catalogue.SOURCES, "small", source)
        yield site


def test_what_was_fetched_loads(site, tmp_path):
    lehr.data.fetch("small", tmp_path)
    train, validation, test = lehr.data.load("small", tmp_path)
    assert [len(part) for part in (train, validation, test)] == [20, 10, 10]


def test_what_is_there_is_not_fetched_again(site, tmp_path):
    lehr.data.fetch("small", tmp_path)
    lehr.data.fetch("small", str(tmp_path))
    assert len(site.asked) == 4


def test_only_what_is_missing_or_damaged_is_fetched(site, tmp_path):
    (tmp_path / "small").mkdir()
    for name, content in contents().items():  # plain files, whose gzipped twins have the published checksums
        (tmp_path / "small" / name).write_bytes(content)
    missing, damaged = [*contents()][:2]
    (tmp_path / "small" / missing).unlink()
    (tmp_path / "small" / damaged).write_bytes(b"damaged")
    lehr.data.fetch("small", tmp_path)
    assert [path for path, _ in site.asked] == [f"/{missing}.gz", f"/{damaged}.gz"]


def test_without_network_it_says_which_files_to_put_where(site, tmp_path):
    gone = [*PACKED][1:]
    for name in gone:
        site.answers[f"/{name}"] = [Answer(status=404)]
    with pytest.raises(DownloadError) as error:
        lehr.data.fetch("small", tmp_path)
    message = str(error.value)
    assert f"cannot fetch {gone[0]} ({site.url}/{gone[0]}: HTTP 404" in message
    assert "copy these files here and run `lehr data small` again" in message
    for name in gone:
        assert f"{site.url}/{name}\n    as {tmp_path / 'small' / name}" in message
    assert f"{site.url}/{next(iter(PACKED))}" not in message  # that one came
    for name in gone:
        (tmp_path / "small" / name).write_bytes(PACKED[name])
    lehr.data.fetch("small", tmp_path)


def test_a_folder_that_cannot_be_written_is_named(site, tmp_path):
    (tmp_path / "small").write_text("a file where a folder should be")
    with pytest.raises(DownloadError, match=rf"cannot write below {tmp_path}: .*small"):
        lehr.data.fetch("small", tmp_path)


def test_an_archive_is_fetched_and_unpacked(monkeypatch, tmp_path):
    home = write_binary(tmp_path / "there")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        tar.add(home, home.name)
    archive = stream.getvalue()
    with serve({"/cifar.tar.gz": Answer(archive)}) as site:
        md5 = hashlib.md5(archive).hexdigest()
        members = SMALL_CIFAR.archive.members
        wanted = Download("c.tar.gz", (f"{site.url}/cifar.tar.gz",), f"md5:{md5}", members)
        monkeypatch.setitem(catalogue.SOURCES, "cifar10", replace(SMALL_CIFAR, archive=wanted, validation=10))
        lehr.data.fetch("cifar10", tmp_path / "here")
    splits = lehr.data.load("cifar10", tmp_path / "here")
    assert [len(part) for part in splits] == [90, 10, 20]


def test_fetch_calls_the_progress_function(site, tmp_path):
    seen = {}
    lehr.data.fetch("small", tmp_path, progress=lambda name, here, total: seen.update({name: (here, total)}))
    assert seen == {name: (len(content), len(content)) for name, content in PACKED.items()}


def test_digits_need_no_fetching(tmp_path):
    lehr.data.fetch("digits", tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_an_unknown_name_is_answered_with_the_known_ones():
    expected = "no data set is called 'cifar'; choose digits, mnist, fashion-mnist, cifar10"
    for function in (lehr.data.load, lehr.data.fetch):
        with pytest.raises(ValueError, match=expected):
            function("cifar")


@pytest.mark.parametrize("name", [name for name in lehr.data.names() if name != "digits"])
def test_a_data_set_that_is_not_there_names_the_command_that_fetches_it(name, tmp_path):
    with pytest.raises(DataError, match=f"`lehr data {name}` fetches it"):
        lehr.data.load(name, tmp_path)


def test_the_data_folder_is_lehr_data_or_the_users_cache(monkeypatch):
    monkeypatch.setenv("LEHR_DATA", "/somewhere/else")
    assert lehr.data.folder() == Path("/somewhere/else")
    for unset in (monkeypatch.delenv, lambda name: monkeypatch.setenv(name, "")):
        unset("LEHR_DATA")
        assert lehr.data.folder() == Path("~/.cache/lehr/data").expanduser()


def test_validation_can_be_chosen_and_left_out():
    assert len(lehr.data.load("digits", validation=100).validation) == 100
    train, validation, _ = lehr.data.load("digits", validation=0)
    assert (len(train), len(validation)) == (1433, 0)


def test_the_seed_changes_train_and_validation_but_not_test(site, tmp_path):
    lehr.data.fetch("small", tmp_path)
    first, again, other = (lehr.data.load("small", tmp_path, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.train.images, again.train.images)
    assert not torch.equal(first.train.images, other.train.images)
    assert torch.equal(first.test.images, other.test.images)


def test_lehr_data_imports_without_heavy_packages():
    program = "import sys, lehr; assert 'lehr.data' not in sys.modules; import lehr.data; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    modules = loaded.stdout.split()
    rooms = {name for name in modules if name.startswith("lehr.") and not name.startswith("lehr.data")}
    bare = "import sys, lehr; print(*sys.modules)"
    by_lehr = subprocess.run([sys.executable, "-c", bare], check=True, capture_output=True, text=True)
    assert rooms - {"lehr.printable"} <= set(by_lehr.stdout.split())
    assert not {"sklearn", "lightning", "rich"} & set(modules)
