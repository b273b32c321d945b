"""Pieces folded into words: every word once, a score of all of its pieces, on real text."""

from dataclasses import replace
from pathlib import Path

import foreign
import numpy as np
import pytest
import torch
from tiers import fast_then_full

from backstory.context import Folded, WordScorer, fold
from backstory.context.scorer import ReaderScorer
from backstory.data import Split, Vocabulary, encode_split
from backstory.models import LanguageModel
from backstory.readers import StaticReader

TEXT = " = Robert = \n Robert <unk> is an English film , television and theatre actor . He had a 2.5 @-@ hour\nrole in 99 . \n"


class Uniform:
    """Every piece has the same probability, whatever stands before it."""

    def score(self, contexts: list[np.ndarray], targets: np.ndarray, progress: object = None) -> np.ndarray:
        assert all(len(context) for context in contexts)
        return np.full(len(targets), -2.0)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    from backstory.interop.hugging_face import load

    folder = tmp_path_factory.mktemp("model") / "tiny"
    foreign.saved(folder, text=TEXT * 5, n_positions=64)
    return load(f"hf:{folder}").vocabulary


@pytest.fixture(scope="module")
def split(vocabulary: Vocabulary) -> Split:
    return encode_split(vocabulary, TEXT)


def test_words_are_those_of_the_text(vocabulary: Vocabulary, split: Split) -> None:
    folded = fold(vocabulary, split)
    assert folded is not None
    ends = [*folded.starts[1:], len(split.ids)]
    texts = [vocabulary.decode(split.ids[a:b]).strip(" ") for a, b in zip(folded.starts, ends, strict=True)]
    assert texts == [word for word in TEXT.replace("\n", " \n ").split(" ") if word]
    assert len(texts) == split.words
    for word, a, b in zip(folded.ids, folded.starts, ends, strict=True):
        assert folded.pieces[word].tolist() == split.ids[a:b].tolist()


def test_figures_of_words_are_sums(vocabulary: Vocabulary, split: Split) -> None:
    folded, nats = fold(vocabulary, split), np.random.default_rng(0).random(len(split.ids))
    assert folded is not None
    sums = np.add.reduceat(nats, folded.starts, -1)
    assert sums.shape == folded.ids.shape
    assert sums.sum() == pytest.approx(nats.sum())
    assert sums[0] == pytest.approx(nats[: folded.starts[1]].sum())


@pytest.mark.parametrize("name", fast_then_full(["wikitext-2", "stdlib"], ["wikitext-2"]))
def test_every_word_of_a_real_text_is_folded_once(
    vocabulary: Vocabulary, name: str, request: pytest.FixtureRequest
) -> None:
    from backstory.data import find
    from backstory.data.corpora.text_files import text_blocks

    data_dir: Path | None = request.getfixturevalue("data_dir") if name == "wikitext-2" else None
    text = "".join(text_blocks(find(name, data_dir).sources["valid"][0]))[:40_000]
    split = encode_split(vocabulary, text)
    folded = fold(vocabulary, split)
    assert folded is not None
    again = np.concatenate([folded.pieces[word] for word in folded.ids])
    assert np.array_equal(again, split.ids)
    words = [vocabulary.decode(folded.pieces[word]).strip() for word in folded.ids]
    assert [w for w in words if w] == text.split()


def test_a_word_is_scored_piece_by_piece() -> None:
    pieces = [np.array([3]), np.array([4, 5]), np.array([6, 7, 8])]
    scorer, told = WordScorer(Uniform(), pieces), []
    found = scorer.score([np.array([0, 1]), np.array([2])], np.array([2, 0]), told.append)
    assert found.tolist() == [-6.0, -2.0]


@torch.no_grad()
def test_a_word_s_score_is_the_model_s_own() -> None:
    model: LanguageModel = foreign.wrapped("Llama", 17)
    reference = foreign.causal("Llama", 17)
    random = np.random.default_rng(1)
    pieces = [random.integers(0, 17, n) for n in (1, 2, 3, 1, 4)]
    contexts = [random.integers(0, 5, n) for n in (6, 1, 9)]
    targets = np.array([4, 0, 2])
    scorer = WordScorer(ReaderScorer(StaticReader(model)), pieces, model.capabilities.maximum_length)
    for context, target, found in zip(contexts, targets, scorer.score(contexts, targets), strict=True):
        read = torch.from_numpy(np.concatenate([*(pieces[w] for w in context), pieces[target]]))
        table = torch.log_softmax(reference(input_ids=read[None]).logits[0].double(), -1)
        wanted = table[:-1].gather(1, read[1:, None])[-len(pieces[target]) :].sum().item()
        assert found == pytest.approx(wanted, abs=1e-5)


def test_contexts_that_come_to_too_many_pieces_are_counted() -> None:
    pieces = [np.array([1, 2]), np.array([3])]
    folded = Folded(np.array([0, 1, 0, 1, 1]), np.array([0, 2, 3, 5, 6]), np.arange(5), pieces, np.array([0]), 1, 7)
    positions = np.array([2, 3, 4])  # with two words before each: 4, 3 and 3 pieces before the last of their own
    assert [folded.longer(positions - 2, positions, limit) for limit in (None, 4, 3, 2)] == [0, 0, 1, 3]


def test_words_keep_their_ids_from_one_text_to_the_next(vocabulary: Vocabulary, split: Split) -> None:
    known: dict[tuple[int, ...], int] = {}
    first = fold(vocabulary, split, known)
    more = fold(vocabulary, encode_split(vocabulary, TEXT + " a new actor \n"), known)
    assert first is not None and more is not None
    assert np.array_equal(more.ids[: len(first.ids)], first.ids) and more.start == first.start
    assert [p.tolist() for p in more.pieces[: len(first.pieces)]] == [p.tolist() for p in first.pieces]
    assert more.pieces[more.start].tolist() == [vocabulary.start]


def test_contexts_that_are_too_long_are_cut() -> None:
    class Watching(Uniform):
        def score(self, contexts: list[np.ndarray], targets: np.ndarray, progress: object = None) -> np.ndarray:
            self.seen = [context.tolist() for context in contexts]
            return super().score(contexts, targets)

    inner = Watching()
    scorer = WordScorer(inner, [np.array([1, 2]), np.array([3])], maximum_length=3)
    scorer.score([np.array([0, 1, 0]), np.array([1])], np.array([0, 1]))
    assert inner.seen == [[3, 1, 2], [1, 2, 1], [3]]


@pytest.mark.full
def test_words_of_pieces_have_the_counts_and_tags_of_the_corpus_in_words(
    vocabulary: Vocabulary, data_dir: Path
) -> None:
    from backstory.config import TextConfig
    from backstory.config.examination_options import ExaminationSettings
    from backstory.context.examined_text import AnnotatedText
    from backstory.data import prepare

    pieces = replace(prepare(TextConfig(corpus="ptb"), data_dir, tokenizer=vocabulary.tokenizer), vocabulary=vocabulary)
    words = prepare(TextConfig(corpus="ptb"), data_dir)
    settings = ExaminationSettings(experiment="drop", by=("tag",))
    folded = AnnotatedText.of(pieces, "valid", settings, data_dir)
    plain = AnnotatedText.of(words, "valid", settings, data_dir)
    assert folded.tagger == plain.tagger == "gold (pos/penn/valid.txt)"
    assert folded.tags is not None and plain.tags is not None and np.array_equal(folded.tags, plain.tags)
    assert folded.counts is not None and plain.counts is not None
    assert np.array_equal(folded.counts[folded.ids], plain.counts[plain.ids])
    unknown = folded.ids == folded.unknown
    # One at the beginning of a line has no space before it, so it is another word.
    assert (
        0.95 < unknown.sum() / (plain.ids == plain.unknown).sum() <= 1 and (plain.ids[unknown] == plain.unknown).all()
    )
