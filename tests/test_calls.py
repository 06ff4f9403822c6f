"""Calls of functions in a forward are quantized as modules are, and the user's class stays as it was written."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lightning
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lehr
from lehr import Quantizer, calibrate_, quantize_
from lehr.calls import CallTracer
from lehr.dequantize import dequantize_
from lehr.nonlinear import FUNCTIONS, KINDS
from written_models import FunctionalResNet, HuggingModel, SharedResNet

PIXELS = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def functional(**arguments: object) -> FunctionalResNet:
    torch.manual_seed(0)
    model = FunctionalResNet()
    quantize_(model, **arguments)  # pyright: ignore[reportArgumentType]
    return model


class Calls(nn.Module):
    """One function, however it is spelled."""

    def __init__(self, call: object) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.call(self.layer(x)))  # pyright: ignore[reportCallIssue]


def in_place(x: Tensor) -> Tensor:
    x = x * 1
    x.relu_()
    return x


SPELLINGS = {
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    "x.relu()": lambda x: x.relu(),
    "F.relu(inplace=True)": lambda x: F.relu(x * 1, inplace=True),
    "x.relu_()": in_place,
    "F.relu6": F.relu6,
    "F.hardtanh": lambda x: F.hardtanh(x, -2.0, 2.0),
    "F.silu": F.silu,
    "F.gelu": lambda x: F.gelu(x, approximate="tanh"),
    "F.leaky_relu": F.leaky_relu,
    "F.elu": F.elu,
    "F.mish": F.mish,
    "F.hardswish": F.hardswish,
    "torch.tanh": torch.tanh,
    "x.sigmoid()": lambda x: x.sigmoid(),
}


@pytest.mark.parametrize("example", [None, torch.randn(3, 4)], ids=["traced", "run"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_quantized(spelling: str, example: Tensor | None) -> None:
    model = Calls(SPELLINGS[spelling])
    report = quantize_(model, example=example)
    (name, quantizer), *others = model.quantized_calls.named_children()  # pyright: ignore[reportCallIssue]
    assert not others
    assert isinstance(quantizer, Quantizer)
    assert [change.module for change in report.converted] == ["layer", "last", f"quantized_calls.{name}"]
    read: list[Tensor] = []
    model.last.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    model.eval()(torch.randn(50, 4) * 5)
    assert sorted(read[0].unique().tolist()) == [-1, 0, 1]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_many_levels_respect_the_function_they_stand_for(spelling: str) -> None:
    torch.manual_seed(0)
    model = Calls(SPELLINGS[spelling]).eval()
    x = torch.randn(64, 4) * 3
    before = model(x)
    quantize_(model, weights=None, activations="8bit", data=[x])
    error = (model(x) - before).abs().max() / before.abs().max()
    assert 0 < error < 0.02


def test_all_functions_of_the_table_are_torchs_and_known_by_a_module() -> None:
    assert set(FUNCTIONS.values()) == set(KINDS)


def test_class_parameters_names_and_signature_are_the_users() -> None:
    before = FunctionalResNet()
    model = functional()
    assert type(model) is FunctionalResNet
    assert type(model.layer1) is type(before.layer1)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in before.named_parameters()]
    assert set(before.state_dict()) <= set(model.state_dict())
    assert inspect.signature(model.forward) == inspect.signature(before.forward)
    assert "layer1.quantized_calls.relu_1.forward_std" in model.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scales fitted to other weights
        model.load_state_dict(before.state_dict())


@pytest.mark.parametrize("example", [None, PIXELS], ids=["traced", "run"])
def test_each_call_has_a_quantizer_of_its_own_which_it_uses(example: Tensor | None) -> None:
    model = functional(example=example)
    order: list[str] = []
    paths = [path for path, module in model.named_modules() if isinstance(module, Quantizer) and "calls" in path]
    for path in paths:
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: order.append(path))
    model.eval()(PIXELS)
    assert order == [
        "quantized_calls.relu",
        "layer1.quantized_calls.relu",
        *["layer1.quantized_calls.add"] * 2,  # of both sides
        "layer1.quantized_calls.relu_1",
        "layer2.quantized_calls.relu",
        *["layer2.quantized_calls.add"] * 2,
        "layer2.quantized_calls.relu_1",
        "quantized_calls.relu_1",
    ]
    assert set(order) == set(paths)


def test_it_trains_copies_pickles_and_evaluates() -> None:
    model = functional()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    labels = torch.tensor([1, 2, 3, 4])
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(PIXELS), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    model.eval()
    expected = model(PIXELS)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(PIXELS), expected)
        twin.quantized_calls["relu"].scale = torch.tensor(1e6)
        assert not torch.equal(twin(PIXELS), expected)
        assert torch.equal(model(PIXELS), expected)  # a copy has quantizers of its own


def nested() -> Calls:
    """A quantized network whose forward makes a call, and so does that of a module in it."""
    torch.manual_seed(0)
    block = Calls(F.relu)
    block.last = nn.Linear(4, 4)
    model = Calls(lambda x: F.silu(block(x)))
    model.block = block
    quantize_(model)
    assert list(block.quantized_calls) == ["relu"]  # pyright: ignore[reportArgumentType]
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_compiles_to_one_graph() -> None:
    model = nested()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(8, 4)
    for training in (True, False):
        model.train(training)
        torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model.layer.weight.grad is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_compiles_in_a_thread_where_nothing_ran_before() -> None:
    model, x = nested(), torch.randn(8, 4)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(compiled, x).result()
    torch.testing.assert_close(result, model(x))


def test_it_exports_with_torch_export() -> None:
    model, x = nested().eval(), torch.randn(8, 4)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), model(x))


@pytest.mark.parametrize("training", [True, False])
def test_call_tracer_sees_the_quantizers_and_plain_fx_is_refused(training: bool) -> None:
    model = functional().train(training)
    traced = torch.fx.GraphModule(model, CallTracer().trace(model))
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert [path for path in called if "quantized_calls" in path] == [
        "quantized_calls.relu",
        "layer1.quantized_calls.relu",
        *["layer1.quantized_calls.add"] * 2,  # of both sides
        "layer1.quantized_calls.relu_1",
        "layer2.quantized_calls.relu",
        *["layer2.quantized_calls.add"] * 2,  # of both sides
        "layer2.quantized_calls.relu_1",
        "quantized_calls.relu_1",
    ]
    if not training:  # else Dropout's random numbers differ
        assert torch.equal(traced(PIXELS), model(PIXELS))
    model.input = nn.Identity()  # plain torch.fx does not get through lehr's, which asks for the dtype
    with pytest.raises(RuntimeError, match="FunctionalResNet and would miss the quantizers of its calls: trace it"):
        torch.fx.symbolic_trace(model)


def test_plain_fx_is_refused_where_a_method_is_called_inside() -> None:
    model = nn.Sequential(Calls(lambda x: x.relu()))
    quantize_(model)
    with pytest.raises(RuntimeError, match=r"torch.fx misses quantized calls of Calls: trace it with .*CallTracer"):
        torch.fx.symbolic_trace(model)
    traced = torch.fx.GraphModule(model, CallTracer().trace(model))
    x = torch.randn(3, 4)
    assert torch.equal(traced(x), model(x))


def test_a_block_that_is_left_out_does_not_disturb_the_others() -> None:
    class Stochastic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Calls(F.relu)
            self.block.last = nn.Linear(4, 4)
            self.out = nn.Linear(4, 2)
            self.leave_out = False

        def forward(self, x: Tensor) -> Tensor:
            if not self.leave_out:
                x = self.block(x)
            return self.out(torch.relu(x))

    model = Stochastic()
    quantize_(model)
    model.leave_out = True
    assert model(torch.randn(2, 4)).shape == (2, 2)


def test_calls_that_differ_are_an_error_that_names_them() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.mood = 0

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            x = F.relu(x) if self.mood == 0 else F.silu(x)
            if self.mood == 2:
                return x
            return F.relu(self.b(x)) if self.mood < 3 else self.b(x)

    model = Moody()
    quantize_(model)
    model(torch.randn(2, 4))
    model.mood = 1
    with pytest.raises(RuntimeError, match=r"Moody.forward made other calls .*: silu as call 1, where .* relu, relu"):
        model(torch.randn(2, 4))


def test_training_and_evaluation_may_call_differently() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            if self.training:
                x = x + F.silu(self.b(x))
            return self.c(F.relu(x))

    for example in (None, torch.randn(2, 4)):
        model = Auxiliary()
        quantize_(model, example=example)
        assert sorted(model.quantized_calls) == ["add", "relu", "silu"]  # pyright: ignore[reportArgumentType]
        for training in (True, False):
            model.train(training)(torch.randn(2, 4))


def test_calls_in_a_loop_have_a_quantizer_for_each_time() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = F.relu(layer(x))
            return x

    model = Loop()
    quantize_(model)
    assert list(model.quantized_calls) == ["relu", "relu_1", "relu_2"]  # pyright: ignore[reportArgumentType]
    groups = lehr.annealing.annealer.layers_of(model)
    assert groups == [[f"layers.{n}.quantizer", f"quantized_calls.relu{'_' * bool(n)}{n or ''}"] for n in range(3)]


def test_a_forward_that_looks_at_values_needs_an_example() -> None:
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 1e9:
                raise ValueError("too large")
            return self.b(F.relu(self.a(x)))

    model = Looking()
    with pytest.warns(UserWarning, match="no activation found.* is seen when quantize_ gets an example"):
        report = quantize_(model)
    assert "Looking cannot be traced (TraceError: " in str(report)
    model = Looking()
    quantize_(model, example=torch.randn(2, 4))
    assert isinstance(model.quantized_calls["relu"], Quantizer)  # pyright: ignore[reportIndexIssue]


class TestSharedModules:
    """torchvision's one `self.relu`."""

    def test_it_has_a_quantizer_for_each_use_when_scales_are_fitted(self) -> None:
        torch.manual_seed(0)
        model = SharedResNet()
        report = quantize_(model, activations="4bit", data=[PIXELS])
        block = model.layer1[1]
        assert list(block.quantized_calls) == ["relu", "add", "relu_1"]
        assert type(block.relu) is nn.ReLU
        assert type(model.relu) is Quantizer  # used once
        told = {change.module: (change.now, change.why) for change in report.changes}
        assert told["layer1.1.relu"] == ("kept", "each of its uses has a quantizer")
        seen: list[str] = []
        for name, quantizer in block.quantized_calls.items():
            quantizer.register_forward_hook(lambda *_, name=name: seen.append(name))
        model.eval()(PIXELS)
        assert seen == ["relu", "add", "add", "relu_1"]

    def test_without_data_it_is_one_quantizer(self) -> None:
        model = SharedResNet()
        quantize_(model, sums=None)
        assert type(model.layer1[0].relu) is Quantizer
        assert not hasattr(model.layer1[0], "quantized_calls")


@pytest.mark.parametrize("make", [FunctionalResNet, SharedResNet])
@pytest.mark.parametrize("example", [None, PIXELS], ids=["traced", "run"])
def test_what_is_quantized_already_is_left_alone(make: type[nn.Module], example: Tensor | None) -> None:
    torch.manual_seed(0)
    model = make()
    quantize_(model, activations="4bit", data=[PIXELS], skip="fc")
    expected, names = model.eval()(PIXELS), list(model.state_dict())
    report = quantize_(model, weights="8bit", scale="channel", example=example)
    assert [change.module for change in report.converted] == ["fc"]
    assert [name for name in model.state_dict() if not name.startswith("fc.quantizer")] == names
    torch.testing.assert_close(model(PIXELS), expected, rtol=0.05, atol=0.05)


class TestHuggingFace:
    def test_calls_in_small_modules_and_arguments_by_name(self) -> None:
        torch.manual_seed(0)
        ids = torch.randint(0, 20, (2, 5))
        model = HuggingModel()
        report = quantize_(model, example={"input_ids": ids})
        told = {change.module: (change.was, change.now, change.why) for change in report.changes}
        act = "layer.0.intermediate_act_fn.quantized_calls.gelu"
        assert told[act] == ("gelu", "Quantizer", "")
        assert told["layer.0.output"] == ("Conv1D", "kept", "weights of this kind stay")
        assert told["layer.0.quantized_calls.softmax"] == ("softmax", "kept", "replace does not name it")
        assert told["layer.0.matmul"] == ("matmul", "kept", "a product of activations")
        assert told["quantized_calls.sigmoid"] == ("sigmoid", "kept", "output of the network")
        assert told["embeddings"] == ("Embedding", "kept", "weights of this kind stay")
        assert report.macs is not None
        assert 0.5 < report.macs[0] / report.macs[1] < 0.95
        assert model(ids)["probabilities"].shape == (2, 3)
        assert model(input_ids=ids, attention_mask=torch.zeros(2, 1, 5))["probabilities"].shape == (2, 3)

    def test_it_is_traced_without_an_example_too(self) -> None:
        model = HuggingModel()
        quantize_(model)
        assert "layer.1.intermediate_act_fn.quantized_calls.gelu" in dict(model.named_modules())


def test_the_way_back() -> None:
    torch.manual_seed(0)
    for make in (FunctionalResNet, SharedResNet):
        for arguments in ({}, {"activations": "8bit", "example": PIXELS}):
            model = make().eval()
            before, names = model(PIXELS), list(model.state_dict())
            quantize_(model, **arguments)
            calibrate_(model, [PIXELS])
            assert not torch.equal(model(PIXELS), before)
            assert dequantize_(model) is model
            assert torch.equal(model(PIXELS), before)
            assert list(model.state_dict()) == names
            assert not any(isinstance(module, Quantizer | lehr.Linear | lehr.Conv2d) for module in model.modules())


def test_the_way_back_can_keep_the_quantized_weights() -> None:
    layer = nn.Linear(8, 8)
    quantize_(layer, activations=None)
    values = layer.eval().quantized_weight.detach().clone()
    dequantize_(layer, weights="quantized")
    assert type(layer) is nn.Linear
    assert torch.equal(layer.weight, values)


class Lit(lightning.LightningModule):
    """A user's LightningModule with a functional forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = FunctionalResNet()
        self.fc = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.gelu(self.net(x)))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_module(tmp_path: Path) -> None:
    model = Lit()
    report = quantize_(model, example=PIXELS)
    assert "quantized_calls.gelu" in {change.module for change in report.converted}
    trainer = lightning.Trainer(
        max_steps=2, default_root_dir=tmp_path, logger=False, enable_progress_bar=False, accelerator="cpu"
    )
    trainer.fit(model, DataLoader(TensorDataset(PIXELS, torch.tensor([1, 2, 3, 4])), batch_size=2))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    twin = Lit()
    quantize_(twin)
    twin.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"])
    assert torch.equal(twin.eval()(PIXELS), model.eval()(PIXELS))


def test_ddp_runs_the_quantized_calls(tmp_path: Path) -> None:
    model = functional()
    used: list[str] = []
    model.layer1.quantized_calls["relu"].register_forward_hook(lambda *_: used.append("relu"))  # pyright: ignore
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        F.cross_entropy(parallel(PIXELS), torch.tensor([1, 2, 3, 4])).backward()
    finally:
        torch.distributed.destroy_process_group()
    assert used == ["relu"]
    assert model.conv1.weight.grad is not None


@torch.fx.wrap
def clipped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(nn.functional.linear(x, weight))


def test_what_a_function_calls_that_torch_fx_does_not_look_into_stays_and_is_told():
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return clipped(x, self.layer.weight)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return torch.relu(self.inner(x)) + x

    for example in (None, torch.randn(2, 4)):
        model = Outer()
        report = lehr.quantize_(model, example=example)
        assert "calls in inner stay: torch.fx does not look into clipped, which calls relu" in str(report)
        assert {change.module: change.why for change in report.changes}["inner.layer"] == (
            "another function reads its weights"
        )
        assert model.train()(torch.randn(2, 4)).isfinite().all()
        assert model.eval()(torch.randn(2, 4)).isfinite().all()
