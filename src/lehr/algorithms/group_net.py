"""Group-Net (Zhuang et al., "Structured Binary Neural Networks ...", CVPR 2019; arXiv 1811.10413): binary branches.

K branches of the same structure with binary weights and inputs replace a part of a float network; their outputs are
added with learned scales (its Section 3.2)::

    F(x) ~ Σ_i λ_i G_i(x)

`decomposition="layer"` (3.2.1) replaces each layer separately; branches share what follows the layer. `"group"` (3.2.2)
replaces groups of `group` layers with everything between them, including BatchNorm and activations. Weights are
α sign(w) with α = mean |w| of each filter, with straight-through gradients; activations are sign(x) with the derivative
2 - 2|x| on [-1, 1], which is triangular backward noise (3.1). The first and the last layer stay in full precision. The
gates that learn connections between groups (3.2.3) are for residual networks and are not implemented.

>>> import torch, lehr
>>> model = lehr.models.MLP((1, 8, 8), hidden=(64, 64))
>>> print(GroupNet(branches=3).convert_(model))
module    was     now        levels  why
layers.1  Linear  kept               first layer
layers.3  ReLU    Quantizer       2
layers.4  Linear  Branches           3 binary branches
layers.6  ReLU    kept               its layer stays
layers.7  Linear  kept               last layer
>>> len(model.layers[4].branches)
3
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lehr.algorithms.algorithm import Algorithm, check_choices
from lehr.algorithms.description import Description
from lehr.algorithms.sequence import QUANTIZED, Block, Layer, Place, become_, inner_blocks, reporter
from lehr.algorithms.xnor_net import ScaledSign, fit_scales_
from lehr.convert import ACTIVATIONS, Conversion
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Triangular
from lehr.quantizer import Quantizer

_DERIVATIVE = Triangular.half_width(1)


class Branches(nn.Module):
    """Σ_i λ_i branch_i(x)."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        like = next(self.branches[0].parameters())
        self.scales = nn.Parameter(like.new_full((len(branches),), 1 / len(branches)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum."""
        total = self.branches[0](x) * self.scales[0]
        for index in range(1, len(self.branches)):
            total = total + self.branches[index](x) * self.scales[index]
        return total


@dataclass(frozen=True)
class GroupNet(Algorithm):
    """Sums of binary branches.

    Args:
        branches: K, the number of branches.
        decomposition: replace each "layer", or each "group" of layers.
        group: the layers of a group.
    """

    branches: int = 5
    decomposition: Literal["layer", "group"] = "layer"
    group: int = 2

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("branches", "group"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def describe(self) -> Description:
        """Return its row of a table."""
        return Description(
            "Group-Net",
            "" if self.decomposition == "layer" else f"groups of {self.group}",
            f"{self.branches} x binary",
            "-1, 1",
            "neither",
            estimator="STE",
            becomes=f"{self.branches} integer layers for each layer, added as floats",
        )

    @torch.no_grad()
    def convert_(self, model: nn.Module, *, trained: bool = False) -> Conversion:
        """Decompose the inner layers of a sequential model into binary branches.

        New branches have independent weights. In a `trained` network the first branch has the network's weights, and
        the others copies with added noise of the same size, so that the mean of the signs is closer to the weights.
        """
        blocks = inner_blocks(model, "Group-Net")
        if self.decomposition == "group":
            _check_sequential(blocks)
        report = reporter(model, blocks)
        notes: dict[str, str] = {}
        for part in self._parts(blocks):
            for block in part:
                block.activation.put(Quantizer(MultiStep.sign(), Dirac(), _DERIVATIVE))
            segment = _segment(part) if self.decomposition == "group" else (part[0].layer,)
            notes |= {place.path: f"in {segment[0].path}" for place in segment}
            notes[segment[0].path] = f"{self.branches} binary branches"
            self._decompose_(segment, trained=trained)
        return report(notes)

    def after_step_(self, model: nn.Module) -> None:
        """Fit the scales to the new weights."""
        fit_scales_(model)

    def _parts(self, blocks: list[Block]) -> list[list[Block]]:
        """Return the blocks to decompose together; those of a group have the same parent."""
        size = self.group if self.decomposition == "group" else 1
        parts: list[list[Block]] = []
        for block in blocks:
            parents = {place.parent for place in (block.layer, *block.between)}
            if parts and len(parts[-1]) < size and parents == {parts[-1][-1].layer.parent}:
                parts[-1].append(block)
            else:
                parts.append([block])
        return parts

    def _decompose_(self, segment: Sequence[Place], *, trained: bool) -> None:
        first, *rest = segment
        module = nn.Sequential(OrderedDict((place.name, place.module) for place in segment)) if rest else first.module
        branches = [module, *(copy.deepcopy(module) for _ in range(self.branches - 1))]
        for branch in branches:
            for layer in branch.modules():
                if isinstance(layer, Layer):
                    if branch is not module:
                        _vary_(layer, trained=trained)
                    become_(layer, QUANTIZED)
                    layer.quantizer = ScaledSign(layer.weight, straight_through=True).train(layer.training)
        for place in rest:
            del place.parent._modules[place.name]
        first.put(Branches(branches))


def _vary_(layer: Layer, *, trained: bool) -> None:
    """Change the weights of a copy: add noise to trained ones, initialise others."""
    if trained:
        layer.weight += torch.randn_like(layer.weight) * layer.weight.std(correction=0)
    else:
        layer.reset_parameters()


def _segment(part: list[Block]) -> tuple[Place, ...]:
    """Return the places of a group: from its first layer to the module before the activation after its last."""
    inside = [place for block in part[1:] for place in (*block.between, block.layer)]
    after: list[Place] = []
    for place in part[-1].after:
        if place.parent is not part[-1].layer.parent or isinstance(place.module, (*ACTIVATIONS, Quantizer)):
            break
        after.append(place)
    return part[0].layer, *inside, *after


def _check_sequential(blocks: list[Block]) -> None:
    for block in blocks:
        if not isinstance(block.layer.parent, nn.Sequential):
            raise ValueError(
                f"groups must be part of an nn.Sequential, but {block.layer.path} is in a "
                f"{type(block.layer.parent).__name__}: put its layers into one, or decompose by layer"
            )
