import pytest
import torch
from torch.utils.data import DataLoader

from lehr.data import Dataset

PIXELS = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).reshape(4, 3, 2, 2)
LABELS = torch.tensor([0, 1, 1, 0])


def dataset(images=PIXELS, labels=LABELS, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)) -> Dataset:
    return Dataset(images, labels, ("cat", "dog"), mean, std)


def test_an_item_is_an_image_and_its_label():
    image, label = dataset()[2]
    assert torch.equal(image, PIXELS[2])
    assert label == 1


def test_torch_dataloader_takes_it():
    (images, labels), *rest = DataLoader(dataset(), batch_size=3)
    assert torch.equal(images, PIXELS[:3])
    assert torch.equal(labels, LABELS[:3])
    assert len(rest) == 1


def test_taken_samples_keep_their_labels_and_order():
    taken = dataset().take(torch.tensor([2, 0]))
    assert torch.equal(taken.images, PIXELS[[2, 0]])
    assert taken.labels.tolist() == [1, 0]
    assert taken.classes == ("cat", "dog")


def test_an_empty_data_set_is_one():
    assert len(dataset().take(torch.tensor([], dtype=torch.int64))) == 0


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"images": PIXELS.double()}, TypeError, r"uint8 .*, got torch.float64 \(4, 3, 2, 2\)"),
        ({"images": PIXELS[0]}, TypeError, r"got torch.uint8 \(3, 2, 2\)"),
        ({"labels": LABELS.int()}, TypeError, "int64 .*, got torch.int32"),
        ({"labels": LABELS[:3]}, ValueError, "got 4 images and 3 labels"),
        ({"labels": LABELS + 1}, ValueError, r"2 classes must be in 0..1, got 1..2"),
        ({"labels": LABELS - 1}, ValueError, r"2 classes must be in 0..1, got -1..0"),
        ({"mean": (0.5,)}, ValueError, r"3 channels need as many means and stds, got \(0.5,\)"),
        ({"std": (0.2, 0.0, 0.2)}, ValueError, r"positive, got \(0.2, 0.0, 0.2\)"),
    ],
)
def test_what_is_no_data_set_is_refused(change, kind, message):
    with pytest.raises(kind, match=message):
        dataset(**change)
