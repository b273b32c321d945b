"""Scores of many contexts at once against a loop that reads one at a time."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from copying import Copying
from torch.utils._python_dispatch import TorchDispatchMode

from backstory.config import EmbeddingConfig, LSTMConfig, MixtureConfig, ModelConfig, SoftmaxConfig
from backstory.context import ModelScorer
from backstory.context.scorer import STEPS
from backstory.models import LanguageModel, Precision, build_model

TYPES = 53
FLOAT32 = Precision(torch.float32, "a test")
LENGTHS = (1, 2, 5, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS, 2 * STEPS + 9, 7, 1)


def build(head: SoftmaxConfig | MixtureConfig) -> LanguageModel:
    """A model in float64 with weights as large as after training, so that contexts matter."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(EmbeddingConfig(7), LSTMConfig(layers=2, hidden=6), head), TYPES).double()
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
    np.testing.assert_allclose(ModelScorer(model, FLOAT32).score(contexts, targets), expected, rtol=0, atol=1e-10)
    assert expected.std() > 0.1  # the contexts matter


@pytest.mark.parametrize("memory", [1, 200_000, 600_000, 1 << 40])
def test_the_budget_does_not_change_the_scores(model: LanguageModel, memory: int) -> None:
    contexts, targets = questions()
    one_by_one = ModelScorer(model, FLOAT32, 1)
    assert one_by_one.rows == 1
    expected = one_by_one.score(contexts, targets)
    np.testing.assert_allclose(
        ModelScorer(model, FLOAT32, memory).score(contexts, targets), expected, rtol=0, atol=1e-12
    )


def test_a_larger_budget_takes_more_rows() -> None:
    small, large = (ModelScorer(build(SoftmaxConfig()), FLOAT32, memory) for memory in (1 << 20, 1 << 22))
    assert 1 < small.rows < large.rows <= 1024
    assert large.rows == pytest.approx(4 * small.rows, abs=4)


def test_the_order_of_the_questions_is_that_of_the_answers() -> None:
    model, (contexts, targets) = build(SoftmaxConfig()), questions()
    scorer = ModelScorer(model, FLOAT32, 300_000)
    forward, backward = scorer.score(contexts, targets), scorer.score(contexts[::-1], targets[::-1])
    np.testing.assert_allclose(backward[::-1], forward, rtol=0, atol=1e-12)


class Widest(TorchDispatchMode):
    """Notes the most lines of numbers over the vocabulary that any tensor held."""

    lines = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.ndim and out.shape[-1] == TYPES:
            self.lines = max(self.lines, out.numel() // TYPES)
        return out


def test_the_output_layer_runs_on_last_positions_alone() -> None:
    # Nine contexts: more than the embedding's size of 7, whose transpose is as wide as the vocabulary too.
    model, (contexts, targets) = build(SoftmaxConfig()), questions((90,) * 9)
    scorer = ModelScorer(model, FLOAT32)
    with Widest() as widest:
        scorer.score(contexts, targets)
    assert widest.lines == 9


def test_an_empty_context_is_refused() -> None:
    scorer = ModelScorer(build(SoftmaxConfig()), FLOAT32)
    with pytest.raises(ValueError, match="at least one token"):
        scorer.score([np.array([1, 2]), np.array([], np.int64)], np.array([3, 4]))


def test_no_question_has_no_answer() -> None:
    assert ModelScorer(build(SoftmaxConfig()), FLOAT32).score([], np.empty(0, np.int64)).shape == (0,)


@pytest.mark.parametrize("exact, pieces", [(True, [STEPS, STEPS, 22]), (False, [2 * STEPS + 22])])
def test_a_model_whose_state_is_not_exact_reads_a_context_in_one_piece(exact: bool, pieces: list[int]) -> None:
    model = Copying(TYPES, 3, exact_state=exact)
    scorer = ModelScorer(model, FLOAT32)
    model.pieces.clear()
    scorer.score([np.zeros(2 * STEPS + 22, np.int64)], np.array([0]))
    assert model.pieces == pieces


def test_progress_counts_every_token_once() -> None:
    told: list[int] = []
    contexts, targets = questions()
    ModelScorer(build(SoftmaxConfig()), FLOAT32, 300_000).score(contexts, targets, told.append)
    assert len(told) > 1
    assert sum(told) == sum(LENGTHS)


@pytest.mark.parametrize("set_mode", [torch.nn.Module.train, torch.nn.Module.eval], ids=["train", "eval"])
def test_dropout_is_off_while_scoring_and_the_mode_comes_back(set_mode: Callable[[LanguageModel], object]) -> None:
    model, (contexts, targets) = build(SoftmaxConfig()), questions((5, 9))
    expected = naive(model.eval(), contexts, targets)
    set_mode(model)
    before = model.training
    np.testing.assert_allclose(ModelScorer(model, FLOAT32).score(contexts, targets), expected, rtol=0, atol=1e-10)
    assert model.training is before
