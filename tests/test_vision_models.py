"""Every family of torchvision's classifiers converts; it freezes, with the share that the docs tell, or is refused."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import lehr
import vision_models
from lehr.deploy.check import Verdict

PAGE = Path(__file__).parents[1] / "docs" / "own-model.md"
ROW = re.compile(r"^\| (\w+) \| (\d+\.\d) % \|", flags=re.MULTILINE)
REFUSED = {  # what cannot be integers, by the titles of docs/troubleshooting.md
    "convnext": "statistics of each image",
    "vit": "attention",
    "swin": "statistics of each image",
    "maxvit": "statistics of each image",
}


def documented() -> dict[str, float]:
    return {family: float(share) for family, share in ROW.findall(PAGE.read_text())}


def converted(family: str) -> tuple[nn.Module, torch.Tensor]:
    build, size = vision_models.families()[family]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision's own, of the way it initialises
        model = nn.Sequential(lehr.models.Input((0.5,) * 3, (0.25,) * 3, bits=8), build())
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    lehr.quantize_(model, example=images)
    return model, images


def checked(family: str) -> Verdict:
    return lehr.check(*converted(family))


def test_every_family_is_documented_or_refused() -> None:
    assert {*documented(), *REFUSED} == set(vision_models.families())


@pytest.mark.parametrize("family", documented())
def test_a_family_freezes_with_the_share_of_macs_that_the_docs_tell(family: str) -> None:
    verdict = checked(family)
    assert verdict.freezes, verdict
    assert round(100 * verdict.integer_share, 1) == documented()[family]


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_cannot_freeze_is_told_why_before_training(family: str) -> None:
    verdict = checked(family)
    assert not verdict.freezes
    assert any(f"[{REFUSED[family]}]" in line for line in verdict.refused)


if __name__ == "__main__":
    for each in vision_models.families():
        print(f"| {each} | {100 * checked(each).integer_share:.1f} % |")
