"""A quantizer: y = scale * σ(x / scale), with the noises of training.

It is the activation module itself, and the part of `Linear` and `Conv1d/2d/3d` that quantizes their weights. In
`eval()` the forward noise is gone, always: what is evaluated is the network of hard multi-step functions, however far
its training is. The noise is part of the state and is saved and restored. Methods with another rule than Theorem 2's
bring a quantizer of their own, an `AbstractQuantizer`.

>>> import torch, lehr
>>> lehr.Quantizer().eval()(torch.tensor([-2.0, 0.3, 0.5]))
tensor([-1.,  0.,  1.])
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lehr.estimator import Estimator, Mode, ana, estimator_of
from lehr.expectation import quantize, wide
from lehr.multistep import MultiStep
from lehr.noise import Dirac, Noise, Number, check, shown
from lehr.tracing import quantizer_node, unscaled_node

_PAPER = ana()
_NOISE = "forward_std", "backward_std", "forward_mean", "backward_mean"
_OPTIONAL = ("forward_mean", "backward_mean", "scale")


class AbstractQuantizer(nn.Module, abc.ABC):
    """What freezing, counting and measuring ask of a quantizer: in eval mode its values are `scale * levels`, exactly.

    `step` is the multi-step function; `scale` a tensor that broadcasts over the input, or None for 1.
    """

    step: MultiStep
    scale: Tensor | None

    @abc.abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Quantize."""

    @property
    def levels(self) -> tuple[float, ...]:
        """The values, in units of the scale: those of the multi-step function, unless they are learned."""
        return self.step.levels

    @torch.no_grad()
    def codes(self, x: Tensor) -> Tensor:
        """The index of each value's level, without noise."""
        x = x.to(wide(x.dtype))  # as the values are computed
        return self.step.codes(x if self.scale is None else x / self.scale)

    def unscaled(self, x: Tensor) -> Tensor:
        """The quantized x without the scale or noise: each value is a level, with the gradient of `forward`."""
        if isinstance(x, torch.fx.Proxy):
            return unscaled_node(self, x)
        levels = torch.tensor(self.levels, dtype=x.dtype, device=x.device)[self.codes(x).long()]
        levels = torch.where(x.isnan(), x, levels)
        if torch.is_grad_enabled():
            levels = levels + gradient_of(self(x) if self.scale is None else self(x) / self.scale)
        return levels

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save the step function in the metadata: it is not a tensor, and adds no key."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["step"] = (self.step.thresholds, self.step.levels)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Refuse the state of another step function; one that does not say its step function is trusted."""
        saved = local_metadata.get("step")
        if saved is not None and MultiStep(*saved) != self.step:
            error_msgs.append(
                f"{prefix[:-1] or 'this quantizer'} has the levels {self.step}, its state those of "
                f"{MultiStep(*saved)}: quantize the model as the one that was saved"
            )
            return
        self._load_own(state_dict, prefix)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _load_own(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Prepare for what the state holds, such as buffers of other shapes."""


class Quantizer(AbstractQuantizer):
    """y = scale * σ(x / scale), with σ under the forward noise for the value and the backward noise for the gradient.

    Standard deviations, and means and a scale other than the plain 0 and 1, are buffers: they move with the module, are
    saved with it, and can change without recompiling. The noise keeps its precision in a module turned to half or
    double, where a rounded std could no longer be annealed in small steps, or no longer mean the window it stands for.

    Args:
        step: an `Estimator`; or a multi-step function (default ternary), which the next three complete.
        forward: the forward noise; the paper's uniform noise of std √3/6 unless given.
        backward: the backward noise; the paper's too, whatever `forward` is (`quantize` takes `forward` for both).
        mode: what becomes of the forward noise, see `Estimator`.
        scale: a number, or a tensor that broadcasts over the input, for one scale per channel.
    """

    forward_std: Tensor
    backward_std: Tensor
    forward_mean: Tensor | None
    backward_mean: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        step: MultiStep | Estimator = _PAPER.step,
        forward: Noise | None = None,
        backward: Noise | None = None,
        mode: Mode = "expectation",
        scale: Number = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(step, Estimator):
            forward = _PAPER.forward if forward is None else forward
            backward = _PAPER.backward if backward is None else backward
        estimator = estimator_of(step, forward, backward, mode)
        check("scale", scale, "positive and finite", lambda scale: (scale > 0) & (scale < math.inf))
        self.step = estimator.step
        self.mode: Mode = estimator.mode
        self.forward_kind = type(estimator.forward)
        self.backward_kind = type(estimator.backward)
        self.register_buffer("forward_std", _buffer(estimator.forward.std))
        self.register_buffer("backward_std", _buffer(estimator.backward.std))
        self.register_buffer("forward_mean", _buffer(estimator.forward.mean, unless=0))
        self.register_buffer("backward_mean", _buffer(estimator.backward.mean, unless=0))
        self.register_buffer("scale", _buffer(scale, unless=1))

    @property
    def forward_noise(self) -> Noise:
        """The present forward noise, as a value."""
        return self.forward_kind.trusted(self.forward_std, 0.0 if self.forward_mean is None else self.forward_mean)

    @property
    def backward_noise(self) -> Noise:
        """The present backward noise, as a value."""
        return self.backward_kind.trusted(self.backward_std, 0.0 if self.backward_mean is None else self.backward_mean)

    @property
    def estimator(self) -> Estimator:
        """The present estimator, as a value: without forward noise when evaluating."""
        forward = self.forward_noise if self.training else Dirac()
        return Estimator(self.step, forward, self.backward_noise, self.mode)

    def forward(self, x: Tensor) -> Tensor:
        """Quantize; without forward noise when evaluating."""
        if isinstance(x, torch.fx.Proxy):
            return quantizer_node(self, x)
        return quantize(x, self.estimator, scale=1.0 if self.scale is None else self.scale)

    def extra_repr(self) -> str:
        """Step function, present noise, and what differs from the usual."""
        scale = "" if self.scale is None else f", scale={shown(self.scale)}"
        return f"{Estimator(self.step, self.forward_noise, self.backward_noise, self.mode)}{scale}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Quantizer:
        """Move or convert as every module does, but for the dtype of the noise."""
        before = {name: self._buffers[name] for name in _NOISE}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = self._buffers[name]
            if buffer is not None and after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self

    def _load_own(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Become what the state holds, whatever its shapes; a full-precision checkpoint holds nothing of it."""
        quantized = prefix + "forward_std" in state_dict
        for name, buffer in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if saved is not None and (buffer is None or buffer.shape != saved.shape):
                like = self.forward_std
                dtype = saved.dtype if name == "scale" else like.dtype
                self._buffers[name] = torch.empty_like(saved, device=like.device, dtype=dtype)
            elif saved is None and buffer is not None and not quantized:
                state_dict[prefix + name] = buffer
            elif saved is None and name in _OPTIONAL:  # a plain mean of 0 or scale of 1 is not saved
                self._buffers[name] = None


def gradient_of(x: Tensor) -> Tensor:
    """0, with the gradient of x: added to a value it gives that value, to the bit, the gradient of x.

    >>> w = torch.tensor([0.3], requires_grad=True)
    >>> (torch.sign(w).detach() + gradient_of(w)).backward()  # the straight-through estimator, without bounds
    >>> w.grad
    tensor([1.])
    """
    return x - x.detach()


def _buffer(value: Number, unless: float | None = None) -> Tensor | None:
    if not isinstance(value, Tensor) and value == unless:
        return None
    return torch.as_tensor(value, dtype=torch.get_default_dtype()).detach().clone()
