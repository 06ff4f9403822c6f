"""torchvision's classifiers, one small network of each family, without torchvision's own compiled operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn


def imported() -> Any:
    """torchvision.models; skips the test where there is none. Its operators are declared, which suffices for these."""
    try:
        torch.ops.torchvision.nms
    except (AttributeError, RuntimeError):
        _declared()
    return pytest.importorskip("torchvision.models", reason="needs torchvision: pip install --no-deps torchvision")


def _declared() -> None:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)


_KEPT: list[Any] = []  # a library that is forgotten takes its operators along


def _with_head(model: Any, features: int) -> nn.Module:
    """The network with one linear layer behind the mean over the image, for its own has tens of millions of weights."""
    model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(features, 10)
    return model


def families() -> dict[str, tuple[Callable[[], nn.Module], int]]:
    """For each family, a small network of ten classes, and the pixels a side of its images."""
    v = imported()
    resnet, regnet, mobile, efficient = v.resnet, v.regnet, v.mobilenetv3, v.efficientnet
    few = {"num_classes": 10}
    bneck = partial(mobile.InvertedResidualConfig, dilation=1, width_mult=1.0)
    mb = partial(efficient.MBConvConfig, num_layers=1)
    return {
        "alexnet": (lambda: _with_head(v.AlexNet(num_classes=1), 256), 64),
        "vgg": (lambda: _with_head(v.VGG(v.vgg.make_layers([8, "M", 16, "M"], batch_norm=True)), 16), 16),
        "resnet": (lambda: resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], width_per_group=8, **few), 32),
        "regnet": (
            lambda: regnet.RegNet(regnet.BlockParams.from_init_params(2, 8, 8.0, 2.5, 8), stem_width=8, **few),
            32,
        ),
        "regnet_y": (
            lambda: regnet.RegNet(
                regnet.BlockParams.from_init_params(2, 8, 8.0, 2.5, 8, se_ratio=0.25), stem_width=8, **few
            ),
            32,
        ),
        "mobilenet_v2": (lambda: v.MobileNetV2(width_mult=0.25, **few), 32),
        "mobilenet_v3": (
            lambda: mobile.MobileNetV3(
                [
                    bneck(8, 3, 16, 8, use_se=True, activation="RE", stride=2),
                    bneck(8, 5, 24, 8, use_se=True, activation="HS", stride=1),
                ],
                last_channel=32,
                **few,
            ),
            32,
        ),
        "mnasnet": (lambda: v.MNASNet(0.25, **few), 32),
        "squeezenet": (lambda: v.SqueezeNet("1_1", **few), 48),
        "shufflenet": (lambda: v.ShuffleNetV2([1, 2, 1], [8, 16, 32, 64, 64], **few), 32),
        "densenet": (lambda: v.DenseNet(8, (2, 2), num_init_features=16, **few), 32),
        "googlenet": (lambda: v.GoogLeNet(aux_logits=False, init_weights=False, **few), 32),
        "inception": (lambda: v.Inception3(aux_logits=False, init_weights=False, **few), 96),
        "efficientnet": (
            lambda: efficient.EfficientNet(
                [mb(1, 3, 1, 8, 8), mb(4, 3, 2, 8, 16)], dropout=0.2, last_channel=32, **few
            ),
            32,
        ),
        "convnext": (
            lambda: v.ConvNeXt([v.convnext.CNBlockConfig(8, 16, 1), v.convnext.CNBlockConfig(16, None, 1)], **few),
            32,
        ),
        "vit": (lambda: v.VisionTransformer(32, 16, 1, 2, 16, 32, **few), 32),
        "swin": (lambda: v.SwinTransformer([4, 4], 8, [1, 1], [2, 2], [4, 4], **few), 32),
        "maxvit": (lambda: v.MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=10), 32),
    }
