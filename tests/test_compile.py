"""torch.compile: one graph, one compilation however the noise anneals, and eager's results, at the ties too."""

# The items of an nn.Sequential are mere modules to a type checker.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false

import math

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import lehr
from lehr import Annealer, Dirac, Logistic, MultiStep, Quantizer, Uniform
from lehr.annealing import Window
from restated import NOISES

# The compiler's own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TIES = torch.tensor([-1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, math.nan])


@pytest.fixture(autouse=True)
def from_the_beginning():
    torch._dynamo.reset()


def run(module, x):
    x = x.detach().clone().requires_grad_()
    y = module(x)
    y.backward(torch.ones_like(y))
    # At NaN the value is NaN and the gradient no matter: eager passes it on, as Hardtanh does.
    return y.detach(), x.grad.masked_fill(x.isnan(), 0)


# The fewest thresholds that are searched instead of compared; the even ones are found by a division.
EVEN = tuple(k / 8 for k in range(-16, 17))
SEARCHED = MultiStep((*EVEN[:-1], EVEN[-1] + 1), tuple(k / 8 for k in range(-17, 17)))
DIVIDED = MultiStep(EVEN, SEARCHED.levels)


class TestOneCompilation:
    """Counted without a code generator: what is recompiled is the graph."""

    @pytest.mark.parametrize("kind", NOISES)
    def test_fifty_changes_of_std_down_to_0_compile_once(self, kind):
        counter = CompileCounter()
        model = nn.Sequential(
            lehr.Linear(8, 8, quantizer=Quantizer(forward=kind(0.3), backward=kind(0.3))), Quantizer()
        )
        annealer = Annealer(model, Window(0, 49))
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        x = torch.randn(4, 8)
        for _ in range(51):
            run(compiled, x)
            annealer.step()
        assert model[1].forward_std.item() == 0
        assert counter.frame_count == 1
        torch.testing.assert_close(compiled(x), model(x))

    def test_a_number_as_std_would_compile_again(self):
        """What the module's tensors are for; if this ever fails, they are not needed any more."""
        counter = CompileCounter()
        compiled = torch.compile(
            lambda x, std: lehr.quantize(x, MultiStep.ternary(), Uniform(std)), backend=counter, dynamic=False
        )
        for std in (0.3, 0.2, 0.1):
            compiled(torch.randn(4), std)
        assert counter.frame_count > 1

    @pytest.mark.parametrize(
        ("step", "mode"),
        [(MultiStep.ternary(), mode) for mode in ("expectation", "mode", "sample")] + [(SEARCHED, "expectation")],
    )
    def test_every_mode_is_one_graph_in_training_and_in_evaluation(self, step, mode):
        quantizer = Quantizer(step, mode=mode, scale=0.5)
        for training in (True, False):
            compiled = torch.compile(quantizer.train(training), backend="eager", fullgraph=True)
            for x in (TIES,) if step is SEARCHED else (TIES, TIES.bfloat16()):
                torch.manual_seed(0)
                got = run(compiled, x)
                torch.manual_seed(0)
                torch.testing.assert_close(got, run(quantizer, x), equal_nan=True)

    @pytest.mark.parametrize(
        ("kind", "mode"), [*((kind, "expectation") for kind in NOISES), (Uniform, "mode"), (Uniform, "sample")]
    )
    def test_channels_last_is_one_graph_too(self, kind, mode):
        x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
        compiled = torch.compile(
            Quantizer(forward=kind(0.3), backward=kind(0.3), mode=mode), backend="eager", fullgraph=True
        )
        assert run(compiled, x)[0].is_contiguous(memory_format=torch.channels_last)

    def test_quantize_itself_with_a_tensor_of_std(self):
        def function(x, std):
            return lehr.quantize(x, MultiStep.ternary(), Uniform(std), Uniform(std))

        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        std = torch.tensor(math.sqrt(3) / 6)
        torch.testing.assert_close(compiled(TIES, std), function(TIES, std), equal_nan=True)


class TestTheGeneratedCode:
    def test_it_equals_eager_at_the_ties_for_any_std_with_one_compilation(self):
        quantizer = Quantizer()
        compiled = torch.compile(quantizer, fullgraph=True)
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for half_width in (0.5, 0.25, 0.125, 1.0, 0.0):
            quantizer.forward_std.fill_(half_width / math.sqrt(3))
            quantizer.backward_std.fill_(half_width / math.sqrt(3))
            torch.testing.assert_close(run(compiled, TIES), run(quantizer, TIES), rtol=0, atol=0, equal_nan=True)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1

    def test_thresholds_that_half_precision_cannot_hold_are_compared_as_eager_does(self):
        quantizer = Quantizer(MultiStep((0.1, 0.7), (0.0, 0.3, 1.1)), forward=Dirac()).eval()
        x = torch.tensor([0.7, 0.1, 0.69921875, 0.703125], dtype=torch.bfloat16)
        assert torch.equal(torch.compile(quantizer, fullgraph=True)(x), quantizer(x))

    @pytest.mark.parametrize("step", [SEARCHED, DIVIDED, MultiStep.uniform(8), MultiStep.uniform(8, signed=False)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_many_levels_equal_eagers_around_each_threshold(self, step, dtype):
        ties = torch.tensor(step.thresholds, dtype=dtype)
        far = torch.tensor([-math.inf, -1e30, 1e30, math.inf, math.nan], dtype=dtype)
        x = torch.cat([ties.nextafter(-far[3]), ties, ties.nextafter(far[3]), far])
        quantizer = Quantizer(step, forward=Dirac()).eval()
        compiled = torch.compile(quantizer, fullgraph=True)
        torch.testing.assert_close(compiled(x), quantizer(x), rtol=0, atol=0, equal_nan=True)

    def test_noise_and_scale_per_channel_give_the_same_numbers(self):
        quantizer = Quantizer(
            MultiStep.uniform(2), Logistic(0.4), Uniform(torch.full((5, 1), 0.3)), scale=torch.full((5, 1), 0.7)
        )
        x = torch.randn(3, 5, 17)
        torch.testing.assert_close(
            run(torch.compile(quantizer, fullgraph=True), x), run(quantizer, x), rtol=1e-5, atol=1e-6
        )
