"""An estimator is a value: how a step function is computed in the forward pass, and how it is differentiated.

>>> import torch, lehr
>>> x = torch.tensor([-2.0, -0.5, 0.0, 0.5], requires_grad=True)
>>> y = lehr.quantize(x, STE)
>>> y.sum().backward()
>>> y.detach(), x.grad
(tensor([-1., -1.,  1.,  1.]), tensor([0., 1., 1., 1.]))
>>> print(ana(std=0.1, backward_std=0.3))
(-1, 0, 1) at (-0.5, 0.5), forward=Uniform(std=0.1), backward=Uniform(std=0.3)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from lehr.multistep import MultiStep
from lehr.noise import Dirac, Noise, Uniform

Mode = Literal["expectation", "mode", "sample"]
PAPER_STD = math.sqrt(3) / 6  # of U[-1/2, 1/2); the paper prints U[-1, 1] for this std, see docs/paper.md


@dataclass(frozen=True)
class Estimator:
    """A multi-step function σ, a forward noise and a backward noise, which by Theorem 2 define a value and a gradient.

    With distribution function F of the forward noise and density f of the backward noise, both of mean 0 (a mean is
    added to x)::

        value     q_0 + Σ_k δq_k F(x - θ_k)         gradient     Σ_k δq_k f(x - θ_k)

    The known methods are rows of a table; other combinations are new methods:

    ==========================  =======  ==================  ==============================  ===========
    method                      step     forward             backward                        mode
    ==========================  =======  ==================  ==============================  ===========
    STE (Corollary 1), BNN      sign     Dirac               Uniform.half_width(1)
    STE, ternary                ternary  Dirac               Uniform.half_width(1/2)
    BinaryConnect               sign     Dirac               Uniform.half_width(1)
    BinaryConnect, stochastic   sign     U.half_width(1)     Uniform.half_width(1)           sample
    GXNOR-Net, activations      ternary  Dirac               a window about each threshold
    ANA, synchronous            any      Uniform(s(t))       Uniform(s(t))
    ANA, asynchronous           any      Uniform(s(t))       Uniform(s), constant
    ==========================  =======  ==================  ==============================  ===========

    Args:
        step: the multi-step function.
        forward: the noise of the value; default: none (Dirac).
        backward: the noise of the gradient; default: the forward noise.
        mode: how the value is computed under the forward noise: its "expectation"; "mode", the most probable level
            (the higher one at a tie); or "sample", one draw of σ(x + ν).
    """

    step: MultiStep
    forward: Noise = field(default_factory=Dirac)
    backward: Noise = None  # pyright: ignore[reportAssignmentType] - None is replaced by the forward noise
    mode: Mode = "expectation"

    def __post_init__(self) -> None:
        if self.backward is None:
            object.__setattr__(self, "backward", self.forward)
        if not isinstance(self.step, MultiStep):
            raise TypeError(f"step must be a MultiStep, got {self.step!r}")
        for name, noise in (("forward", self.forward), ("backward", self.backward)):
            if not isinstance(noise, Noise):
                raise TypeError(f"{name} must be a noise such as Uniform(0.3), got {noise!r}")
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}")

    def __str__(self) -> str:
        mode = "" if self.mode == "expectation" else f", mode={self.mode}"
        return f"{self.step}, forward={self.forward}, backward={self.backward}{mode}"


def estimator_of(
    step: MultiStep | Estimator, forward: Noise | None, backward: Noise | None, mode: Mode = "expectation"
) -> Estimator:
    """Return `step` if it is an estimator, else the estimator of a multi-step function, two noises and a mode.

    Args:
        step: an estimator or a multi-step function.
        forward: the noise of the value; default: none (Dirac).
        backward: the noise of the gradient; default: the forward noise.
        mode: see `Estimator`.
    """
    if not isinstance(step, Estimator):
        forward = Dirac() if forward is None else forward
        return Estimator(step, forward, forward if backward is None else backward, mode)
    if forward is not None or backward is not None or mode != "expectation":
        raise TypeError(f"an estimator already has noises and a mode: pass no others beside it, got {step}")
    return step


def ste(step: MultiStep, half_width: float) -> Estimator:
    """Return the straight-through estimator: no forward noise, uniform backward noise of this half-width."""
    return Estimator(step, Dirac(), Uniform.half_width(half_width))


def ana(
    step: MultiStep | None = None,
    std: float = PAPER_STD,
    backward_std: float | None = None,
    noise: type[Noise] = Uniform,
    mode: Mode = "expectation",
) -> Estimator:
    """Return the estimator of Additive Noise Annealing at the start of training.

    Args:
        step: the multi-step function; default: ternary.
        std: the std of the forward noise, which an `Annealer` takes to 0.
        backward_std: the std of the backward noise; default: that of the forward noise.
        noise: the kind of both noises.
        mode: see `Estimator`.
    """
    backward = noise(std if backward_std is None else backward_std)
    return Estimator(MultiStep.ternary() if step is None else step, noise(std), backward, mode)


STE = BNN = ste(MultiStep.sign(), half_width=1)
BINARY_CONNECT_STOCHASTIC = Estimator(MultiStep.sign(), Uniform.half_width(1), Uniform.half_width(1), "sample")
