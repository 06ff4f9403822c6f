"""The ImageNet recipes have the paper's settings."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import lehr
from lehr.annealing import Hierarchical, LinearDecay
from lehr.training.recipe import Annealing, Model
from lehr.training.recipes import named

RECIPES = Path(lehr.__file__).parent / "recipes"
PAPER = ["imagenet-alexnet-fp", "imagenet-alexnet-ana", "imagenet-mobilenetv2-fp", "imagenet-mobilenetv2-ana"]


def recipe(name: str) -> dict[str, Any]:
    return yaml.safe_load((RECIPES / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_settings(name):
    settings = recipe(name)
    alexnet = "alexnet" in name
    assert settings["data"] == {"name": "imagenet", "size": 227 if alexnet else 224, "batch_size": 512, "augment": True}
    # Pixels in 8 bits, which the paper does not mention, make all of AlexNet integer.
    integer = {"input_bits": 8} if name == "imagenet-alexnet-ana" else {}
    assert named(name).model == Model("alexnet" if alexnet else "mobilenet-v2", **integer)
    assert settings["loss"] == {"name": "cross-entropy"}
    assert settings["optimizer"] == {"name": "adam", "lr": 0.001}
    assert settings["schedule"] == {"name": "multi-step", "milestones": [700]}
    assert settings["epochs"] == 1000


def test_alexnets_decay_is_delayed_by_one_layers_time_and_mobilenets_is_not():
    assert named("imagenet-alexnet-ana").annealing == Annealing(Hierarchical(50, delay=50), LinearDecay())
    assert named("imagenet-mobilenetv2-ana").annealing == Annealing(Hierarchical(50), LinearDecay())


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_of_shapes_walks_the_same_road(name):
    large, small = recipe(name), recipe(name.replace("imagenet-", "shapes-"))
    assert small["algorithm"] == large["algorithm"]
    assert small["model"]["class_path"] == large["model"]["class_path"]
    assert small["data"]["name"] == "shapes"
    assert small["epochs"] <= 10
