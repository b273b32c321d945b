"""Compare the synthetic tasks with solvers that read only tokens, and their questions with hand-made documents."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.config import AlgorithmConfig, TextConfig
from backstory.data import Algorithm, Dataset, encode_split, prepare
from backstory.data.synthetic.algorithms import TASKS
from backstory.utils.errors import UserError

FEW = {"documents": 30, "held_out": 10}


def made(task: str, **changes: Any) -> Dataset:
    return prepare(TextConfig(task, algorithm=AlgorithmConfig(**{**FEW, **changes})))


def documents(data: Dataset, split: str) -> list[list[str]]:
    """The tokens of every document, its beginning and its end left out."""
    found = data.splits[split]
    parts = np.split(found.ids, found.documents[1:])
    out = []
    for ids in parts:
        begin, *inside, end = data.vocabulary.tokens(ids)
        assert (begin, end) == ("<bos>", "<eos>") and not {"<bos>", "<eos>"} & set(inside)
        out.append(inside)
    return out


# --- solvers ---


def solve(task: str, inside: list[str]) -> tuple[list[str], list[str], int]:
    """Question, answer and length of the tokens of a document, by reading them alone."""
    if task == "repeat-copy":
        at = next(i for i, token in enumerate(inside) if token[0] == "x")
        return inside[: at + 1], inside[:at] * int(inside[at][1:]), at
    at = inside.index("<answer>")
    given = inside[:at]
    if task == "copy":
        return inside[: at + 1], given, len(given)
    if task == "priority-sort":
        pairs = [(int(p[1:]), s) for p, s in zip(given[::2], given[1::2], strict=True)]
        left, answer = list(pairs), []
        while left and len(answer) < len(pairs) * 0.8 - 1e-9:
            highest = max(priority for priority, _ in left)
            first = next(i for i, (priority, _) in enumerate(left) if priority == highest)
            answer.append(left.pop(first)[1])
        return inside[: at + 1], answer, len(pairs)
    listed, query = " ".join(given).split("<query>")
    items = [item.split() for item in listed.split("<item>")[1:]]
    assert len({tuple(item) for item in items}) == len(items)
    return inside[: at + 1], items[items.index(query.split()) + 1], len(items)


@pytest.mark.parametrize("task", TASKS)
@given(data=st.data())
def test_every_answer_is_right(task: str, data: st.DataObject) -> None:
    least = 2 if task == "associative-recall" else 1
    shortest = data.draw(st.integers(least, 8))
    settings = AlgorithmConfig(
        bits=data.draw(st.integers(2, 6)),
        shortest=shortest,
        longest=data.draw(st.integers(shortest, 10)),
        repeats=data.draw(st.integers(1, 4)),
        levels=data.draw(st.integers(1, 6)),
        documents=5,
        held_out=3,
        seed=data.draw(st.integers(0, 2**31 - 1)),
    )
    drawn = prepare(TextConfig(task, algorithm=settings))
    for split in drawn.splits:
        answers = drawn.answers(split)
        assert answers is not None and answers.task == task
        place = 0
        for number, inside in enumerate(documents(drawn, split)):
            given, answer, length = solve(task, inside)
            assert inside == given + answer
            assert settings.shortest is not None and settings.longest is not None
            assert settings.shortest <= length <= settings.longest and answers.lengths[number] == length
            end = task == "repeat-copy"
            expected = [False] * (1 + len(given)) + [True] * len(answer) + [end]
            assert answers.mask[place : place + len(expected)].tolist() == expected
            assert (answers.document[place : place + len(expected)] == number).all()
            place += len(expected)
        assert place == len(drawn.splits[split].ids) == len(answers.mask)


# --- by hand ---

BY_HAND = {
    "copy": ("<bos> 01 11 <answer> 01 11 <eos>", "....xx.", 2),
    "repeat-copy": ("<bos> 01 11 x2 01 11 01 11 <eos>", "....xxxxx", 2),
    "associative-recall": (
        "<bos> <item> 00 01 10 <item> 11 11 11 <item> 00 00 01 <query> 11 11 11 <answer> 00 00 01 <eos>",
        "..................xxx.",
        3,
    ),
    "priority-sort": ("<bos> p2 00 p0 01 p2 10 p1 11 <answer> 00 10 11 01 <eos>", "..........xxxx.", 4),
}


@pytest.mark.parametrize("task", BY_HAND)
def test_what_is_asked(task: str) -> None:
    line, marks, length = BY_HAND[task]
    source = Algorithm(task, AlgorithmConfig(bits=2, longest=4, levels=3, repeats=2))
    words = source.words()
    ids = np.array([words.index(token) for token in line.split()] * 2)
    answers = source.answers(ids)
    assert "".join("x" if a else "." for a in answers.mask) == marks * 2
    assert answers.lengths.tolist() == [length] * 2 and answers.document.tolist() == [0] * len(marks) + [1] * len(marks)
    assert words[answers.symbols] == "00" and words[answers.symbols + 3] == "11" and answers.bits == 2
    # A text that is cut off in a document is asked as far as it goes.
    assert source.answer_mask(ids[:-2]).tolist() == answers.mask[:-2].tolist()


def test_priorities_that_are_equal_keep_their_order() -> None:
    drawn = made("priority-sort", levels=1, shortest=5, longest=5)
    for inside in documents(drawn, "train"):
        assert inside[-4:] == inside[1:10:2][:4]


@pytest.mark.parametrize(("share", "asked"), [(0.8, 8), (0.3, 3), (0.25, 3), (0.01, 1), (1.0, 10)])
def test_a_share_of_the_list_is_to_be_sorted(share: float, asked: int) -> None:
    drawn = made("priority-sort", shortest=10, longest=10, sorted_share=share)
    for inside in documents(drawn, "train"):
        assert len(inside) == 2 * 10 + 1 + asked


# --- documents ---


@pytest.mark.parametrize("task", TASKS)
def test_it_is_a_corpus(task: str) -> None:
    data, again = made(task), made(task)
    words = data.vocabulary
    assert data.fingerprint == again.fingerprint != made(task, seed=1).fingerprint
    assert words.unknown is None and words.words[words.start] == "<eos>"
    assert words.words == words.from_json(words.to_json()).words == Algorithm(task, AlgorithmConfig()).words()
    assert np.array_equal(words.counts, np.bincount(data.splits["train"].ids, minlength=len(words)))
    for name, count in (("train", 30), ("valid", 10), ("test", 10)):
        split = data.splits[name]
        assert len(split.documents) == len(split.titles) == count and data.truth(name) is None
        text = words.decode(split.ids)
        own = encode_split(words, text)
        assert np.array_equal(own.ids, split.ids) and text.count("\n") == count
        assert (own.characters, own.bytes, own.words) == (split.characters, split.bytes, split.words)
    assert not np.array_equal(data.splits["valid"].ids[:30], data.splits["test"].ids[:30])


@pytest.mark.parametrize("task", TASKS)
def test_every_epoch_has_documents_of_its_own_and_as_many_tokens(task: str) -> None:
    data, kept = made(task), made(task, new_each_epoch=False)
    first = data.splits["train"].ids
    assert np.array_equal(data.epoch(1), first) and np.array_equal(kept.epoch(2), kept.splits["train"].ids)
    second, third = data.epoch(2), data.epoch(3)
    assert len(second) == len(third) == len(first) and np.array_equal(second, data.epoch(2))
    assert not np.array_equal(second, third) and not np.array_equal(first, second)
    drawn = np.concatenate([*data.source.draw("train", 2)])
    both = min(len(drawn), len(second))
    assert np.array_equal(second[:both], drawn[:both])
    assert data.answer_mask(second).mean() == pytest.approx(data.answer_mask(first).mean(), abs=0.15)


@pytest.mark.parametrize("task", TASKS)
def test_other_lengths_are_drawn_in_turn(task: str) -> None:
    data = made(task)
    longer = data.of_lengths("test", (40, 3))
    answers = longer.answers("test")
    assert answers is not None and answers.lengths.tolist() == [40, 3] * 5
    assert list(longer.splits) == ["test"] and longer.vocabulary is data.vocabulary
    assert longer.fingerprint not in (data.fingerprint, data.of_lengths("test", (40,)).fingerprint)
    assert "40 and 3" in longer.provenance
    for inside in documents(longer, "test"):
        given, answer, _ = solve(task, inside)
        assert inside == given + answer


@pytest.mark.parametrize(
    ("corpus", "text", "says"),
    [
        ("copy", {"algorithm": {"shortest": 5, "longest": 4}}, "longest is 4, and text.algorithm.shortest 5; lower"),
        ("copy", {"algorithm": {"bits": 13}}, "text.algorithm.bits must be"),
        ("copy", {"algorithm": {"longest": 100_000}}, "more than 1,073,741,824 tokens"),
        ("associative-recall", {"algorithm": {"shortest": 1}}, "needs lengths of 2 or more items, not 1"),
        ("associative-recall", {"algorithm": {"bits": 1, "longest": 9}}, "not 9 different items of 1 bits"),
        ("copy", {"minimum_count": 2}, "of the corpus copy is fixed; set text.minimum_count to 1"),
        ("repeat-copy", {"tokenizer": "bytes"}, "repeat-copy is made of words; set text.tokenizer to auto"),
    ],
)
def test_settings_that_do_not_go_together(corpus: str, text: dict[str, Any], says: str) -> None:
    drawn = AlgorithmConfig(**text.pop("algorithm", {}))
    with pytest.raises(UserError, match=says) as told:
        prepare(TextConfig(corpus, algorithm=drawn, **text))
    assert "\n" not in str(told.value)


def test_lengths_are_of_tasks_alone() -> None:
    recall = prepare(TextConfig("recall"))
    with pytest.raises(UserError, match=r"the corpus recall has no answers; set training\.answer_loss_only to false"):
        recall.answer_mask(recall.splits["train"].ids)
    with pytest.raises(UserError, match="leave --lengths out"):
        recall.of_lengths("test", (3,))
    with pytest.raises(UserError, match="needs lengths of 1 or more symbols, not 0"):
        made("copy").of_lengths("test", (0,))


def test_only_the_documents_that_are_drawn_at_chosen_lengths_count_for_their_size() -> None:
    data = made("copy", documents=10_000, held_out=4)
    longer = data.of_lengths("test", (100_000,))
    assert len(longer.splits["test"].ids) == 4 * 200_003
    told = "the train split of copy could hold more than 1,073,741,824 tokens at these lengths; give shorter --lengths"
    with pytest.raises(UserError, match=told):
        data.of_lengths("train", (100_000,))
    with pytest.raises(UserError, match=r"copy could hold .* lower text\.algorithm\.documents or \.longest"):
        made("copy", documents=10_000, held_out=4, longest=100_000)
    settings = AlgorithmConfig(held_out=4, longest=100)
    assert (
        Algorithm("copy", settings).of_lengths("valid", (1, 2)).size("valid") == 4 * 7
    )  # not of the lengths of training
