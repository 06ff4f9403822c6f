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


def converted(family: str, *, has_example: bool = True) -> tuple[nn.Module, torch.Tensor]:
    build, size = vision_models.families()[family]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision's own, of the way it initialises
        model = nn.Sequential(lehr.models.Input((0.5,) * 3, (0.25,) * 3, bits=8), build())
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    lehr.quantize_(model, example=images if has_example else None)
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


@pytest.mark.parametrize("family", REFUSED)
@pytest.mark.parametrize("has_example", [True, False])
def test_a_family_that_cannot_freeze_converts_and_trains(family: str, has_example: bool) -> None:
    model, images = converted(family, has_example=has_example)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = nn.functional.cross_entropy(model.train()(images), torch.tensor([1, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]  # which is False for NaN
    assert model.eval()(images).isfinite().all()


def test_what_stays_float_in_a_function_that_nobody_sees_is_told() -> None:
    """swin's attention is a function that torch.fx does not look into; it reads the weights of two layers."""
    build, _ = vision_models.families()["swin"]
    told = lehr.quantize_(build())
    kept = {change.module: change.why for change in told.changes if change.now == "kept"}
    assert kept["features.1.0.attn.qkv"] == kept["features.1.0.attn.proj"] == "another function reads its weights"
    assert "calls in features.1.0.attn stay: torch.fx does not look into shifted_window_attention" in str(told)


if __name__ == "__main__":
    for each in vision_models.families():
        print(f"| {each} | {100 * checked(each).integer_share:.1f} % |")
