"""The memory curve of an evaluation, against sums over the figures of every token."""

import dataclasses
import io
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import backstory as bs
from backstory.config import RecallConfig, RunConfig, TextConfig
from backstory.data import Truth
from backstory.evaluation.metrics.nats_by_distance import FROM, MemoryCurve
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.readers.base import blocks
from backstory.training import train

RECALL = RecallConfig(
    entities=20, cast=4, mentions=0.3, facts=0.1, names=3, values=4, words=10, length=300, documents=6, held_out=10
)


@pytest.fixture(scope="module")
def run(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a small `recall`."""
    folder = tmp_path_factory.mktemp("recall") / "run"
    config = dataclasses.replace(tiny_config, text=TextConfig("recall", recall=RECALL))
    train(config, folder, console=Console(file=io.StringIO()))
    return folder


def by_hand(tokens: list[str]) -> list[tuple[str, int]]:
    """Kind of each token of a text, and how many tokens ago what comes back in it was last seen."""
    found: list[tuple[str, int]] = []
    last: dict[str, int] = {}
    for place, token in enumerate(tokens):
        if token == "<eos>":
            last = {}
        key = tokens[place - 2] if token[0] == "v" else token
        names = {"<": "document end", "w": "filler word", "n": "name", "i": "is or ?", "?": "is or ?"}
        known = {"e": ("new entity", "old entity"), "v": ("stated value", "queried value")}
        since = place - last[key] if key in last and token[0] in known else 0
        found.append((known[token[0]][since > 0] if token[0] in known else names[token[0]], since))
        if token[0] in known:
            last[key] = place
    return found


def grouped(pairs: list[tuple[Any, tuple[float, ...]]]) -> dict[Any, list[float]]:
    """The number of values under each key, then their means."""
    collected: dict[Any, list[tuple[float, ...]]] = defaultdict(list)
    for key, values in pairs:
        collected[key].append(values)
    return {key: [len(values), *np.mean(values, 0)] for key, values in collected.items()}


def bin_of(distance: int) -> int:
    return max(low for low in FROM if low <= distance)


@pytest.mark.full
@pytest.mark.parametrize("reader", ["static", "cache"])
def test_it_is_what_the_figures_of_every_token_add_up_to(reader: str, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens.jsonl"
    figures = bs.evaluate(run, split="test", reader=reader, per_token=file, out=tmp_path / "out").figures
    memory = figures.memory
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    tokens = [line["token"] for line in lines]
    is_a = by_hand(tokens)
    exact = {
        "old entity": math.log(RECALL.cast / RECALL.mentions),
        "queried value": 0.0,
        "stated value": math.log(RECALL.values),
        "name": math.log(RECALL.names / RECALL.facts),
        "is or ?": 0.0,
        "document end": 0.0,
    }
    nats = [-line["log_prob"] for line in lines]
    kinds = grouped([(kind, (n,)) for (kind, _), n in zip(is_a, nats, strict=True)])
    assert {c.kind: [c.tokens, pytest.approx(c.nats)] for c in memory.kinds} == kinds
    for cost in memory.kinds:
        assert cost.excess == pytest.approx(cost.nats - cost.exact)
        if cost.kind in exact:
            assert cost.exact == pytest.approx(exact[cost.kind])
    binned = grouped(
        [((kind, bin_of(d)), (d, n)) for (kind, d), n in zip(is_a, nats, strict=True) if d]  # only what comes back
    )
    found = {
        (curve.kind, b.from_): [b.tokens, pytest.approx(b.distance), pytest.approx(b.nats)]
        for curve in memory.curves
        for b in curve.bins
    }
    assert len(found) > 10 and found == binned
    for curve in memory.curves:
        assert [b.from_ for b in curve.bins] == sorted(b.from_ for b in curve.bins)
        for b in curve.bins:
            assert (b.from_, b.to) in zip(FROM, [*(low - 1 for low in FROM[1:]), None], strict=True)
            assert b.exact == pytest.approx(exact[curve.kind]) and b.excess == pytest.approx(b.nats - b.exact)
    assert {c.kind: c.forgotten for c in memory.curves} == {
        "old entity": pytest.approx(math.log(RECALL.entities / RECALL.cast)),
        "queried value": pytest.approx(math.log(RECALL.values)),
    }
    assert memory.exact_perplexity == pytest.approx(math.exp(memory.exact_nats_per_token))
    assert memory.excess_nats_per_token + memory.exact_nats_per_token == pytest.approx(figures.nats_per_token)
    all_exact = sum(c.tokens * c.exact for c in memory.kinds) / figures.tokens
    assert all_exact == pytest.approx(memory.exact_nats_per_token)


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9), st.data())
def test_every_token_counts_where_it_stands(tokens: int, batch_size: int, size: int, data: st.DataObject) -> None:
    distance = np.array(data.draw(st.lists(st.integers(0, 2000), min_size=tokens, max_size=tokens)), np.int32)
    kind = np.where(distance > 0, 1, 0).astype(np.uint8)
    truth = Truth(("other", "old"), kind, np.linspace(0, 1, tokens), distance, {"old": 1.0})
    curve = MemoryCurve(truth, size)
    # Every token's cost tells its place, so that none can be taken for another.
    costs = np.random.default_rng(tokens).random(tokens)
    batch_size = min(batch_size, tokens)
    length = math.ceil(tokens / batch_size)
    for block in blocks(np.arange(tokens), 0, batch_size, size, torch.device("cpu")):
        assert block.targets.shape[1] <= length
        curve.update(ScoredBlock(block, None, -torch.from_numpy(costs)[block.targets]))  # type: ignore[arg-type]
    figures = curve.result()
    assert figures.excess_nats_per_token == pytest.approx(costs.mean() - truth.exact.mean(), abs=1e-12)
    want = grouped([(bin_of(d), (d, costs[i], truth.exact[i])) for i, d in enumerate(distance) if d])
    bins = figures.curves[0].bins if figures.curves else []
    got = {b.from_: [b.tokens, *map(pytest.approx, (b.distance, b.nats, b.exact))] for b in bins}
    assert got == want


class Killed(Exception):
    """Stands for the end of a process."""


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"reader": "cache", "after": "valid"}], ids=str)
def test_taken_up_again_it_is_the_same(options: dict[str, Any], run: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    plain = bs.evaluate(
        run, split="test", out=tmp_path / "plain", progress=lambda done, total: seen.append(done), **options
    ).figures
    for number, share in enumerate((0.5, 0.8)):
        limit = seen[int(len(seen) * share)]

        def stop(done: int, total: int, limit: int = limit) -> None:
            if done >= limit:
                raise Killed

        with pytest.raises(Killed):
            bs.evaluate(
                run, split="test", out=tmp_path / "out", save_every=1e-9, resume=number > 0, progress=stop, **options
            )
        assert any((tmp_path / "out").glob("reading-*"))
    again = bs.evaluate(run, split="test", out=tmp_path / "out", resume=True, **options).figures
    assert again.memory == plain.memory and again == plain


def test_side_by_side_rows_change_little(run: Path, tmp_path: Path) -> None:
    one, four = (
        bs.evaluate(run, split="test", batch_size=batch_size, out=tmp_path / str(batch_size)).figures.memory
        for batch_size in (1, 4)
    )
    for a, b in zip(one.kinds, four.kinds, strict=True):
        assert (a.kind, a.tokens, a.exact) == (b.kind, b.tokens, b.exact)
        assert a.nats == pytest.approx(b.nats, abs=0.2)


def test_only_where_the_truth_is_known(run: Path, tiny_run: Path, tmp_path: Path) -> None:
    assert bs.evaluate(tiny_run, split="test", out=tmp_path / "out").figures.memory is None
    (tmp_path / "text.txt").write_text("w1 e3 w2 e3\n")
    assert bs.evaluate(run, text=tmp_path / "text.txt").figures.memory is None
