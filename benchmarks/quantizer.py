"""Quantizer forward and backward on (64, 128, 32, 32), ternary, against nn.Hardtanh, broadcasting and brevitas.

Then on 262,144 values what many levels cost: 8 bits against torch's fake quantization, and 255 uneven thresholds
against ternary, all with half of their forward noise annealed away.

python benchmarks/quantizer.py [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

import lehr
from measure import LiveMemory, Row, fastest, report


class Broadcasting(torch.autograd.Function):
    """The same numbers with all thresholds in a dimension of their own: the formulation to beat."""

    @staticmethod
    def forward(ctx, x: Tensor, thresholds: Tensor, jumps: Tensor, lowest: float, half_width: float) -> Tensor:
        """Theorem 2 (i)."""
        ctx.save_for_backward(x, thresholds, jumps)
        ctx.half_width = half_width
        u = x.unsqueeze(-1) - thresholds
        return ((u / (2 * half_width) + 0.5).clamp(0, 1) * jumps).sum(-1) + lowest

    @staticmethod
    def backward(ctx, *grads: Tensor):
        """Theorem 2 (ii)."""
        x, thresholds, jumps = ctx.saved_tensors
        u = x.unsqueeze(-1) - thresholds
        inside = (u >= -ctx.half_width) & (u < ctx.half_width)
        return grads[0] * (inside.to(x.dtype) / (2 * ctx.half_width) * jumps).sum(-1), None, None, None, None


def broadcasting(x: Tensor) -> Tensor:
    step = lehr.MultiStep.ternary()
    thresholds, jumps = torch.tensor(step.thresholds), torch.tensor(step.jumps)
    return Broadcasting.apply(x, thresholds, jumps, step.levels[0], 0.5)  # pyright: ignore[reportReturnType]


def brevitas_ternary() -> nn.Module | None:
    try:
        from brevitas.nn import QuantIdentity  # pyright: ignore[reportMissingImports]
        from brevitas.quant.ternary import SignedTernaryActPerTensorConst  # pyright: ignore[reportMissingImports]
    except ImportError as missing:
        print(f"brevitas is not installed ({missing}): its row is left out; pip install 'lehr[bench]' brings it\n")
        return None
    return QuantIdentity(SignedTernaryActPerTensorConst)


def many_levels(repetitions: int) -> list[Row]:
    """What 256 levels cost."""
    x, gradient = torch.randn(2**18), torch.randn(2**18)
    places = torch.linspace(-3, 3, 511).add(torch.rand(511, generator=torch.Generator().manual_seed(0)), alpha=0.005)
    uneven = lehr.MultiStep(tuple(places[1::2].tolist()), tuple(places[::2].tolist()))
    eight_bits, annealed = lehr.MultiStep.uniform(8, step=1 / 32), lehr.Uniform(0.144)
    modules = {
        "ternary": lehr.Quantizer(forward=annealed),
        "8 bits": lehr.Quantizer(eight_bits, lehr.Uniform(0.144 / 32), lehr.Uniform.half_width(1 / 64)),
        "8 bits, normal": lehr.Quantizer(eight_bits, lehr.Normal(0.144 / 32), lehr.Normal(0.289 / 32)),
        "uneven": lehr.Quantizer(uneven, annealed),
        "fake": lambda x: torch.fake_quantize_per_tensor_affine(x, 1 / 32, 0, -128, 127),
    }
    seconds = fastest(
        {name: forward_and_backward(module, x, gradient) for name, module in modules.items()}, repetitions
    )
    return [
        Row("8 bits / torch's fake quantization", seconds["8 bits"] / seconds["fake"], 3.0),
        Row("8 bits, normal noise / fake quantization", seconds["8 bits, normal"] / seconds["fake"]),
        Row("255 uneven thresholds / ternary", seconds["uneven"] / seconds["ternary"], 4.0),
    ]


def forward_and_backward(module: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Callable[[], object]:
    x = x.detach().requires_grad_()

    def once() -> None:
        x.grad = None
        module(x).backward(gradient)

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    repetitions = 5 if parser.parse_args().quick else 40
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, gradient = torch.randn(64, 128, 32, 32, requires_grad=True), torch.randn(64, 128, 32, 32)

    quantizer, annealed = lehr.Quantizer(), lehr.Quantizer(forward=lehr.Uniform(0.1))
    vanished = lehr.Quantizer(forward=lehr.Uniform(0.0))
    peer = brevitas_ternary()
    modules = {
        "Hardtanh": nn.Hardtanh(),
        "eager": quantizer,
        "annealed": annealed,
        "vanished": vanished,
        "compiled": torch.compile(quantizer, fullgraph=True),
        "broadcasting": broadcasting,
    } | ({} if peer is None else {"brevitas": peer})
    torch.testing.assert_close(broadcasting(x), quantizer(x))

    runs = {name: forward_and_backward(module, x, gradient) for name, module in modules.items()}
    seconds = fastest(runs, repetitions)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        quantizer(x)
    x.grad = None
    with LiveMemory() as memory:
        quantizer(x).backward(gradient)

    hardtanh, eager = seconds["Hardtanh"], seconds["eager"]
    report(
        [
            Row("nn.Hardtanh, ms", 1000 * hardtanh),
            Row("eager / nn.Hardtanh", eager / hardtanh, 3.0),
            Row("eager, std 0.1 / nn.Hardtanh", seconds["annealed"] / hardtanh, 3.0),
            Row("eager, std 0 / nn.Hardtanh", seconds["vanished"] / hardtanh, 3.0),
            Row("compiled / nn.Hardtanh", seconds["compiled"] / hardtanh, 1.15),
            Row("broadcasting / eager", seconds["broadcasting"] / eager, 5.0, at_least=True),
            Row("brevitas ternary / eager", seconds["brevitas"] / eager if peer else None, 2.0, at_least=True),
            Row("peak extra memory, tensors", memory.peak / (x.numel() * 4), 3.0, slack=1.0),
            Row("kept for the backward pass, tensors", sum(each.numel() > 1 for each in kept), 1.0, slack=1.0),
            *many_levels(repetitions),
        ]
    )


if __name__ == "__main__":
    main()
