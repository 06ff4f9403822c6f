import sys

import pytest
import torch

from lehr.data import DataError, load


def test_digits_are_split_1253_180_364():
    train, validation, test = load("digits")
    assert [len(part) for part in (train, validation, test)] == [1253, 180, 364]
    assert train.shape == (1, 8, 8)


def test_every_class_has_its_share_of_every_part():
    for part in load("digits", seed=3):
        shares = torch.bincount(part.labels) / len(part)
        assert shares.sub(0.1).abs().max() < 0.01


def test_the_test_images_do_not_depend_on_the_seed_and_the_others_do():
    first, second = load("digits", seed=0), load("digits", seed=1)
    assert torch.equal(first.test.images, second.test.images)
    assert not torch.equal(first.validation.images, second.validation.images)


def test_no_image_is_in_two_parts():
    from sklearn.datasets import load_digits

    images = torch.cat([part.images for part in load("digits")]).flatten(1)
    everything = torch.from_numpy(load_digits(return_X_y=True)[0])
    levels = (images.double() * 16 / 255).round()
    assert sorted(levels.tolist()) == sorted(everything.tolist())


def test_the_constants_are_those_of_the_training_images():
    train, validation, _ = load("digits")
    pixels = torch.cat([train.images, validation.images]) / 255
    assert pixels.mean().item() == pytest.approx(train.mean[0], abs=1e-4)
    assert pixels.std(correction=0).item() == pytest.approx(train.std[0], abs=1e-4)


def test_without_scikit_learn_a_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"digits comes with scikit-learn: pip install 'lehr\[train\]'"):
        load("digits")
