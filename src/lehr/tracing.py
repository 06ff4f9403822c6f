"""What torch.fx sees of quantizers: each is one node of the graph.

Where a model has quantized calls (calls.py), its `forward` stands on the object. torch.fx traces the forward of the
class, so a plain `symbolic_trace` would miss these quantizers: it is refused as soon as it meets any other quantizer,
such as that of a layer's weights. (A model without other quantizers it traces in full precision: nothing of lehr is
asked then.) `lehr.calls.CallTracer` sees all of them:

    graph = CallTracer().trace(model)
    traced = torch.fx.GraphModule(model, graph)
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn

ADVICE = "trace it with torch.fx.GraphModule(model, lehr.calls.CallTracer().trace(model))"


def inside(model: nn.Module) -> nn.Module:
    """The module that torch.compile has wrapped, which no tracer sees through; any other is itself."""
    return getattr(model, "_orig_mod", model)


class OwnForwardTracer(fx.Tracer):
    """A tracer that follows the `forward` that stands on the root itself; torch's own takes that of its class."""

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """As torch does, with the root's own forward."""
        function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
        own = vars(self.root).get("forward")
        return function if own is None else lambda _, *rest: own(*rest), args


def quantizer_node(quantizer: nn.Module, x: fx.Proxy) -> Any:
    """Return the node of `quantizer(x)`."""
    return _tracer_of(x).create_proxy("call_module", _tracer_of(x).path_of_module(quantizer), (x,), {})


def unscaled_node(quantizer: nn.Module, x: fx.Proxy) -> Any:
    """Return the node of `quantizer.unscaled(x)`."""
    own = _tracer_of(x).create_proxy("get_attr", _tracer_of(x).path_of_module(quantizer), (), {})
    return _tracer_of(x).create_proxy("call_method", "unscaled", (own, x), {})


def _tracer_of(x: fx.Proxy) -> Any:
    """Return the tracer; raise RuntimeError if it does not follow the root's own forward."""
    tracer: Any = x.tracer
    if not isinstance(tracer, OwnForwardTracer) and "forward" in vars(tracer.root):
        raise RuntimeError(
            f"torch.fx traces the forward of the class {type(tracer.root).__name__} and would miss the quantizers of "
            f"its calls: {ADVICE}"
        )
    return tracer
