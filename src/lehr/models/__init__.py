"""The networks of the paper, of MLPerf Tiny and of airbench, one for signals and a U-Net.

They are in full precision; an algorithm quantizes them in place.
"""

from lehr.models.airbench import AirBench
from lehr.models.alexnet import AlexNet
from lehr.models.autoencoder import Autoencoder
from lehr.models.ds_cnn import DSCNN
from lehr.models.input import Input
from lehr.models.mlp import MLP
from lehr.models.mobilenet_v1 import MobileNetV1
from lehr.models.mobilenet_v2 import MobileNetV2
from lehr.models.protocol import AnnealedInGroups, QuantizedInPart, quantized_part
from lehr.models.resnet import ResNet
from lehr.models.signal_input import SignalInput
from lehr.models.signal_net import SignalNet
from lehr.models.unet import UNet
from lehr.models.vgg import VGG

__all__ = [
    "DSCNN",
    "MLP",
    "VGG",
    "AirBench",
    "AlexNet",
    "AnnealedInGroups",
    "Autoencoder",
    "Input",
    "MobileNetV1",
    "MobileNetV2",
    "QuantizedInPart",
    "ResNet",
    "SignalInput",
    "SignalNet",
    "UNet",
    "quantized_part",
]
