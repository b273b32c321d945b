"""Compiled passes for a few positions against torch's operations in float64, and readers with and without them."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from references import lstm_layer
from tiers import fast_then_full

from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, SoftmaxConfig
from backstory.config.readers import DynamicSettings, GateSettings
from backstory.evaluation import read
from backstory.evaluation.audit import copied
from backstory.models import build_model
from backstory.models.kernels import compiled
from backstory.models.kernels.factored_gradients import FactoredGradient, FactoredGradients, factoring, whole
from backstory.models.kernels.recurrence import lstm_segment
from backstory.readers import Reader
from backstory.readers.dynamic import DynamicEvaluation, RootMeanSquare
from backstory.readers.gradient_statistics import collect
from backstory.readers.learned import Features, GatedUpdate, GateNetwork
from backstory.readers.moving_weights import MovingWeights, Piece

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="no C compiler here")

SIZES = fast_then_full([(1, 1, 1), (7, 3, 2), (300, 37, 5), (65, 130, 8), (1001, 64, 3)], [(7, 3, 2), (300, 37, 5)])


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("m", "n", "count"), SIZES)
def test_products_are_those_of_float64(m: int, n: int, count: int) -> None:
    torch.manual_seed(0)
    weight, bias, x, y = torch.randn(m, n), torch.randn(m), torch.randn(count, n), torch.randn(count, m)
    expected = torch.addmm(bias.double(), x.double(), weight.double().t())
    torch.testing.assert_close(compiled.linear(x, weight, bias).double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(compiled.matmul(y, weight).double(), y.double() @ weight.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("batch", "steps", "units"), [(1, 5, 13), (2, 3, 40)])
def test_a_layer_and_its_gradients_are_the_equations(batch: int, steps: int, units: int) -> None:
    torch.manual_seed(0)
    shapes = (
        (batch, steps, 6),
        (batch, units),
        (batch, units),
        (4 * units, 6),
        (4 * units, units),
        (4 * units,),
        (4 * units,),
    )
    inputs = [(0.4 * torch.randn(shape)).requires_grad_() for shape in shapes]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    factors = FactoredGradients([inputs[3], inputs[4]])
    with factoring(factors):
        fast = lstm_segment(*inputs)
    rows = [lstm_layer(wide[0][row], wide[1][row], wide[2][row], *wide[3:]) for row in range(batch)]
    slow = [torch.stack(part) for part in zip(*rows, strict=True)]
    actual = list(torch.autograd.grad(sum(out.sin().sum() for out in fast), inputs, allow_unused=True))
    expected = torch.autograd.grad(sum(out.sin().sum() for out in slow), wide)
    assert actual[3] is None and actual[4] is None  # left in factors
    with torch.no_grad():
        actual[3:5] = [whole(factors.of(matrix)) for matrix in inputs[3:5]]
    for mine, reference in zip([*fast, *actual], [*slow, *expected], strict=True):
        torch.testing.assert_close(mine, reference.float(), rtol=1e-4, atol=1e-5)


def gradient(kind: str, weight: torch.Tensor) -> Any:
    if kind == "none":
        return None
    if kind == "whole":
        return torch.randn_like(weight)
    factored, (m, n) = FactoredGradient(weight), weight.shape
    for count in {"product": [5], "rows": [], "everything": [4, 1]}[kind]:
        factored.add_product(torch.randn(count, m), torch.randn(count, n))
    if kind != "product":
        factored.add_rows(torch.tensor([m - 1, 0, 2, m - 1, 3]), torch.randn(5, n))
    factored.rest = torch.randn(m, n) if kind == "everything" else None
    return factored


@pytest.mark.parametrize("kind", ["none", "whole", "product", "rows", "everything"])
@pytest.mark.parametrize("shape", [(5, 3), (131, 50)])
def test_a_step_is_the_rule(shape: tuple[int, int], kind: str) -> None:
    torch.manual_seed(0)
    static, delta, rms = torch.randn(shape), torch.randn(shape), torch.rand(shape)
    rms[0, 0], step = 0.0, compiled.Step(0.01, 0.1, 1.5)  # some decay is bounded by 1
    moved, g = torch.empty(shape), gradient(kind, static)
    plain = torch.zeros(shape) if g is None else whole(g)
    assert plain is not None
    expected = delta * (1 - (1.5 * rms).clamp(max=1)) - 0.01 * plain / (rms + 0.1)
    compiled.displace(g, step, rms=rms, static=static, delta=delta, moved=moved)
    torch.testing.assert_close(delta, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(moved, static + delta)


def test_the_number_of_threads_changes_no_bit(threads: None) -> None:
    torch.manual_seed(0)
    weight, x, y, rms = torch.randn(4100, 70), torch.randn(5, 70), torch.randn(5, 4100), torch.rand(4100, 70)
    g, results = gradient("everything", weight), []
    for count in (1, 3):
        torch.set_num_threads(count)
        delta, moved = torch.zeros_like(weight), torch.empty_like(weight)
        step = compiled.Step(0.1, 0.1, 0.1)
        compiled.displace(g, step, rms=rms, static=weight, delta=delta, moved=moved)
        results.append((compiled.linear(x, weight), compiled.matmul(y, weight), delta, moved))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def gated(rms: torch.Tensor, fisher: torch.Tensor, static: torch.Tensor, *, tied: bool, hidden: int) -> GatedUpdate:
    """An update of the weights `static` (n,) with a network whose gates are far from 1."""
    torch.manual_seed(1)
    network = GateNetwork(GateSettings(hidden=hidden, tied=tied), 2)
    torch.nn.init.normal_(network.output)
    torch.nn.init.normal_(network.output_bias)
    base = RootMeanSquare(DynamicSettings(rate=0.01, epsilon=1e-3, decay=0.3), rms)
    network.requires_grad_(False).to(static.dtype)
    update = GatedUpdate(base, network, Features(base, fisher, (-3.0, 2.0)), weights_of(static))
    update.loss = static.new_tensor(0.4)
    return update


def weights_of(static: torch.Tensor) -> MovingWeights:
    """As much of moving weights as an update looks at."""
    return SimpleNamespace(largest=len(static), static=[static], delta=torch.zeros_like(static))  # type: ignore


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("n", "hidden"), fast_then_full([(2, 1), (31, 8), (64, 3), (5003, 8)], [(31, 8), (5003, 8)]))
def test_a_gated_step_is_that_of_float64(n: int, hidden: int, tied: bool, threads: None) -> None:
    """Gradients and displacements of all sizes, and some that are 0."""
    torch.manual_seed(0)
    sizes = 10.0 ** torch.randint(-9, 1, (4, n))
    grad, delta, static = torch.randn(3, n) * sizes[:3]
    rms, fisher = torch.rand(2, n) * sizes[2:]
    rms[0] = grad[: n // 4] = delta[n // 8 : n // 3] = 0.0
    wide = gated(rms.double(), fisher.double(), static.double(), tied=tied, hidden=hidden)
    expected = delta.double()
    wide(Piece(1, slice(0, n), expected, static.double(), torch.empty(n)), grad.double())
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        fast, moving = gated(rms, fisher, static, tied=tied, hidden=hidden), (delta.clone(), torch.empty(n))
        assert fast.at_once(Piece(1, slice(0, n), moving[0], static, moving[1]), grad)
        assert "memory" not in vars(fast)  # what only torch's way needs
        results.append(moving)
    (actual, moved), (other, _) = results
    assert torch.equal(actual, other) and torch.equal(moved, static + actual)
    # Where terms cancel, what is left is small beside them.
    scale = delta.abs() + static.abs() * (not tied) + (grad * 0.01 / (rms + 1e-3)).abs()
    assert ((actual - expected).abs() / scale.clamp(min=1e-30)).max() < 1e-4
    assert not torch.allclose(actual, delta, rtol=1e-2)


def test_a_copy_of_a_reader_moves_its_own_weights() -> None:
    """As the audit copies readers: what the copy learns must not reach the one whose scores are reported."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(EmbeddingConfig(24), LSTMConfig(layers=1, hidden=24), SoftmaxConfig()), 300).eval()
    ids = np.random.default_rng(0).integers(0, 300, 400)
    reader = DynamicEvaluation(model, DynamicSettings(rate=0.03, segment=5), collect(model, ids, 0, batch_size=20))
    reader.start(1)

    def learn(learner: Reader, first: int) -> None:
        learner.predict(torch.from_numpy(ids[None, first : first + 5]))
        learner.observe(torch.from_numpy(ids[None, first + 1 : first + 6]))

    learn(reader, 0)
    copy, before = copied(reader), reader.snapshot()["delta"]
    learn(copy, 5)
    assert torch.equal(reader.snapshot()["delta"], before)
    assert not torch.equal(copy.snapshot()["delta"], before)
    learn(reader, 5)
    assert torch.equal(copy.snapshot()["delta"], reader.snapshot()["delta"])


@pytest.mark.parametrize("segment", [5, 20])
@pytest.mark.parametrize("tied", [True, False])
def test_a_text_reads_the_same_without_a_compiler(segment: int, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = ModelConfig(EmbeddingConfig(24), LSTMConfig(layers=2, hidden=24), SoftmaxConfig(tied=tied))
    model, ids = build_model(config, 300).eval(), np.random.default_rng(0).integers(0, 300, 400)
    how, statistics = DynamicSettings(rate=0.003, decay=0.01, segment=segment), collect(model, ids, 0, batch_size=20)
    passes = compiled.library()
    results = []
    for available in (passes, None):
        monkeypatch.setattr(compiled, "library", lambda there=available: there)
        reader = DynamicEvaluation(model, how, statistics)
        results.append((read(reader, ids, 0).nats, reader.weights.delta.clone()))
    (nats, delta), (plain, reference) = results
    assert nats == pytest.approx(plain, rel=1e-6) and plain != pytest.approx(400 * np.log(300), rel=1e-3)
    torch.testing.assert_close(delta, reference, rtol=1e-3, atol=1e-5)


def test_nothing_is_compiled_for_tensors_that_the_passes_do_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "library", lambda: pytest.fail("compiled"))
    fits = torch.ones(3, 2)
    assert not any(compiled.takes(fits, other) for other in (fits.double(), fits.t(), fits.to("meta")))


@pytest.mark.full
def test_what_cannot_be_compiled_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("BACKSTORY_CACHE", str(tmp_path))
    find = compiled.library.__wrapped__
    assert find() is not None and len(list(tmp_path.glob("kernels-*/kernels.so"))) == 1
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled twice"))
        assert find() is not None
    monkeypatch.setattr(compiled, "FLAGS", ("-no-such-flag",))
    assert find() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find() is None
    monkeypatch.undo()
    monkeypatch.setenv(compiled.VARIABLE, "0")
    assert find() is None


@pytest.mark.full
def test_another_process_never_loads_a_part_of_the_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theirs, run = tmp_path / compiled.NAME, subprocess.run
    theirs.write_bytes(b"compiled by another process")

    def watched(command: list[str], **options: Any) -> Any:
        done = run(command, **options)
        assert theirs.read_bytes() == b"compiled by another process", "until all is written"
        return done

    monkeypatch.setattr(subprocess, "run", watched)
    compiler = next(path for name in ("cc", "gcc", "clang") if (path := shutil.which(name)))
    source = Path(compiled.__file__).with_name("compiled.c")
    compiled._compile(compiler, source, tmp_path)
    assert theirs.stat().st_size > 1000
    assert [path.name for path in tmp_path.iterdir()] == [compiled.NAME]
