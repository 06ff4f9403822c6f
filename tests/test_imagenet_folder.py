from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

from imagenet_files import photographs, write_tree
from lehr.data import DataError, ImageFiles, load_images, load_streamed, read_folder
from lehr.data.image_files import Names
from lehr.data.imagenet import KIT, find_mapping, is_flat, read_flat
from lehr.data.shapes import FIGURES, write_shapes

CLASSES = ("class_0", "class_1", "class_2")
FLAT = ("ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_val_00000003.JPEG")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_tree(write_tree(tmp_path), per_class=2, split="val")


@pytest.fixture
def flat(root: Path) -> Path:
    """A root whose validation images lie flat, of classes 2, 0 and 1."""
    folder = root / "val"
    for name, label in zip(FLAT, (2, 0, 1), strict=True):
        (folder / f"class_{label}" / "000.jpg").rename(folder / name)
    for label in range(3):
        (folder / f"class_{label}" / "001.jpg").unlink()
        (folder / f"class_{label}").rmdir()
    return root


def load(root: Path, **settings) -> tuple[ImageFiles, ImageFiles, ImageFiles]:
    train, validation, test = load_images(root, size=32, **settings)
    assert isinstance(train, ImageFiles)
    assert isinstance(validation, ImageFiles)
    assert isinstance(test, ImageFiles)
    return train, validation, test


def test_classes_are_the_folders_in_the_order_of_their_names(root):
    files = read_folder(root / "train", size=32)
    assert files.classes == CLASSES
    assert files.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert files.path(9) == root / "train" / "class_1" / "001.jpg"
    assert files.shape == (3, 32, 32)


def test_other_files_and_hidden_ones_are_no_images(root):
    (root / "train" / "class_0" / "notes.txt").touch()
    (root / "train" / "class_0" / ".hidden.jpg").touch()
    (root / "train" / "README").touch()
    assert len(read_folder(root / "train", size=32)) == 24


def test_validation_may_lack_a_class_but_not_have_one_more(root):
    (root / "train" / "class_1" / "000.jpg").rename(root / "train" / "class_1" / "x.jpg")
    for path in (root / "val" / "class_1").iterdir():
        path.unlink()
    (root / "val" / "class_1").rmdir()
    assert read_folder(root / "val", CLASSES, size=32).labels.tolist() == [0, 0, 2, 2]
    (root / "val" / "stranger").mkdir()
    with pytest.raises(DataError, match="expected the 3 classes of the training images, found stranger too"):
        read_folder(root / "val", CLASSES, size=32)


def test_folders_without_classes_or_images_are_refused(tmp_path):
    with pytest.raises(DataError, match="expected a folder for each class, found none"):
        read_folder(tmp_path, size=32)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"expected images .*, found none"):
        read_folder(tmp_path, size=32)
    with pytest.raises(DataError, match="expected a readable folder, found: No such file"):
        read_folder(tmp_path / "b", size=32)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("val.txt", "\n".join(f"{file} class_{label}" for file, label in zip(FLAT, (2, 0, 1), strict=True))),
        ("val_map.txt", "\n".join(f"{file} {label}" for file, label in zip(FLAT, (2, 0, 1), strict=True))),
        (
            "LOC_val_solution.csv",
            "ImageId,PredictionString\n"
            + "\n".join(f"{file[:-5]},class_{label} 1 2 3 4" for file, label in zip(FLAT, (2, 0, 1), strict=True)),
        ),
        ("imagenet_2012_validation_synset_labels.txt", "class_2\nclass_0\nclass_1\n"),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_a_flat_folder_has_its_classes_from_a_mapping_file(flat, name, text, beside):
    (flat / ("" if beside else "val") / name).write_text(text)
    assert is_flat(flat / "val", CLASSES)
    files = read_flat(flat / "val", CLASSES, find_mapping(flat / "val"), size=32)
    assert files.labels.tolist() == [2, 0, 1]
    assert files.path(0) == flat / "val" / FLAT[0]


def test_an_image_gone_astray_beside_class_folders_does_not_make_the_folder_flat(root):
    (root / "val" / "class_0" / "000.jpg").rename(root / "val" / "astray.jpg")
    assert load(root, validation=3)[2].labels.tolist() == [0, 1, 1, 2, 2]


def test_the_official_kit_numbers_classes_in_another_order(flat):
    synsets = [(1, "class_1"), (2, "class_2"), (3, "class_0"), (4, "a group of classes")]
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O")]
    kit = flat / KIT
    kit.parent.mkdir(parents=True)
    kit.write_text("2\n3\n1\n")
    scipy.io.savemat(kit.parent / "meta.mat", {"synsets": np.array(synsets, dtype=kind)})
    assert load(flat, validation=3)[2].labels.tolist() == [2, 0, 1]


def test_the_official_list_means_nothing_without_the_kits_numbers(flat):
    (flat / Path(KIT).name).write_text("2\n1\n1\n")
    with pytest.raises(DataError, match=r"meta\.mat: expected it beside the list of the development kit"):
        load(flat, validation=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{FLAT[0]} class_0\n{FLAT[1]} class_0", f"expected the class of {FLAT[2]}, found no line for it"),
        (f"{FLAT[0]} stranger\n{FLAT[1]} 1\n{FLAT[2]} 2", f"one of the 3 classes for {FLAT[0]}, found stranger"),
        (f"{FLAT[0]} 3\n{FLAT[1]} 1\n{FLAT[2]} 2", f"one of the 3 classes for {FLAT[0]}, found 3"),
        ("class_0\nclass_1", "expected a class for each of 3 images, found 2"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(flat, text, message):
    (flat / "val.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        load_images(flat, size=32, validation=3)


def test_a_flat_folder_without_a_mapping_says_what_is_needed(flat):
    with pytest.raises(DataError, match=r"val.txt with a line `file class` for each"):
        load_images(flat, size=32, validation=3)


def test_validation_images_are_held_out_of_training_and_the_official_ones_are_the_test(root):
    train, validation, test = load(root, seed=1, validation=6)
    assert (len(train), len(validation), len(test)) == (18, 6, 6)
    held = {validation.path(at) for at in range(6)}
    assert not held & {train.path(at) for at in range(18)}
    assert torch.bincount(validation.labels).tolist() == [2, 2, 2]
    assert {path.parents[1].name for path in held} == {"train"}
    assert test.path(0).parents[1].name == "val"


def test_ten_of_each_class_are_held_out_by_default_and_none_for_0(tmp_path):
    root = write_tree(write_tree(tmp_path, per_class=12), per_class=2, split="val")
    assert [len(part) for part in load(root)] == [6, 30, 6]
    assert [len(part) for part in load(root, validation=0)] == [36, 0, 6]


def test_an_empty_class_is_half_an_archive(root):
    (root / "train" / "class_3").mkdir()
    with pytest.raises(DataError, match="expected images in every class folder, found none in class_3"):
        load(root, validation=6)


def test_the_folder_may_be_called_imagenet_below_the_data_folder(root):
    home = root / "data" / "imagenet"
    home.mkdir(parents=True)
    (root / "train").rename(home / "train")
    (root / "val").rename(home / "val")
    assert len(load_images(root / "data", size=32, validation=6).train) == 18


def test_a_folder_that_is_not_imagenet_raises_with_the_address_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"expected the folders train and val.*image-net\.org.*--data\.root"):
        load_images(tmp_path)


def test_images_of_which_none_can_be_read_are_noticed_before_training(root):
    for path in (root / "val").glob("*/*.jpg"):
        path.write_text("../../train/a.jpg")  # as links come out of an archive that has lost them
    with pytest.raises(DataError, match=r"none of 6 images tried can be read; .*000.jpg: cannot identify image file"):
        load_images(root, size=32, validation=6)


def test_names_with_any_bytes_round_trip():
    names = ["", "a/b.jpg", "日本.jpg", "\udcff.jpg"]
    packed = Names(names)
    assert [packed[at] for at in range(4)] == names
    with pytest.raises(IndexError, match="there are 4 names, got index 4"):
        packed[4]


def test_shapes_are_the_same_everywhere_and_read_as_imagenet(tmp_path):
    once, again = (write_shapes(tmp_path / name, train=3, val=2) for name in "ab")
    files = sorted(path.relative_to(once) for path in once.rglob("*.JPEG"))
    assert len(files) == len(FIGURES) * 5
    assert all((once / file).read_bytes() == (again / file).read_bytes() for file in files)
    splits = load_images(once, size=32, validation=4)
    assert splits.train.classes == tuple(sorted(FIGURES))
    assert not [path for path in once.rglob("*") if path.suffix == ".part"]


def test_shapes_are_drawn_into_the_data_folder_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("LEHR_DATA", str(tmp_path))
    splits = load_streamed("shapes", size=32)
    assert [len(split) for split in splits] == [120, 40, 40]
    assert (tmp_path / "shapes" / "train").is_dir()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.JPEG")}
    assert [len(split) for split in load_streamed("shapes", tmp_path, validation=8)] == [152, 8, 40]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.JPEG")} == before


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no streamed data set is called 'cifar10'; choose imagenet, shapes"):
        load_streamed("cifar10")


def test_the_sample_of_imagenet_reads():
    if not photographs():
        pytest.skip("no sample of ImageNet: set LEHR_IMAGENET_SAMPLE")
    files = read_folder(photographs()[0].parents[1], size=224)
    assert len(files) == len(files.classes) == 50
    assert files.examples(4).shape == (4, 3, 224, 224)
