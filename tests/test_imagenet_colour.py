import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lehr.data import Colour
from lehr.data.augment import EIGENVALUES, EIGENVECTORS, GREY

NONE = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "lighting": 0.0}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, shape, generator=generator()).to(torch.uint8)


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
    return factor * image


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    mean = np.mean(np.tensordot(GREY, image, 1))
    return factor * image + (1 - factor) * mean


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
    return factor * image + (1 - factor) * np.tensordot(GREY, image, 1)


def drawn(colour: Colour, batch: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the random factors and multiples of a generator, in the order of the module."""
    source = generator(seed)
    reach = np.array([colour.brightness, colour.contrast, colour.saturation])
    factors = 1 + reach * (2 * torch.rand((batch, 3), generator=source).numpy() - 1)
    return factors, colour.lighting * torch.randn((batch, 3), generator=source).numpy()


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_it_is_brightness_contrast_and_saturation_in_any_order_and_then_lighting(order):
    images, colour = pixels(4, 3, 9, 7, low=100, high=140), Colour(0.3, 0.3, 0.3, 0.1)  # nothing is clipped
    factors, multiples = drawn(colour, 4, 5)
    found = colour(images, generator(5))
    for image, result, three, multiple in zip(images.double().numpy(), found, factors, multiples, strict=True):
        for step in order:
            image = (brightness, contrast, saturation)[step](image, three[step])
        shift = 255 * np.array(EIGENVECTORS) @ (np.array(EIGENVALUES) * multiple)
        expected = image + shift[:, None, None]
        assert np.abs(result.numpy() - expected).max() < 0.51


def test_without_changes_nothing_changes():
    images = pixels(4, 3, 9, 7)
    assert torch.equal(Colour(**NONE)(images, generator()), images)


def test_bright_and_dark_ends_are_clipped():
    white = Colour(**NONE | {"brightness": 1.0})(torch.full((64, 3, 2, 2), 255, dtype=torch.uint8), generator())
    assert int(white.max()) == 255
    assert len(white.flatten(1).unique(dim=0)) > 10


def test_saturation_leaves_grey_images_and_contrast_leaves_even_ones():
    grey = pixels(4, 1, 9, 7).expand(-1, 3, -1, -1)
    assert torch.equal(Colour(**NONE | {"saturation": 0.9})(grey, generator()), grey)
    even = pixels(4, 1, 1, 1).expand(-1, 3, 9, 7)
    assert torch.equal(Colour(**NONE | {"contrast": 0.9})(even, generator()), even)


def test_lighting_shifts_along_the_principal_components():
    images = torch.full((20_000, 3, 1, 1), 128, dtype=torch.uint8)
    shifts = (Colour(**NONE | {"lighting": 0.1})(images, generator()).double() - 128).flatten(1)
    found = torch.cov(shifts.T)
    vectors, values = torch.tensor(EIGENVECTORS).double(), torch.tensor(EIGENVALUES).double()
    expected = vectors @ torch.diag((25.5 * values) ** 2) @ vectors.T
    assert torch.allclose(found, expected, rtol=0.05, atol=0.3)  # rounding to whole levels adds 1/12


def test_factors_span_their_range():
    images = torch.full((4000, 3, 1, 1), 100, dtype=torch.uint8)
    levels = Colour(**NONE | {"brightness": 0.4})(images, generator())[:, 0, 0, 0].float()
    assert (int(levels.min()), int(levels.max())) == (60, 140)
    assert abs(float(levels.mean()) - 100) < 2


def test_images_change_independently_and_the_generator_decides():
    images = pixels(1, 3, 9, 7).expand(16, -1, -1, -1)
    once = Colour()(images, generator(3))
    assert len(once.flatten(1).unique(dim=0)) == 16
    assert torch.equal(once, Colour()(images, generator(3)))
    assert not torch.equal(once, Colour()(images, generator(4)))


def test_other_memory_layouts_give_the_same_images():
    images = pixels(8, 3, 16, 12)
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(Colour()(last, generator()), Colour()(images, generator()))


def test_torchs_own_random_state_is_neither_used_nor_moved():
    before = torch.get_rng_state()
    Colour()(pixels(8, 3, 16, 16), generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_depends_on_what_the_images_show():
    with FakeTensorMode():  # has no values: reading one raises
        images = torch.empty(8, 3, 16, 16, dtype=torch.uint8)
        assert Colour()(images, generator()).shape == images.shape


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Colour(brightness=1.5), r"distance of a factor from 1, must be in \[0, 1\], got 1.5"),
        (lambda: Colour(lighting=-1), "lighting, a standard deviation, must be at least 0, got -1"),
        (lambda: Colour()(pixels(2, 1, 8, 8), generator()), r"\(batch, 3, height, width\), got \(2, 1, 8, 8\)"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
