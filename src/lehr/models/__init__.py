"""Networks of the paper, each written once, in full precision: an algorithm quantizes them in place."""

from lehr.models.input import Input
from lehr.models.mlp import MLP
from lehr.models.vgg import VGG

__all__ = ["MLP", "VGG", "Input"]
