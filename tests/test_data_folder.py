"""A user's own folder of images, from files to a trained and exported network."""

import json
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from imagenet_files import encoded, smooth
from lehr.data import DataError, load_folder
from lehr.data.decode import MiddleSquare, decode
from lehr.data.shapes import draw
from lehr.deploy.images import read_image
from lehr.training.folder import RunFolder, load_checkpoint
from processes import Lehr, lehr


def write(root: Path, counts: dict[str, int]) -> Path:
    """Write `count` drawn images of each class, JPEG and PNG, of many sizes; cats are red and dogs blue."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            image = draw("cross", random.Random(f"{root.name}/{name}/{number}"))
            image = Image.blend(image, Image.new("RGB", image.size, "red" if name == "cat" else "blue"), 0.4)
            image.save(root / name / f"{number:03d}.{'png' if number % 3 == 0 else 'jpg'}")
    return root


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("own") / "images", {"dog": 40, "cat": 60})


def pixels(part) -> set[bytes]:
    return {image.numpy().tobytes() for image in part.images}


def test_class_folders_become_three_parts_that_share_no_image(own):
    splits = load_folder(own, size=16)
    assert [len(part) for part in splits] == [72, 8, 20]
    assert [torch.bincount(part.labels).tolist() for part in splits] == [[43, 29], [5, 3], [12, 8]]
    assert len(pixels(splits.train) | pixels(splits.validation) | pixels(splits.test)) == 100
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.shape == (3, 16, 16)
    assert load_folder(own).train.shape == (3, 32, 32)


def test_the_seed_decides_the_validation_images_and_never_the_test_images(own):
    first, again, other = (load_folder(own, size=8, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.train.images, again.train.images)
    assert torch.equal(first.test.images, other.test.images)
    assert not torch.equal(first.validation.images, other.validation.images)
    assert [len(part) for part in load_folder(own, size=8, validation=30)] == [50, 30, 20]


@pytest.mark.parametrize("name", ["val", "test"])
def test_what_the_user_split_stays_split(tmp_path, name):
    write(tmp_path / "train", {"cat": 20, "dog": 20})
    write(tmp_path / name, {"cat": 3})
    splits = load_folder(tmp_path, size=8)
    assert [len(part) for part in splits] == [36, 4, 3]
    assert splits.test.classes == ("cat", "dog")


def test_three_parts_of_the_users_are_taken_as_they_are(tmp_path):
    for part, count in (("train", 6), ("val", 3), ("test", 2)):
        write(tmp_path / part, {"cat": count, "dog": count})
    assert [len(part) for part in load_folder(tmp_path, size=8)] == [12, 6, 4]
    with pytest.raises(ValueError, match="so val holds the validation images: leave data.validation out, got 3"):
        load_folder(tmp_path, size=8, validation=3)


def test_mean_and_std_are_those_of_the_training_images(own):
    train, _, test = load_folder(own, size=16)
    floats = train.images.double() / 255
    assert train.mean == test.mean == pytest.approx(floats.mean((0, 2, 3)).tolist(), abs=1e-4)
    assert train.std == test.std == pytest.approx(floats.std((0, 2, 3)).tolist(), abs=1e-4)


def test_images_of_one_colour_have_a_std_to_divide_by(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("RGB", (20, 30)).save(tmp_path / name / f"{number}.png")
    assert load_folder(tmp_path, size=8).train.std == pytest.approx((1 / 255,) * 3, abs=1e-4)


@pytest.mark.parametrize("size", [(60, 40), (41, 77), (32, 32), (500, 375), (2000, 1500)])
def test_pixels_are_those_predict_sees_with_resize(tmp_path, size):
    for kind, most in (("PNG", 0), ("JPEG", 16)):  # a large JPEG is decoded at a part of its size
        path = tmp_path / f"image.{kind}"
        path.write_bytes(encoded(smooth(*size), kind))
        image, _ = decode(path.read_bytes(), MiddleSquare(32), random.Random(0))
        expected = read_image(path, (3, 32, 32), resize=True).transpose(1, 2, 0).astype(int)
        difference = np.abs(np.asarray(image).astype(int) - expected)
        assert difference.max() <= most
        assert difference.mean() < 0.5


def test_reader_processes_read_what_one_process_reads(tmp_path):
    write(tmp_path / "own", {"cat": 200, "dog": 180})
    alone, many = (load_folder(tmp_path / "own", size=8, workers=workers) for workers in (0, 2))
    for one, other in zip(alone, many, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def test_images_that_cannot_be_read_are_named_counted_and_skipped(own, tmp_path, caplog):
    root = shutil.copytree(own, tmp_path / "own")
    for number in range(0, 60, 5):
        for path in (root / "cat").glob(f"{number:03d}.*"):
            path.write_bytes(b"no image")
    splits = load_folder(root, size=8)
    assert sum(len(part) for part in splits) == 88
    skipped = [name for part in splits for name in part.skipped]
    assert len(skipped) == 12
    assert {message.split(" cannot be read")[0] for message in caplog.messages} == set(skipped)
    assert all(reason == "cannot identify image file" for part in splits for reason in part.skipped.values())


def without_folders(root: Path) -> None:
    (root / "notes.txt").touch()


def flat(root: Path) -> None:
    Image.new("RGB", (8, 8)).save(root / "a.png")


def one_class(root: Path) -> None:
    write(root, {"cat": 9})


def too_few(root: Path) -> None:
    write(root, {"cat": 9, "dog": 4})


def empty_class(root: Path) -> None:
    write(root, {"cat": 9, "dog": 0})


def unreadable(root: Path) -> None:
    write(root, {"cat": 9, "dog": 9})
    for path in root.rglob("*.*"):
        path.write_bytes(b"no image")


def unreadable_class(root: Path) -> None:
    write(root, {"cat": 9, "dog": 9})
    for path in (root / "dog").iterdir():
        path.write_bytes(b"no image")


def other_class(root: Path) -> None:
    write(root / "train", {"cat": 9, "dog": 9})
    write(root / "val", {"cat": 9, "bird": 9})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (without_folders, "expected a folder for each class, found none"),
        (flat, "expected a folder for each class, found images directly in it; move the images of each class"),
        (one_class, "expected at least two class folders, found one: cat"),
        (too_few, "expected at least 5 images of each class, found 4 in dog"),
        (empty_class, "expected images in every class folder, found none in dog"),
        (unreadable, r"none of 14 images can be read; .*: cannot identify image file"),
        (
            unreadable_class,
            r"none of the training images of class dog can be read; .*dog/.*: cannot identify image file",
        ),
        (other_class, "expected the 2 classes of the training images, found bird too"),
        (shutil.rmtree, "expected a readable folder, found: No such file"),
    ],
)
def test_a_folder_that_cannot_be_trained_on_is_refused_with_what_is_missing(tmp_path, make, message):
    root = tmp_path / "own"
    root.mkdir()
    make(root)
    with pytest.raises(DataError, match=message) as error:
        load_folder(root, size=8)
    assert str(root) in str(error.value)


def test_what_does_not_fit_in_memory_is_refused_before_it_is_read(own):
    with pytest.raises(DataError, match=r"would take 30.0 GB of memory.*a smaller data.size, or data.name imagenet"):
        load_folder(own, size=10_000)


WORDS = ("digits-ana", "--data.name", "folder", "--data.size", 12, "--data.batch_size", 16, "--epochs", 6)
SHORT = ("--annealing.schedule.duration", 1, "--model.hidden", "[64,64]", "--data.augment", "true", "--data.padding", 1)


def ran(tmp_path: Path, *words: object) -> str:
    code, output = lehr(*words, output=tmp_path / "log")
    assert code == 0, output
    return output


def test_a_folder_is_trained_on_killed_resumed_evaluated_exported_and_predicted(own, tmp_path, monkeypatch):
    root = shutil.copytree(own, tmp_path / "own")
    (root / "dog" / "broken.jpg").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    told = ran(tmp_path, "train", *WORDS, *SHORT, "--data.root", "own", "--out", whole)
    assert "broken.jpg cannot be read and is skipped: cannot identify image file" in told
    begun = Lehr("train", *WORDS, *SHORT, "--data.root", "own", "--out", cut, output=tmp_path / "cut.log")
    begun.wait_for(RunFolder(cut).checkpoint(2).exists)
    begun.signal(signal.SIGKILL)
    begun.wait()
    monkeypatch.chdir(tmp_path.parent)  # the run knows where its images are
    ran(tmp_path, "train", "--resume", cut)
    ours, theirs = (load_checkpoint(RunFolder(path).final)["state_dict"] for path in (cut, whole))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    results = json.loads((cut / "results.json").read_text())
    assert sum(results.get(f"{part}/skipped", 0) for part in ("train", "val", "test")) == 1
    assert results["test/accuracy"] > 0.6
    assert f"{100 * results['test/accuracy']:.2f}" in ran(tmp_path, "evaluate", cut)
    assert "0 classes differ" in ran(tmp_path, "export", cut, "--to", "packed")
    predicted = ran(tmp_path, "predict", cut / "model.lehr", *sorted((root / "cat").iterdir())[:4], "--resize")
    assert predicted.count("cat") >= 4
    assert "dog" in predicted


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "data.name folder needs data.root: the folder of your images"),
        (("--data.root", "nowhere"), 1, "nowhere: expected a readable folder, found: No such file"),
        (("--data.root", "own", "--data.batch_size", 99), 2, "72 training images do not fill one batch of 99"),
        (("--data.root", "own", "--data.validation", 90), 2, "validation must be in 0..79 for 80 samples"),
    ],
)
def test_words_that_cannot_be_followed_are_answered_in_a_sentence(own, tmp_path, monkeypatch, words, code, message):
    (tmp_path / "own").symlink_to(own)
    monkeypatch.chdir(tmp_path)
    found, output = lehr("train", *WORDS, *words, "--out", tmp_path / "run", output=tmp_path / "log")
    assert (found, output.count("\n")) == (code, 1), output
    assert output.startswith("lehr train: ")
    assert message in output
    assert not (tmp_path / "run").exists()
