"""Blocks give what the whole gives, for any shape, layout and broadcast."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lehr.blockwise
from lehr.blockwise import blockwise
from restated import numbers


def combine(x, factor, other, *, out):
    return torch.mul(x, factor, out=out).add_(other)


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lehr.blockwise, "BLOCK", 7)
        yield


@numbers
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_blocks_give_what_the_whole_gives(shape, random, gaps):
    x = torch.randn([*shape, 2])[..., 0] if gaps else torch.randn(shape)
    order = random.sample(range(len(shape)), len(shape))
    x = x.permute(order)
    narrow = [size if random.random() < 0.5 else 1 for size in x.shape]
    factor = torch.randn(narrow[random.randrange(len(narrow)) :])
    expanded = torch.randn([]).expand(x.shape)
    for other in (0.5, torch.randn(()), expanded, torch.randn(x.shape)):
        result = blockwise(combine, x, factor, other)
        assert torch.equal(result, x * factor + other)
        assert x.numel() <= 7 or result.stride() == torch.empty_like(x).stride()


def test_no_block_is_larger_than_allowed():
    sizes = []

    def note(x, out):
        sizes.append(x.numel())
        return out.copy_(x)

    for shape in ((100,), (2, 50), (50, 2), (3, 3, 3, 3), (1, 1, 30)):
        sizes.clear()
        x = torch.randn(shape)
        assert torch.equal(blockwise(note, x), x)
        assert max(sizes) <= 7
        assert sum(sizes) == x.numel()


def test_blocks_are_as_long_as_they_may_be():
    sizes = []
    blockwise(lambda x, out: sizes.append(x.numel()) or out.copy_(x), torch.randn(70))
    assert sizes == [7] * 10
