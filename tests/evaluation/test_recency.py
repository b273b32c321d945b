"""Cost of words by distance to their last occurrence, compared with a loop over per-token figures."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backstory as bs
from backstory.evaluation.metrics.nats_by_distance import FROM, last_seen


@given(ids=st.lists(st.integers(0, 4), max_size=40), row=st.integers(1, 15))
def test_tokens_since_the_same_one_came_last_in_its_row(ids: list[int], row: int) -> None:
    expected = []
    for place, token in enumerate(ids):
        begin = place - place % row
        before = [at for at in range(begin, place) if ids[at] == token]
        expected.append(place - before[-1] if before else 0)
    assert last_seen(np.array(ids, np.int32), row).tolist() == expected


@pytest.mark.parametrize("batch_size", [1, 3])
def test_nats_by_distance_are_means_over_the_tokens(tiny_run: Path, tmp_path: Path, batch_size: int) -> None:
    told = tmp_path / "tokens.jsonl"
    figures = bs.evaluate(tiny_run, split="test", out=tmp_path / "one", per_token=told).figures
    tokens = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    if batch_size > 1:
        figures = bs.evaluate(tiny_run, split="test", batch_size=batch_size, out=tmp_path / "batch_size").figures
    recency = figures.recency
    since = last_seen(np.unique([t["token"] for t in tokens], return_inverse=True)[1], -(-len(tokens) // batch_size))
    counts = {0: int((since == 0).sum())} | {
        low: int(((since >= low) & (since < high)).sum()) for low, high in zip(FROM, [*FROM[1:], 10**9], strict=True)
    }
    found = {0: recency.new.tokens} | {b.from_: b.tokens for b in recency.bins}
    assert found == {low: n for low, n in counts.items() if n or not low}
    total = sum(part.tokens * part.nats for part in [recency.new, *recency.bins])
    assert total == pytest.approx(figures.tokens * figures.nats_per_token, rel=1e-5)
    if batch_size == 1:
        nats = -np.array([t["log_prob"] for t in tokens])
        assert recency.new.nats == pytest.approx(nats[since == 0].mean(), rel=1e-5)
        for b in recency.bins:
            at = (since >= b.from_) & (since <= (b.to or 10**9))
            assert b.nats == pytest.approx(nats[at].mean(), rel=1e-5)
            assert b.distance == pytest.approx(since[at].mean())
