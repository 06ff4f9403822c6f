"""The cost of a network, layer by layer."""

from __future__ import annotations

import math

import torch
from torch import nn

from lehr.algorithms import ANA, LSQ, TTQ, ABCNet, XNORNet
from lehr.models import MLP, VGG
from lehr.summary import summarize

IMAGE = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)


def test_ternary_weights_and_activations_are_worth_log2_of_3_bits() -> None:
    model = VGG(width=1 / 8, input_bits=8)
    ANA().convert_(model)
    summary = summarize(model, IMAGE)
    assert [layer.weight_bits for layer in summary.layers] == [math.log2(3)] * 9
    assert [layer.activation_bits for layer in summary.layers] == [8.0] + [math.log2(3)] * 8  # through pool and flatten
    assert summary.bytes == sum(math.ceil(layer.weights * math.log2(3) / 8) for layer in summary.layers)
    first = summary.layers[0].macs
    assert summary.quantized_share == (summary.macs - first) / summary.macs


def test_full_precision_is_32_bits_throughout() -> None:
    summary = summarize(VGG(width=1 / 8), IMAGE)
    assert (
        {layer.weight_bits for layer in summary.layers} == {layer.activation_bits for layer in summary.layers} == {32.0}
    )
    assert summary.bytes == 4 * summary.weights
    assert summary.quantized_share == 0


def test_a_layer_that_is_skipped_counts_in_full() -> None:
    model = MLP((3, 32, 32), hidden=(16,), mean=(0.5,) * 3, std=(0.5,) * 3)
    ANA(first=False).convert_(model)
    assert [layer.weight_bits for layer in summarize(model, IMAGE).layers] == [32.0, math.log2(3)]


def test_groups_strides_biases_and_tokens_are_counted() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.depthwise = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=4)
            self.token = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.token(self.depthwise(x).flatten(2).transpose(1, 2))

    conv, linear = summarize(Net(), torch.zeros(1, 4, 6, 6)).layers
    assert (conv.weights, conv.macs, conv.output) == (8 * 9, 8 * 9 * 9, (8, 3, 3))
    assert (linear.weights, linear.macs, linear.output) == (40, 40 * 9, (9, 5))
    assert linear.bytes == 4 * (40 + 5)


def test_weights_that_are_used_again_count_once_and_work_each_time() -> None:
    layer = nn.Linear(4, 4)
    summary = summarize(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(1, 4))
    assert [(row.weights, row.biases, row.macs) for row in summary.layers] == [(16, 4, 16), (0, 0, 16)]


def test_a_layer_that_binarizes_its_input_counts_one_bit_for_it() -> None:
    model = VGG(width=1 / 8, input_bits=8)
    XNORNet().convert_(model)
    layers = summarize(model, IMAGE).layers
    assert [layer.activation_bits for layer in layers] == [8.0, *[1.0] * 7, 32.0]
    assert [layer.weight_bits for layer in layers] == [32.0, *[1.0] * 7, 32.0]


def test_a_sum_of_binary_layers_counts_as_these() -> None:
    model = MLP((3, 32, 32), hidden=(16, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
    ABCNet(bases=2, activations=3).convert_(model)
    _, *binary, _ = summarize(model, IMAGE).layers
    assert [layer.macs for layer in binary] == [128] * 6
    assert sum(layer.weights for layer in binary) == 2 * 128, "each basis is kept once"
    assert {(layer.weight_bits, layer.activation_bits) for layer in binary} == {(1.0, 1.0)}


def test_it_prints_a_table_with_totals_and_leaves_the_model_as_it_was() -> None:
    model = VGG(width=1 / 8, input_bits=8).train()
    ANA().convert_(model)
    text = str(summarize(model, IMAGE)).splitlines()
    assert text[0].split() == ["layer", "kind", "output", "weights", "MACs", "weight", "bits", "input", "bits", "bytes"]
    assert text[1].split() == ["features.0", "Conv2d", "16x32x32", "432", "442,368", "1.58", "8", "86"]
    assert text[10].split()[0] == "total"
    assert "of the MACs have both operands below 8 bits" in text[11]
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_macs_are_of_kinds_the_most_frequent_first() -> None:
    model = MLP((1, 4, 4), hidden=(32, 32), input_bits=8)
    LSQ(bits=3, end_bits=4).convert_(model)
    kinds = summarize(model, torch.zeros(1, 1, 4, 4, dtype=torch.uint8)).kinds
    assert list(kinds.items()) == [((3.0, 3.0), 32 * 32), ((4.0, 8.0), 16 * 32), ((4.0, 4.0), 32 * 10)]


def test_learned_levels_are_counted() -> None:
    model = MLP((1, 4, 4), hidden=(32,), input_bits=8)
    TTQ().convert_(model)
    layers = summarize(model, torch.zeros(1, 1, 4, 4, dtype=torch.uint8)).layers
    assert [(layer.weight_bits, layer.activation_bits) for layer in layers] == [
        (math.log2(3), 8.0),
        (math.log2(3), 32.0),
    ]


def test_a_transposed_convolution_works_at_the_positions_of_its_input() -> None:
    (layer,) = summarize(nn.ConvTranspose2d(4, 8, 4, stride=2, padding=1), torch.zeros(1, 4, 5, 5)).layers
    assert layer.output == (8, 10, 10)
    assert layer.macs == 4 * 8 * 16 * 25


def test_floats_are_counted_with_the_biases() -> None:
    assert summarize(nn.Linear(3, 2), torch.zeros(1, 3)).float_bytes == 4 * (6 + 2)
