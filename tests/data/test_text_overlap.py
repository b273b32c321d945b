"""Compare the overlap of splits with a plain count, and refuse splits that are the same text."""

import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.config import TextConfig
from backstory.data import Dataset, prepare
from backstory.data import overlap as module
from backstory.data.overlap import WINDOW, check_splits_differ, overlap, overlaps, shared
from backstory.storage import disk_cache
from backstory.utils.errors import UserError
from backstory.utils.scores import NOTABLE, SplitOverlap


def naive(ids: list[int], other: list[int], window: int, unknown: int | None = None) -> float:
    """The share by comparing windows as tuples, those apart that are mostly unknown."""
    theirs = {tuple(other[i : i + window]) for i in range(len(other) - window + 1)}
    ours = [tuple(ids[i : i + window]) for i in range(len(ids) - window + 1)]
    return (
        sum(one in theirs and one.count(unknown) <= window / 2 for one in ours) / len(ours) if ours and theirs else 0.0
    )


texts = st.lists(st.integers(0, 2), max_size=40)


@given(texts, texts, st.integers(1, 9), st.integers(1, 50), st.sampled_from([None, 0]))
def test_the_share_is_that_of_a_plain_count(
    ids: list[int], other: list[int], window: int, at_once: int, unknown: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "AT_ONCE", at_once)
        found = shared(np.array(ids, np.uint16), np.array(other, np.int32), window, unknown)
    assert found == pytest.approx(naive(ids, other, window, unknown))


def words(count: int, seed: int) -> str:
    chosen = random.Random(seed)
    return "".join(f"w{chosen.randrange(400)} " + ("\n" if i % 10 == 9 else "") for i in range(count))


def folder(path: Path, **texts: str) -> Dataset:
    path.mkdir(exist_ok=True)
    for split, text in texts.items():
        (path / f"{split}.txt").write_text(text)
    return prepare(TextConfig(corpus=str(path)))


def test_a_passage_of_the_training_text_is_found_in_the_test_text(tmp_path: Path) -> None:
    train, passage = words(3000, 1), words(110, 2)
    dataset = folder(tmp_path, train=train + passage, valid=words(400, 3), test=words(500, 4) + passage)
    found = {(one.split, one.other): one for one in overlaps(dataset) or []}
    assert found["valid", "train"].share == 0 and found["test", "valid"].share == 0
    test = found["test", "train"]
    tokens = len(dataset.splits["test"].ids)
    assert test.window == WINDOW == 50
    assert test.share == pytest.approx((121 + 1 - 50 + 1) / (tokens - 49))  # with the <eos> before it, which both have
    said = f"{test.share:.1%} of test's passages of 50 words occur in train too"
    assert test.warning("word") == said
    assert SplitOverlap("test", "train", 50, NOTABLE).warning("word") is None


def test_it_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = folder(tmp_path / "corpus", train=words(300, 1), valid=words(100, 2), test=words(100, 3))
    first = overlaps(dataset)
    monkeypatch.setattr(module, "shared", lambda *_: pytest.fail("measured again"))
    assert overlaps(dataset) == first
    assert len(list(disk_cache.folder().glob(f"overlap-*{dataset.fingerprint[:32]}"))) == 1


def test_a_text_shorter_than_a_window_is_one_window(tmp_path: Path) -> None:
    dataset = folder(tmp_path, train=words(300, 1), valid=words(100, 2), test=words(100, 3))
    ids = dataset.splits["train"].ids
    assert overlap(dataset, ids[100:112], "text", "train") == SplitOverlap("text", "train", 12, 1.0)
    assert overlap(dataset, ids[100:112][::-1], "text", "train").share == 0.0


def test_characters_have_longer_windows(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(words(300, 1))
    for split in ("valid", "test"):
        (tmp_path / f"{split}.txt").write_text(words(300, 2))
    dataset = prepare(TextConfig(corpus=str(tmp_path), tokenizer="characters"))
    assert [one.window for one in overlaps(dataset) or []] == [250] * 3


def test_validation_that_is_the_test_text_is_refused(tmp_path: Path) -> None:
    dataset = folder(tmp_path, train=words(300, 1), valid=words(100, 2), test=words(100, 2))
    with pytest.raises(UserError, match=r"validation and test of .* are the same text.*--allow-equal-splits"):
        check_splits_differ(dataset, False)
    check_splits_differ(dataset, True)
    assert [one.share for one in overlaps(dataset) or []] == [0, 0, 1]


def test_texts_that_are_mostly_unknown_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """All of them are `<unk> <unk> ...`, whatever they say."""
    for split, word in (("train", "ann"), ("valid", "der"), ("test", "ein")):
        (tmp_path / f"{split}.txt").write_text(f"{word} " * 200)
    dataset = prepare(TextConfig(corpus=str(tmp_path)))
    assert np.array_equal(dataset.splits["valid"].ids, dataset.splits["test"].ids)
    check_splits_differ(dataset, False)
    assert [one.share for one in overlaps(dataset) or []] == [0, 0, 0]


@pytest.mark.parametrize("corpus", ["recall", "copy"])
def test_what_is_drawn_is_not_measured(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = prepare(TextConfig(corpus=corpus))
    monkeypatch.setattr(module, "shared", lambda *_: pytest.fail("measured"))
    assert overlaps(dataset) is None
    check_splits_differ(dataset, False)


def test_a_million_tokens_take_a_second_or_two() -> None:
    chosen = np.random.default_rng(1)
    train, test = chosen.integers(0, 10_000, 1_000_000), chosen.integers(0, 10_000, 80_000)
    test[:1000] = train[5000:6000]
    began = time.process_time()
    assert shared(test, train, 50) == pytest.approx(951 / 79_951)
    assert time.process_time() - began < 2


@pytest.mark.usefixtures("shared_cache")
def test_the_usual_corpora_stay_silent(data_dir: Path) -> None:
    """Penn Treebank's validation text has some sentences of the training text, 0.7% of its windows."""
    found = overlaps(prepare(TextConfig(corpus="ptb"), data_dir)) or []
    assert [round(one.share, 4) for one in found] == [0.0073, 0.0003, 0.0003]
    assert not any(one.warning("word") for one in found)
