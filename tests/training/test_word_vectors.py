"""Word vectors from counts: the counts and the information against naive ones, and trainings that begin with them."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import arrays
from runs import with_settings, with_training

from backstory.config import RunConfig
from backstory.models import WordEmbedding, build_model
from backstory.runs.run import load_run
from backstory.training import loop, word_vectors
from backstory.training.word_vectors import cooccurrences, initialise_from_counts, ppmi

Train = Callable[..., dict]
TYPES = 7


def naive_counts(ids: list[int]) -> Counter[tuple[int, int]]:
    counts: Counter[tuple[int, int]] = Counter()
    for i, word in enumerate(ids):
        for j, other in enumerate(ids):
            if 0 < abs(i - j) <= word_vectors.WINDOW:
                counts[word, other if j > i else TYPES + other] += 1 / abs(i - j)  # type: ignore[assignment]
    return counts


texts = arrays(np.int32, st.integers(0, 40), elements=st.integers(0, TYPES - 1))


@given(ids=texts, chunk=st.integers(1, 50))
def test_counts_and_their_information_are_those_of_a_naive_count(ids: np.ndarray, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_vectors, "CHUNK", chunk)
        counts = cooccurrences(ids, TYPES)
    expected = torch.zeros(TYPES, 2 * TYPES)
    for (word, other), count in naive_counts(ids.tolist()).items():
        expected[word, other] = count
    assert torch.allclose(counts.to_dense(), expected, atol=1e-5)

    totals = expected.sum(1).tolist()
    smoothed = [total**word_vectors.SMOOTHING for total in expected.sum(0).tolist()]
    information = ppmi(counts).to_dense()
    for word in range(TYPES):
        for other in range(2 * TYPES):
            count, value = expected[word, other].item(), 0.0
            if count:
                value = max(0.0, math.log(count / (totals[word] * smoothed[other] / sum(smoothed))))
            assert information[word, other].item() == pytest.approx(value, abs=1e-4)


def phrases() -> np.ndarray:
    """A text in which words 0 and 1 stand in the same contexts, as do 2 and 3; word 6 does not occur."""
    random = np.random.default_rng(0)
    return np.concatenate([[4, random.integers(0, 2), 4, 5, random.integers(2, 4), 5] for _ in range(300)])


@pytest.mark.parametrize("size", [4, 20])
def test_words_of_the_same_contexts_begin_close_to_each_other(size: int) -> None:
    torch.manual_seed(1)
    embedding = WordEmbedding(TYPES, size, 0.0)
    before = embedding.weight.detach().clone()
    initialise_from_counts(embedding, phrases(), seed=3)
    after = embedding.weight.detach()
    assert torch.equal(after[6], before[6]) and not torch.equal(after[:6], before[:6])
    assert after[:6].std().item() == pytest.approx(before.std().item(), rel=0.3)

    def cosine(i: int, j: int) -> float:
        return torch.cosine_similarity(after[i], after[j], dim=0).item()

    assert min(cosine(0, 1), cosine(2, 3)) > 0.9 > max(cosine(0, 2), cosine(1, 3)) + 0.5


@pytest.mark.parametrize("length", [1, 2, 50])
def test_a_text_of_one_word_leaves_the_vectors_random(length: int) -> None:
    embedding = WordEmbedding(TYPES, 4, 0.0)
    before = embedding.weight.detach().clone()
    initialise_from_counts(embedding, np.zeros(length, np.int32), seed=3)
    assert torch.equal(embedding.weight, before)


def test_random_numbers_continue_as_if_nothing_had_been_drawn() -> None:
    embedding = WordEmbedding(TYPES, 4, 0.0)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    initialise_from_counts(embedding, phrases(), seed=3)
    assert torch.equal(torch.rand(3), expected)


def begun_with(config: RunConfig, **training: Any) -> RunConfig:
    return with_settings(with_training(config, **training), {"model.embedding.initialisation": "ppmi"})


@pytest.mark.full
def test_a_training_begins_with_them_and_resumes_to_what_it_would_have_been(
    tiny_config: RunConfig, quietly: Train, resumes_exactly: Callable[..., Any], tmp_path: Path
) -> None:
    still = begun_with(tiny_config, learning_rate=1e-30, weight_decay=0.0)
    quietly(still, tmp_path / "still")
    run = load_run(tmp_path / "still")
    torch.manual_seed(still.seed)
    begun = build_model(still.model, len(run.vocabulary)).embedding
    ids = run.vocabulary.encode((Path(still.text.corpus) / "train.txt").read_text())
    initialise_from_counts(begun, ids, still.seed)
    assert torch.allclose(run.model.embedding.weight, begun.weight, atol=1e-6)

    resumes_exactly(begun_with(tiny_config, epochs=2), 3)


def test_a_run_that_begins_with_anothers_weights_keeps_those(
    tiny_config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quietly(tiny_config, tmp_path / "base")
    still = begun_with(tiny_config, learning_rate=1e-30, weight_decay=0.0)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(loop.Trainer, "train", interrupted)  # after the first checkpoint, and before the first step
        quietly(still, tmp_path / "run", init_from=tmp_path / "base")
    quietly(still, tmp_path / "run", mode="resume")
    base, run = (load_run(tmp_path / name).model.embedding.weight for name in ("base", "run"))
    assert torch.equal(base, run)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt
