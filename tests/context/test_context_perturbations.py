"""The contract of a perturbation, which every new one joins by a line, and what each does on a text one can read."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.extra import numpy as arrays

from backstory.context import Perturbation, Truncate

TYPES = 40
PERTURBATIONS: dict[str, Perturbation] = {
    "truncate to one": Truncate(1),
    "truncate to five": Truncate(5),
    "truncate to more than there is": Truncate(10_000),
}

contexts = st.sampled_from([np.uint16, np.int32, np.int64]).flatmap(
    lambda kind: arrays.arrays(kind, st.integers(1, 60), elements=st.integers(0, TYPES - 1))
)


@pytest.mark.parametrize("perturb", PERTURBATIONS.values(), ids=PERTURBATIONS)
@hypothesis.given(context=contexts, seed=st.integers(0, 2**32))
def test_the_contract_of_a_perturbation(perturb: Perturbation, context: np.ndarray, seed: int) -> None:
    before = context.copy()
    changed = perturb(context, int(context[0]), np.random.default_rng(seed))
    assert np.array_equal(context, before), "it changed its input"
    assert changed.ndim == 1 and len(changed) > 0, "it left no context"
    assert np.issubdtype(changed.dtype, np.integer) and changed.min() >= 0 and changed.max() < TYPES
    again = perturb(context, int(context[0]), np.random.default_rng(seed))
    assert np.array_equal(changed, again), "it has randomness of its own"


@pytest.mark.parametrize("keep, left", [(1, [4]), (3, [2, 3, 4]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])])
def test_truncate_keeps_the_nearest(keep: int, left: list[int]) -> None:
    assert Truncate(keep)(np.arange(5), 0, np.random.default_rng(0)).tolist() == left
