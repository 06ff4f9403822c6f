"""The blocks of a sequential model, and errors for other models."""

from __future__ import annotations

import pytest
from torch import nn

import lehr
from lehr.algorithms.sequence import inner_blocks


def test_the_blocks_of_a_vgg_go_over_its_two_sequences() -> None:
    blocks = inner_blocks(lehr.models.VGG(width=1 / 32), "it")
    assert [block.layer.path for block in blocks[:2]] == ["features.3", "features.7"]
    assert [place.path for place in blocks[0].between] == ["features.1", "features.2"]
    assert [place.path for place in blocks[0].after] == ["features.4", "features.5", "features.6"]
    border = next(block for block in blocks if block.layer.path == "classifier.1")
    assert border.activation.path == "features.20"
    assert border.between[-1].path == "classifier.0"
    assert [block.layer.path for block in blocks[-2:]] == ["classifier.1", "classifier.4"]


def test_what_is_put_somewhere_stands_there_in_the_mode_of_before() -> None:
    model = lehr.models.MLP((1, 2, 2), hidden=(4, 4)).eval()
    place = inner_blocks(model, "it")[0].activation
    place.put(nn.Tanh())
    assert isinstance(model.layers[3], nn.Tanh)
    assert not model.layers[3].training


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)


class Own(nn.Linear):
    pass


LAYER = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.Sequential(Residual())),
            r"it needs a sequence of layers, but the order of the parts of 1\.0, a Residual, is unknown: make it",
        ),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), "it needs at least 3 layers, got 2"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)),
            "it binarizes the input of 1, but there is no activation module before it",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Own(4, 4), nn.ReLU(), nn.Linear(4, 4)),
            "it converts torch's layers, but 2 is a Own",
        ),
        (nn.Sequential(LAYER, nn.ReLU(), LAYER, nn.ReLU(), LAYER), "but 2 is used twice"),
    ],
)
def test_a_model_that_is_not_a_sequence_of_blocks_raises(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inner_blocks(model, "it")
