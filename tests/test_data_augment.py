import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from lehr.data import CropFlip


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 256, shape, generator=generator(seed)).to(torch.uint8)  # no black but the padding


def candidates(image: Tensor, padding: int, flip: bool) -> dict[tuple[int, int, bool], Tensor]:
    """Every result the augmentation may have, by plain slicing."""
    _, height, width = image.shape
    padded = functional.pad(image, (padding,) * 4)
    shifts = range(2 * padding + 1)
    crops = {(dy, dx, False): padded[:, dy : dy + height, dx : dx + width] for dy in shifts for dx in shifts}
    mirrored = {(dy, dx, True): crop.flip(2) for (dy, dx, _), crop in crops.items()} if flip else {}
    return crops | mirrored


@given(
    st.integers(0, 5),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 4),
    st.booleans(),
)
def test_every_image_is_a_crop_of_its_padded_self_mirrored_or_not(batch, channels, height, width, padding, flip):
    images = pixels(batch, channels, height, width)
    moved = CropFlip(padding, flip)(images, generator(1))
    assert moved.shape == images.shape
    assert moved.dtype == torch.uint8
    for image, result in zip(images, moved, strict=True):
        assert any(torch.equal(result, crop) for crop in candidates(image, padding, flip).values())


@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 8), st.booleans())
def test_reflecting_edges_show_what_numpy_pads_with(height, width, padding, flip):
    if padding >= min(height, width):
        with pytest.raises(ValueError, match=f"reflection must be below {min(height, width)} .*, got {padding}"):
            CropFlip(padding, flip, reflect=True)(pixels(1, 1, height, width), generator())
        return
    images = pixels(4, 2, height, width)
    moved = CropFlip(padding, flip, reflect=True)(images, generator(1))
    for image, result in zip(images, moved, strict=True):
        padded = torch.from_numpy(np.pad(image.numpy(), ((0, 0), (padding, padding), (padding, padding)), "reflect"))
        shifts = range(2 * padding + 1)
        crops = [padded[:, dy : dy + height, dx : dx + width] for dy in shifts for dx in shifts]
        assert any(torch.equal(result, seen) for crop in crops for seen in (crop, crop.flip(2))[: 1 + flip])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12))
def test_cutout_blackens_one_square_about_a_pixel_of_each_image(height, width, side):
    images = pixels(20, 3, height, width)
    cut = CropFlip(padding=0, flip=False, cutout=side)(images, generator(1))
    for image, result in zip(images, cut, strict=True):
        black = (result == 0).all(0)
        assert torch.equal(result[:, ~black], image[:, ~black])
        rows, columns = black.any(1), black.any(0)
        assert torch.equal(black, rows[:, None] & columns[None, :])
        for line in (rows, columns):
            first, last = line.nonzero()[[0, -1], 0].tolist()
            assert line[first : last + 1].all()
            reached_edge = first == 0 or last == len(line) - 1
            assert last - first + 1 == side or (last - first + 1 < side and reached_edge)


def test_cutouts_are_everywhere_and_apart():
    cut = CropFlip(padding=0, flip=False, cutout=1)(pixels(1, 1, 4, 4).expand(16_000, -1, -1, -1), generator())
    counts = (cut == 0).sum((0, 1))
    assert counts.sum() == 16_000
    assert ((counts - 1000).abs() < 5 * 1000**0.5).all()


def test_every_crop_comes_equally_often():
    image = pixels(3, 5, 5)
    moved = CropFlip(padding=1)(image.expand(18_000, -1, -1, -1), generator())
    crops = candidates(image, 1, True)
    counts = [(moved == crop).flatten(1).all(1).sum().item() for crop in crops.values()]
    assert sum(counts) == 18_000
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in counts)


def test_images_move_independently():
    moved = CropFlip()(pixels(1, 3, 32, 32).expand(64, -1, -1, -1), generator())
    assert len(moved.flatten(1).unique(dim=0)) > 40  # of 162 possible results


def test_the_generator_decides():
    images, augment = pixels(8, 3, 16, 16), CropFlip()
    assert torch.equal(augment(images, generator(3)), augment(images, generator(3)))
    assert not torch.equal(augment(images, generator(3)), augment(images, generator(4)))


def test_torchs_own_random_state_is_neither_used_nor_moved():
    before = torch.get_rng_state()
    CropFlip()(pixels(8, 3, 16, 16), generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_images_given_stay_as_they_are():
    images = pixels(8, 3, 16, 16)
    copy = images.clone()
    CropFlip()(images, generator())
    assert torch.equal(images, copy)


def test_without_padding_and_flip_nothing_changes():
    images = pixels(8, 3, 16, 16)
    assert torch.equal(CropFlip(padding=0, flip=False)(images, generator()), images)


def test_other_memory_layouts_give_the_same_images():
    images = pixels(8, 3, 16, 16)
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(CropFlip()(last, generator()), CropFlip()(images, generator()))


def test_nothing_depends_on_what_the_images_show():
    with FakeTensorMode():  # has no values: reading one raises
        images = torch.empty(8, 3, 16, 16, dtype=torch.uint8)
        assert CropFlip()(images, generator()).shape == images.shape


def test_negative_padding_is_refused():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        CropFlip(padding=-1)
