import gzip
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lehr.data import DataError, folder, load
from lehr.data.mnist import FASHION_MNIST, FILES, MNIST, read_idx

SMALL = replace(FASHION_MNIST, name="small", train=30, test=10, size=4)


def idx(content: torch.Tensor, *, magic: int | None = None) -> bytes:
    magic = 0x0800 + content.ndim if magic is None else magic
    header = struct.pack(f">{1 + content.ndim}I", magic, *content.shape)
    return header + content.to(torch.uint8).numpy().tobytes()


def contents() -> dict[str, bytes]:
    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randint(256, (n, 4, 4), generator=generator) for n in (30, 10))
    labels = torch.arange(30) % 10, torch.arange(10)
    return dict(zip(FILES, (idx(train), idx(labels[0]), idx(test), idx(labels[1])), strict=True))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a data set's folder, below a data folder, with its four plain files."""
    (tmp_path / "small").mkdir()
    for name, content in contents().items():
        (tmp_path / "small" / name).write_bytes(content)
    return tmp_path / "small"


def test_images_and_labels_come_as_they_are_in_the_files(home):
    train, test = SMALL.read(home.parent)
    assert train.images.flatten().numpy().tobytes() == contents()[FILES[0]][16:]
    assert test.images.flatten().numpy().tobytes() == contents()[FILES[2]][16:]
    assert train.shape == (1, 4, 4)
    assert train.labels.tolist() == [*range(10)] * 3
    assert test.labels.tolist() == [*range(10)]


def test_gzipped_files_and_plain_ones_mix(home):
    expected = SMALL.read(home.parent)
    for file in (FILES[0], FILES[3]):
        (home / f"{file}.gz").write_bytes(gzip.compress((home / file).read_bytes()))
        (home / file).unlink()
    found = SMALL.read(home.parent)
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)


def test_the_gzipped_file_is_read_where_both_are_there(home):
    (home / f"{FILES[0]}.gz").write_bytes(gzip.compress(contents()[FILES[0]]))
    (home / FILES[0]).write_bytes(b"damaged")
    SMALL.read(home.parent)


def test_the_data_sets_own_folder_will_do(home):
    assert len(SMALL.read(home)[0]) == 30


def test_a_missing_file_is_named_with_what_fetches_it(home):
    (home / FILES[1]).unlink()
    message = rf"small: expected {FILES[1]}.gz or {FILES[1]}, found neither; `lehr data small` fetches it"
    with pytest.raises(DataError, match=message):
        SMALL.read(home.parent)


IMAGES, LABELS = FILES[0], FILES[1]
DAMAGE = [
    (IMAGES, lambda b: b[:-1], "expected 480 bytes after the header, found 479"),
    (IMAGES, lambda b: b + b"x", "expected 480 bytes after the header, found at least 481"),
    (IMAGES, lambda b: b[:10], "expected a header of 16 bytes, found 10"),
    (IMAGES, lambda b: b"", "expected an IDX file of magic 0x00000803, found 0x$"),
    (IMAGES, lambda b: contents()[LABELS], "expected an IDX file of magic 0x00000803, found 0x00000801"),
    (IMAGES, lambda b: gzip.compress(b), "expected an IDX file of magic 0x00000803, found 0x1f8b08"),
    (IMAGES, lambda b: idx(torch.zeros(30, 4, 4), magic=0x0D03), "expected .* 0x00000803, found 0x00000d03"),
    (IMAGES, lambda b: contents()[FILES[2]], r"expected the dimensions \(30, 4, 4\), found \(10, 4, 4\)"),
    (LABELS, lambda b: contents()[FILES[3]], r"expected the dimensions \(30,\), found \(10,\)"),
    (LABELS, lambda b: b[:-1] + b"\x0a", r"expected labels from 0 to 9, found 10 at sample 29 \(1 of 30"),
    (
        LABELS,
        lambda b: b[:-1] + b"\x00",
        r"expected 3 images of each class, found 4 of class 0 \(T-shirt/top\)",
    ),
]


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGE)
def test_damage_raises_with_file_expected_and_found(home, file, damage, message):
    (home / file).write_bytes(damage((home / file).read_bytes()))
    with pytest.raises(DataError, match=f"{file}: {message}"):
        SMALL.read(home.parent)
    assert [wanted.path for wanted in SMALL.missing(home.parent)] == [f"small/{file}.gz"]


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        lambda b: b[: len(b) // 2],
        lambda b: b[:-4],
        lambda b: gzip.decompress(b),
        lambda b: b + b"x",
    ],
)
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    path = tmp_path / "images.gz"
    path.write_bytes(damage(gzip.compress(contents()[IMAGES])))
    with pytest.raises(DataError, match=r"images\.gz: expected a gzip file, found a damaged one: "):
        read_idx(path, (30, 4, 4))


def test_a_gzip_file_that_never_ends_is_not_unpacked_whole(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(contents()[IMAGES] + bytes(1 << 24)))
    with pytest.raises(DataError, match="found at least 481"):
        read_idx(path, (30, 4, 4))


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match=r"images: expected a readable file, found: .*directory"):
        read_idx(tmp_path / "images", (30, 4, 4))


def test_nothing_is_missing_from_a_whole_folder(home):
    assert SMALL.missing(home.parent) == ()


def test_mnist_is_fetched_from_two_mirrors(tmp_path):
    missing = MNIST.missing(tmp_path)
    assert [wanted.path for wanted in missing] == [f"mnist/{file}.gz" for file in FILES]
    assert all(len(wanted.urls) == 2 for wanted in missing)


@pytest.mark.parametrize(
    ("name", "first_four_of_test"),
    [("mnist", ["7", "2", "1", "0"]), ("fashion-mnist", ["Ankle boot", "Pullover", "Trouser", "Trouser"])],
)
def test_the_real_files(name, first_four_of_test):
    if not (folder() / name).is_dir():
        pytest.skip(f"no {name} below {folder()} (set LEHR_DATA)")
    train, validation, test = load(name)
    assert [len(part) for part in (train, validation, test)] == [55_000, 5_000, 10_000]
    assert train.shape == (1, 28, 28)
    assert [test.classes[label] for label in test.labels[:4]] == first_four_of_test
    pixels = torch.cat([train.images, validation.images]) / 255
    assert pixels.mean().item() == pytest.approx(train.mean[0], abs=1e-4)
    assert pixels.std().item() == pytest.approx(train.std[0], abs=1e-4)
    for label, count in enumerate(torch.bincount(train.labels)):
        assert int(count) / 11 == pytest.approx(int((validation.labels == label).sum()), abs=1)


def test_mnist_is_known_from_fashion_mnist_by_how_frequent_its_classes_are(home):
    strict = replace(SMALL, counts=((4, 2, *[3] * 8), (1,) * 10))
    with pytest.raises(DataError, match=r"expected 4 images, found 3 of class 0 \(T-shirt/top\).*another data set's"):
        strict.read(home.parent)
    assert MNIST.counts is not None
    assert [sum(counts) for counts in MNIST.counts] == [MNIST.train, MNIST.test]
