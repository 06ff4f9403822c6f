"""The ImageNet recipes say what the paper says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import lehr

RECIPES = Path(lehr.__file__).parent / "recipes"
PAPER = ["imagenet-alexnet-fp", "imagenet-alexnet-ana", "imagenet-mobilenetv2-fp", "imagenet-mobilenetv2-ana"]


def recipe(name: str) -> dict[str, Any]:
    return yaml.safe_load((RECIPES / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_settings(name):
    settings = recipe(name)
    alexnet = "alexnet" in name
    assert settings["data"] == {"name": "imagenet", "size": 227 if alexnet else 224, "batch_size": 512, "augment": True}
    # Pixels in 8 bits, of which the paper says nothing, make all of AlexNet integer.
    integer = {"input_bits": 8} if name == "imagenet-alexnet-ana" else {}
    assert settings["model"] == {"name": "alexnet" if alexnet else "mobilenet-v2", "width": 1.0, **integer}
    assert settings["loss"] == {"name": "cross-entropy"}
    assert settings["optimizer"] == {"name": "adam", "lr": 0.001}
    assert settings["schedule"] == {"name": "multi-step", "milestones": [700]}
    assert settings["epochs"] == 1000


def test_alexnets_decay_is_delayed_by_one_layers_time_and_mobilenets_is_not():
    linear = {"class_path": "lehr.annealing.Linear"}
    usual = {"windows": "hierarchical", "duration": 50, "law": linear}
    assert recipe("imagenet-alexnet-ana")["annealing"] == usual | {"delay": 50}
    assert recipe("imagenet-mobilenetv2-ana")["annealing"] == usual


@pytest.mark.parametrize("name", PAPER)
def test_a_small_recipe_walks_the_same_road(name):
    large, small = recipe(name), recipe(name.replace("imagenet-", "imagenet-small-"))
    assert small["algorithm"] == large["algorithm"]
    assert small["model"]["name"] == large["model"]["name"]
    assert small["data"]["name"] == "generated-images"
    assert small["epochs"] <= 10
