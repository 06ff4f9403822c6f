"""The networks of the paper, and one for signals, in full precision; an algorithm quantizes them in place."""

from lehr.models.alexnet import AlexNet
from lehr.models.input import Input
from lehr.models.mlp import MLP
from lehr.models.mobilenet_v2 import MobileNetV2
from lehr.models.protocol import AnnealedInGroups, QuantizedInPart, quantized_part
from lehr.models.resnet import ResNet
from lehr.models.signal_input import SignalInput
from lehr.models.signal_net import SignalNet
from lehr.models.vgg import VGG

__all__ = [
    "MLP",
    "VGG",
    "AlexNet",
    "AnnealedInGroups",
    "Input",
    "MobileNetV2",
    "QuantizedInPart",
    "ResNet",
    "SignalInput",
    "SignalNet",
    "quantized_part",
]
