"""A text read in several rows: each token once, after enough context, and as if each row were read alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from copying import Copying
from hypothesis import given
from hypothesis import strategies as st
from test_context_brute_force import START, TYPES, build

import backstory as bs
from backstory.config.readers import CacheSettings
from backstory.context import Folded
from backstory.context.examined_text import WholeReading
from backstory.evaluation import read
from backstory.models import Precision
from backstory.readers import Reader, StaticReader
from backstory.readers.neural_cache import NeuralCache
from backstory.utils.errors import UserError

FLOAT32 = Precision(torch.float32, "a test")


def ids_of(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, TYPES, count)


def alone(reader: Reader, ids: np.ndarray) -> np.ndarray:
    """Nats of a text that is read from an empty state, (2, N): also without the cache."""
    found: list[torch.Tensor] = []

    def keep(block: Any, prediction: Any, log_prob: torch.Tensor) -> None:
        found.append(torch.stack([log_prob[0], prediction.parts()["p"].log_prob(block.targets)[0]]))

    read(reader, ids, START, each=keep)
    return -torch.cat(found, 1).numpy()


@pytest.mark.full
@given(count=st.integers(12, 90), batch_size=st.integers(2, 9), before=st.integers(1, 11))
def test_rows_are_read_as_each_alone(count: int, batch_size: int, before: int) -> None:
    reader, ids = (
        NeuralCache(StaticReader(build(), FLOAT32), CacheSettings(window=7, theta=0.5, weight=0.3)),
        ids_of(count),
    )
    told: list[int] = []
    found = WholeReading(reader, ids, START, batch_size=batch_size, before=before, with_inner=True)(told.append)
    size = -(-(count - before) // batch_size)
    for place in range(count):
        row = max(0, (place - before) // size)
        begin = row * size
        assert place - begin >= (before if row else 0)
        if place in (0, before, count - 1) or (place - before) % size in (0, size - 1):
            expected = alone(reader, ids[begin : place + 1])[:, -1]
            np.testing.assert_allclose(found[:, place], expected, rtol=1e-5, atol=1e-6)
    assert found.shape == (2, count) and sum(told) == count


@pytest.mark.parametrize("batch_size", [2, 3, 8])
def test_a_memory_shorter_than_what_a_row_reads_before_loses_nothing(batch_size: int) -> None:
    reader, ids = StaticReader(Copying(TYPES, 5), FLOAT32), ids_of(200)
    in_turn = WholeReading(reader, ids, START)(lambda tokens: None)
    side_by_side = WholeReading(reader, ids, START, batch_size=batch_size, before=10)(lambda tokens: None)
    np.testing.assert_allclose(side_by_side, in_turn, rtol=1e-12)


def test_rows_begin_with_whole_words() -> None:
    reader, ids = StaticReader(Copying(TYPES, 4), FLOAT32), ids_of(120)
    starts = np.sort(np.random.default_rng(0).choice(np.arange(1, 120), 49, replace=False))
    starts = np.append(0, starts)
    kinds, pieces = np.arange(50), np.split(ids, starts[1:])
    folded = Folded(kinds, starts, kinds, pieces, np.array([0]), 0, 120)
    told: list[int] = []
    in_turn = WholeReading(reader, ids, START, folded=folded)(lambda tokens: None)
    side_by_side = WholeReading(reader, ids, START, folded=folded, batch_size=4, before=6)(told.append)
    np.testing.assert_allclose(side_by_side, in_turn, rtol=1e-12)
    assert in_turn.shape == (1, 50) and sum(told) == 50


def test_an_examination_says_that_it_was_read_in_rows(tiny_run: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"targets": 40, "maximum_context": 30, "precision": "float32"}
    one = bs.examine(tiny_run, None, "truncate", out=tmp_path / "one", **settings)
    four = bs.examine(tiny_run, None, "truncate", out=tmp_path / "four", batch_size=4, **settings)
    assert (one.figures.batch_size, four.figures.batch_size) == (1, 4)
    assert "with all context in a batch of 4 perplexity" in four.table()
    for a, b in zip(one.figures.conditions, four.figures.conditions, strict=True):
        assert a.nats == b.nats, "contexts that are cut are read alone in any case"
    assert one.figures.baseline.nats == pytest.approx(four.figures.baseline.nats, abs=0.05)
    with pytest.raises(UserError, match="batch_size and within_documents=True cannot be combined"):
        bs.examine(tiny_run, None, "truncate", batch_size=4, within_documents=True, **settings)
    with pytest.raises(UserError, match="batch_size must be 1 or more"):
        bs.examine(tiny_run, None, "truncate", batch_size=0, **settings)
