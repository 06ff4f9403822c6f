import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lehr.data import Dataset, hold_out


def dataset(labels: list[int], classes: int = 5) -> Dataset:
    images = torch.arange(len(labels)).to(torch.uint8).reshape(-1, 1, 1, 1)  # each image is its own number
    names = tuple(str(i) for i in range(classes))
    return Dataset(images, torch.tensor(labels, dtype=torch.int64), names, (0.5,), (0.5,))


def numbers(part: Dataset) -> list[int]:
    return part.images.flatten().tolist()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.data())
def test_every_sample_is_on_one_side_and_every_class_gives_its_share(labels, data):
    count = data.draw(st.integers(0, len(labels) - 1))
    whole = dataset(labels)
    kept, held = hold_out(whole, count, seed=data.draw(st.integers(0, 2**32)))
    assert len(held) == count
    assert sorted(numbers(kept) + numbers(held)) == numbers(whole)
    for part in (kept, held):
        assert numbers(part) == sorted(numbers(part))
        assert [labels[i] for i in numbers(part)] == part.labels.tolist()
    for label in range(5):
        share = labels.count(label) * count / len(labels)
        assert abs(held.labels.tolist().count(label) - share) < 1


def test_the_seed_decides_who():
    whole = dataset([0, 1] * 100)
    first, again, other = (numbers(hold_out(whole, 40, seed=seed)[1]) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("count", [-1, 3, 4])
def test_at_least_one_sample_must_stay(count):
    with pytest.raises(ValueError, match=f"validation must be in 0..2 for 3 samples, got {count}"):
        hold_out(dataset([0, 1, 0]), count, seed=0)
