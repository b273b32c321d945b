"""Scores of many contexts at once against a loop that reads one at a time."""

from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from adaptive import Learning
from copying import Copying
from torch.utils._python_dispatch import TorchDispatchMode

from backstory.config import (
    EmbeddingConfig,
    GateConfig,
    LSTMConfig,
    MixtureConfig,
    ModelConfig,
    NoBufferConfig,
    SoftmaxConfig,
    SpanBufferConfig,
)
from backstory.config.readers import CacheSettings
from backstory.context import ReaderScorer
from backstory.context.scorer import STEPS
from backstory.models import ComposedModel, LanguageModel, Precision, build_model
from backstory.readers import Reader, StaticReader
from backstory.readers.neural_cache import NeuralCache
from backstory.utils.errors import UserError

TYPES = 53
FLOAT32 = Precision(torch.float32, "a test")
LENGTHS = (1, 2, 5, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS, 2 * STEPS + 9, 7, 1)

NO_BUFFER = NoBufferConfig()


def build(head: SoftmaxConfig | MixtureConfig, buffer: NoBufferConfig | SpanBufferConfig = NO_BUFFER) -> ComposedModel:
    """A model in float64 with weights as large as after training, so that contexts matter."""
    torch.manual_seed(0)
    core = LSTMConfig(layers=2, hidden=6)
    model = build_model(ModelConfig(EmbeddingConfig(7), core, head, buffer), TYPES).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)
    return model


@pytest.fixture(params=[SoftmaxConfig(), MixtureConfig(experts=3)], ids=lambda head: head.kind)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return build(request.param)


def questions(lengths: tuple[int, ...] = LENGTHS) -> tuple[list[np.ndarray], np.ndarray]:
    """Contexts of these lengths, as a memory-mapped split has them, with a target each."""
    random = np.random.default_rng(0)
    contexts = [random.integers(0, TYPES, n).astype(np.uint16) for n in lengths]
    return contexts, random.integers(0, TYPES, len(lengths)).astype(np.uint16)


@torch.no_grad()
def naive(model: LanguageModel, contexts: list[np.ndarray], targets: np.ndarray) -> np.ndarray:
    """The definition: a fresh state for every context, one token at a time, the whole distribution after the last."""
    scores = []
    for context, target in zip(contexts, targets, strict=True):
        state, prediction = model.start(1), None
        for token in context:
            prediction, state = model(torch.tensor([[int(token)]]), state)
        assert prediction is not None
        scores.append(prediction.log_probs()[0, -1, int(target)].item())
    return np.array(scores)


def test_scores_are_those_of_one_context_at_a_time(model: LanguageModel) -> None:
    contexts, targets = questions()
    expected = naive(model.eval(), contexts, targets)
    np.testing.assert_allclose(
        ReaderScorer(StaticReader(model, FLOAT32)).score(contexts, targets), expected, rtol=0, atol=1e-10
    )
    assert expected.std() > 0.1  # the contexts matter


@pytest.mark.parametrize("memory", [1, 200_000, 600_000, 1 << 40])
def test_the_budget_does_not_change_the_scores(model: LanguageModel, memory: int) -> None:
    contexts, targets = questions()
    one_by_one = ReaderScorer(StaticReader(model, FLOAT32), 1)
    assert one_by_one.rows(5) == 1
    expected = one_by_one.score(contexts, targets)
    np.testing.assert_allclose(
        ReaderScorer(StaticReader(model, FLOAT32), memory).score(contexts, targets), expected, rtol=0, atol=1e-12
    )


WORDS = SpanBufferConfig(size=48, vectors="words", values="following", attention="bilinear", gate=GateConfig(1.0, 1.0))
SPANS = SpanBufferConfig(size=24, span=4, gate=GateConfig(1.0, 1.0))
CACHE = CacheSettings(window=40, theta=10.0, weight=0.4)
REMEMBERING: dict[str, Callable[[], Reader]] = {
    "buffer of words": lambda: StaticReader(build(SoftmaxConfig(), WORDS), FLOAT32),
    "buffer of spans": lambda: StaticReader(build(SoftmaxConfig(), SPANS), FLOAT32),
    "cache": lambda: NeuralCache(StaticReader(build(SoftmaxConfig()), FLOAT32), CACHE),
    "sure cache": lambda: NeuralCache(
        StaticReader(build(SoftmaxConfig()), FLOAT32), CacheSettings(40, 50.0, 0.4, confidence=0.1)
    ),
    "buffer and cache": lambda: NeuralCache(StaticReader(build(SoftmaxConfig(), WORDS), FLOAT32), CACHE),
}


@torch.no_grad()
def read_alone(reader: Reader, context: np.ndarray, target: int) -> float:
    """The definition: one text that begins with the context, read token by token, and the distribution after its last."""
    tokens = [torch.tensor([[int(token)]]) for token in context]
    reader.start(1)
    for token, following in pairwise(tokens):
        reader.predict(token)
        reader.observe(following)
    return reader.predict(tokens[-1]).log_probs()[0, -1, target].item()


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "memory"),
    list(product(REMEMBERING, [1, 3_000_000, 1 << 40])),
)
def test_what_remembers_is_asked_with_the_context_alone_in_memory(name: str, memory: int) -> None:
    reader, (contexts, targets) = REMEMBERING[name](), questions()
    # Recurring words, without which a memory has nothing to gain.
    targets = np.array([context[len(context) // 2] for context in contexts])
    expected = np.array([read_alone(reader, c, int(t)) for c, t in zip(contexts, targets, strict=True)])
    reader.observe(torch.zeros(1, 1, dtype=torch.long))  # something was read before, which is forgotten
    scorer = ReaderScorer(reader, memory)
    np.testing.assert_allclose(scorer.score(contexts, targets), expected, rtol=0, atol=1e-10)
    again = scorer.score(contexts[::-1], targets[::-1])
    np.testing.assert_allclose(again[::-1], expected, rtol=0, atol=1e-10)
    without = build(SoftmaxConfig())
    without.load_state_dict(reader.model.state_dict(), strict=False)
    forgetful = naive(without.eval(), contexts, targets)
    remembers = np.array(LENGTHS) > 1
    np.testing.assert_allclose(expected[~remembers], forgetful[~remembers], rtol=0, atol=1e-10)
    assert np.abs(expected - forgetful)[np.array(LENGTHS) > STEPS].max() > 1e-3


def test_a_reader_whose_weights_move_is_refused() -> None:
    with pytest.raises(UserError, match=r"the reader learning learns as it reads.*static or cache"):
        ReaderScorer(Learning(build(SoftmaxConfig())))


@pytest.mark.parametrize("make", REMEMBERING.values(), ids=REMEMBERING)
def test_what_is_remembered_takes_of_the_budget(make: Callable[[], Reader]) -> None:
    plain, remembering = (
        ReaderScorer(StaticReader(build(SoftmaxConfig()), FLOAT32), 1 << 24),
        ReaderScorer(make(), 1 << 24),
    )
    assert 1 < remembering.rows(100) < plain.rows(100)


def test_a_larger_budget_takes_more_rows() -> None:
    small, large = (
        ReaderScorer(StaticReader(build(SoftmaxConfig()), FLOAT32), memory) for memory in (1 << 20, 1 << 22)
    )
    assert 1 < small.rows(STEPS) < large.rows(STEPS) <= 1024
    assert large.rows(STEPS) == pytest.approx(4 * small.rows(STEPS), abs=4)


def test_the_order_of_the_questions_is_that_of_the_answers() -> None:
    model, (contexts, targets) = build(SoftmaxConfig()), questions()
    scorer = ReaderScorer(StaticReader(model, FLOAT32), 300_000)
    forward, backward = scorer.score(contexts, targets), scorer.score(contexts[::-1], targets[::-1])
    np.testing.assert_allclose(backward[::-1], forward, rtol=0, atol=1e-12)


class Widest(TorchDispatchMode):
    """Records the largest number of rows over the vocabulary in any tensor."""

    lines = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.ndim and out.shape[-1] == TYPES:
            self.lines = max(self.lines, out.numel() // TYPES)
        return out


def test_the_output_layer_runs_on_last_positions_alone() -> None:
    # Nine contexts: more than the embedding's size of 7, whose transpose is as wide as the vocabulary too.
    model, (contexts, targets) = build(SoftmaxConfig()), questions((90,) * 9)
    scorer = ReaderScorer(StaticReader(model, FLOAT32))
    with Widest() as widest:
        scorer.score(contexts, targets)
    assert widest.lines == 9


def test_an_empty_context_is_refused() -> None:
    scorer = ReaderScorer(StaticReader(build(SoftmaxConfig()), FLOAT32))
    with pytest.raises(ValueError, match="at least one token"):
        scorer.score([np.array([1, 2]), np.array([], np.int64)], np.array([3, 4]))


def test_no_question_has_no_answer() -> None:
    assert ReaderScorer(StaticReader(build(SoftmaxConfig()), FLOAT32)).score([], np.empty(0, np.int64)).shape == (0,)


@pytest.mark.parametrize("exact, pieces", [(True, [STEPS, STEPS, 22]), (False, [2 * STEPS + 22])])
def test_a_model_whose_state_is_not_exact_reads_a_context_in_one_piece(exact: bool, pieces: list[int]) -> None:
    model = Copying(TYPES, 3, exact_state=exact)
    scorer = ReaderScorer(StaticReader(model, FLOAT32))
    scorer.score([np.zeros(2 * STEPS + 22, np.int64)], np.array([0]))
    assert model.pieces == 2 * pieces  # the first time to measure the cost of a context


def test_progress_counts_every_token_once() -> None:
    told: list[int] = []
    contexts, targets = questions()
    ReaderScorer(StaticReader(build(SoftmaxConfig()), FLOAT32), 300_000).score(contexts, targets, told.append)
    assert len(told) > 1
    assert sum(told) == sum(LENGTHS)


@pytest.mark.parametrize("set_mode", [torch.nn.Module.train, torch.nn.Module.eval], ids=["train", "eval"])
def test_dropout_is_off_while_scoring_and_the_mode_comes_back(set_mode: Callable[[LanguageModel], object]) -> None:
    model, (contexts, targets) = build(SoftmaxConfig()), questions((5, 9))
    expected = naive(model.eval(), contexts, targets)
    set_mode(model)
    before = model.training
    np.testing.assert_allclose(
        ReaderScorer(StaticReader(model, FLOAT32)).score(contexts, targets), expected, rtol=0, atol=1e-10
    )
    assert model.training is before
