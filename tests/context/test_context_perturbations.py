"""The contract of perturbations, for every experiment, and the effect of each on a small readable text."""

from collections.abc import Sequence

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.extra import numpy as arrays

from backstory.context import (
    EXPERIMENTS,
    Drop,
    Examination,
    Permute,
    Perturbation,
    ReplaceFar,
    ReplaceTarget,
    Similar,
    Truncate,
    drop_target,
    reversed_order,
    shuffled,
)
from backstory.data.tags import is_content, is_function

TYPES = 40
TRAINING = np.random.default_rng(1).integers(0, TYPES, 200).astype(np.uint16)
KINDS = ("NN", "VBD", "JJ", "RB", "DT", "IN", "<unk>", "<eos>", "")
PERTURBATIONS: dict[str, Perturbation] = {
    "truncate to one": Truncate(1),
    "truncate to five": Truncate(5),
    "truncate to more than there is": Truncate(10_000),
    "shuffle locally": Permute(shuffled, 5, 20),
    "shuffle globally": Permute(shuffled, 5),
    "reverse locally": Permute(reversed_order, 1, 20),
    "reverse globally": Permute(reversed_order, 10_000),
    "replace": ReplaceFar(5, TRAINING),
    "drop content words": Drop(1, is_content),
    "drop function words": Drop(5, is_function),
    "drop as many at random": Drop(1, is_content, control=True),
    "drop the target": drop_target,
    "replace the target by one": ReplaceTarget(lambda target: np.array([7])),
    "replace the target by one of several": ReplaceTarget(lambda target: np.arange(target)),
}


class Uniform:
    def score(self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: object = None) -> np.ndarray:
        return np.full(len(targets), -1.0)


def first_conditions() -> dict[str, Perturbation]:
    """The first condition of every registered experiment, so that new ones are covered automatically."""
    ids = np.random.default_rng(2).integers(0, TYPES, 300)
    tags = np.array(KINDS)[ids % len(KINDS)]
    counts = np.arange(TYPES)
    on = Examination(
        ids, None, Uniform(), 10, 60, context=60, near=5, tags=tags, training=TRAINING, counts=counts, unknown=3
    )
    first = {name: experiment.conditions(on)[0].perturb for name, experiment in EXPERIMENTS.items()}
    return {f"experiment {name}": perturb for name, perturb in first.items() if perturb is not None}


PERTURBATIONS |= first_conditions()

contexts = st.sampled_from([np.uint16, np.int32, np.int64]).flatmap(
    lambda kind: arrays.arrays(kind, st.integers(1, 60), elements=st.integers(0, TYPES - 1))
)


@pytest.mark.parametrize("perturb", PERTURBATIONS.values(), ids=PERTURBATIONS)
@hypothesis.given(context=contexts, seed=st.integers(0, 2**32), data=st.data())
def test_the_contract_of_a_perturbation(
    perturb: Perturbation, context: np.ndarray, seed: int, data: st.DataObject
) -> None:
    tags = np.array(data.draw(st.lists(st.sampled_from(KINDS), min_size=len(context), max_size=len(context))))
    before, tagged = context.copy(), tags.copy()
    context.setflags(write=False)  # as a split on disk is
    changed = perturb(context, int(context[0]), tags, np.random.default_rng(seed))
    assert np.array_equal(context, before) and np.array_equal(tags, tagged), "it changed its input"
    assert changed.ndim == 1 and 0 < len(changed) <= len(context), "it left no context, or made it longer"
    assert np.issubdtype(changed.dtype, np.integer) and changed.min() >= 0 and changed.max() < TYPES
    again = perturb(context, int(context[0]), tags, np.random.default_rng(seed))
    assert np.array_equal(changed, again), "it has randomness of its own"


def done(perturb: Perturbation, context: list[int], target: int = 0, tags: str = "", seed: int = 0) -> list[int]:
    """Change a context; tags are given in a line."""
    tagged = np.array(tags.split()) if tags else None
    return perturb(np.array(context), target, tagged, np.random.default_rng(seed)).tolist()


@pytest.mark.parametrize("keep, left", [(1, [4]), (3, [2, 3, 4]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])])
def test_truncate_keeps_the_nearest(keep: int, left: list[int]) -> None:
    assert done(Truncate(keep), [*range(5)]) == left


def test_reversing_locally_turns_the_tokens_next_to_the_boundary() -> None:
    # The target would be 10: two tokens stay, the three before them are turned, what is farther stays too.
    assert done(Permute(reversed_order, 2, 3), [*range(10)]) == [0, 1, 2, 3, 4, 7, 6, 5, 8, 9]


def test_reversing_locally_where_fewer_are_left() -> None:
    assert done(Permute(reversed_order, 3, 20), [*range(6)]) == [2, 1, 0, 3, 4, 5]


def test_reversing_globally_turns_everything_beyond_the_boundary() -> None:
    assert done(Permute(reversed_order, 2), [*range(10)]) == [7, 6, 5, 4, 3, 2, 1, 0, 8, 9]


@pytest.mark.parametrize("boundary", [6, 7])
def test_a_boundary_beyond_the_context_changes_nothing(boundary: int) -> None:
    for perturb in (Permute(reversed_order, boundary), Permute(shuffled, boundary, 20), ReplaceFar(boundary, TRAINING)):
        assert done(perturb, [*range(6)]) == [*range(6)]


def test_shuffling_moves_only_the_tokens_of_the_span() -> None:
    orders = set()
    for seed in range(200):
        changed = done(Permute(shuffled, 2, 3), [*range(10)], seed=seed)
        assert changed[:5] == [0, 1, 2, 3, 4] and changed[8:] == [8, 9] and sorted(changed) == [*range(10)]
        orders.add(tuple(changed[5:8]))
    assert len(orders) == 6  # every order of three comes
    assert {tuple(sorted(done(Permute(shuffled, 2), [*range(10)], seed=s)[:8])) for s in range(9)} == {tuple(range(8))}


def test_what_is_far_is_replaced_by_a_piece_of_the_training_text() -> None:
    text, starts = np.arange(100, 110), set()
    for seed in range(200):
        changed = done(ReplaceFar(2, text), [*range(6)], seed=seed)
        assert changed[4:] == [4, 5]
        assert changed[:4] == [*range(changed[0], changed[0] + 4)]  # contiguous
        starts.add(changed[0])
    assert starts == {*range(100, 107)}  # every place of the text where four tokens fit, its last too


def test_a_training_text_as_long_as_the_span_is_taken_whole() -> None:
    assert done(ReplaceFar(2, np.array([7, 8, 9])), [0, 1, 2, 3, 4]) == [7, 8, 9, 3, 4]


SENTENCE, TAGS = [10, 11, 12, 13, 14, 15, 16], "DT NN VBD <unk> JJ NN <eos>"


def test_content_words_are_dropped_beyond_the_boundary_and_nothing_takes_their_place() -> None:
    assert done(Drop(2, is_content), SENTENCE, tags=TAGS) == [10, 13, 15, 16]
    assert done(Drop(1, is_content), SENTENCE, tags=TAGS) == [10, 13, 16]
    assert done(Drop(7, is_content), SENTENCE, tags=TAGS) == SENTENCE


def test_an_unknown_word_is_neither_content_nor_function() -> None:
    assert done(Drop(1, is_function), SENTENCE, tags=TAGS) == [11, 12, 13, 14, 15, 16]


def test_the_control_drops_as_many_in_the_same_region_whichever_they_are() -> None:
    gone: set[int] = set()
    for seed in range(200):
        changed = done(Drop(2, is_content, control=True), SENTENCE, tags=TAGS, seed=seed)
        assert changed[-2:] == [15, 16] and len(changed) == 4 and changed == sorted(changed)
        gone |= set(SENTENCE) - set(changed)
    assert gone == {10, 11, 12, 13, 14}


def test_the_target_is_dropped_wherever_it_occurs() -> None:
    assert done(drop_target, [3, 1, 3, 2, 3], target=3) == [1, 2]
    assert done(drop_target, [3, 1, 3, 2, 3], target=9) == [3, 1, 3, 2, 3]
    assert done(drop_target, [3, 3], target=3) == [3]  # a context is never empty


def test_the_target_is_replaced_by_one_word_wherever_it_occurs() -> None:
    by_unknown = ReplaceTarget(lambda target: np.array([0]))
    assert done(by_unknown, [3, 1, 3, 2], target=3) == [0, 1, 0, 2]
    assert done(by_unknown, [3, 1, 3, 2], target=5) == [3, 1, 3, 2]
    assert done(ReplaceTarget(lambda target: np.empty(0, int)), [3, 1], target=3) == [3, 1]
    several = ReplaceTarget(lambda target: np.array([7, 8]))
    assert {tuple(done(several, [3, 1, 3], target=3, seed=s)) for s in range(40)} == {(7, 1, 7), (8, 1, 8)}


def test_similar_words_are_of_the_same_tag_and_near_in_frequency() -> None:
    ids = np.array([1, 2, 3, 4, 5, 1, 6, 1])
    tags = np.array(["NN", "NN", "NN", "DT", "NN", "VB", "<unk>", "NN"])  # 1 is a noun twice and a verb once
    counts = np.array([0, 100, 90, 1000, 100, 9, 5])
    similar = Similar(ids, tags, counts, most=2)
    # Of the nouns 2 (90), 3 (1000) and 5 (9): by the logarithm 90 is nearest to 100, then 1,000 (2.3) before 9 (2.3 and more).
    assert similar(1).tolist() == [2, 3]
    assert similar(5).tolist() == [2, 1]
    assert similar(4).tolist() == [] and similar(6).tolist() == []  # alone with their tags
    assert similar(0).tolist() == []  # never seen
    assert len(Similar(ids, tags, counts)(1)) == 3
