"""Reading a stream once: every token is scored once, from the right state."""

import math
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import backstory as bs
from backstory.evaluation import Block, block_count, blocks, read
from backstory.evaluation.reading_loop import Position, ScoredBlock, StreamReading
from backstory.models import ComposedModel, Prediction
from backstory.readers import StaticReader
from backstory.readers.base import places_of
from backstory.utils.terminal import shown_progress

Stream = Callable[[int], np.ndarray]
FIRST = 12
CPU = torch.device("cpu")


@given(st.integers(1, 80), st.integers(1, 9), st.integers(1, 30))
def test_every_token_is_a_target_once_and_follows_its_input(count: int, batch_size: int, block: int) -> None:
    ids = np.arange(100, 100 + count)
    pieces = list(blocks(ids, 99, batch_size, block, CPU))
    assert [p.index for p in pieces] == list(range(block_count(count, batch_size, block)))
    assert all(p.tokens.shape == p.targets.shape == p.scored.shape for p in pieces)
    assert all(1 <= p.tokens.shape[1] <= block for p in pieces)
    tokens, targets, scored = (torch.cat([p[:3][i] for p in pieces], 1) for i in range(3))
    assert len(tokens) == min(batch_size, count)
    # Row after row, the text is whole and in order, and each token was preceded by the one before it.
    assert targets[scored].tolist() == ids.tolist()
    assert tokens[scored].tolist() == [99, *ids[:-1].tolist()]
    assert torch.equal(tokens[:, 1:], targets[:, :-1])  # also where a row has ended
    lengths = scored.sum(1)
    assert torch.equal(scored, torch.arange(scored.shape[1]) < lengths[:, None])


@given(st.integers(1, 80), st.integers(1, 9))
def test_only_the_last_rows_may_be_shorter(count: int, batch_size: int) -> None:
    (piece,) = blocks(np.arange(count), 99, batch_size, count, CPU)
    lengths = piece.scored.sum(1).tolist()
    full = -(-count // min(batch_size, count))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[: count // full] == [full] * (count // full)


@pytest.mark.parametrize(("batch_size", "block"), [(1, 7), (3, 7), (5, 100), (200, 7)])
def test_a_reading_counts_and_averages_what_was_scored(
    model: ComposedModel, stream: Stream, batch_size: int, block: int
) -> None:
    found: list[Tensor] = []

    def each(piece: Block, prediction: Prediction, log_prob: Tensor) -> None:
        assert torch.equal(prediction.log_prob(piece.targets), log_prob)
        assert not log_prob.requires_grad and log_prob.shape == piece.targets.shape
        found.append(log_prob.double()[piece.scored])

    reading = read(StaticReader(model), stream(60), FIRST, batch_size=batch_size, block=block, each=each)
    assert reading.tokens == sum(map(len, found)) == 60
    assert reading.batch_size == min(batch_size, 60)
    assert reading.nats == pytest.approx(-torch.cat(found).mean().item(), rel=1e-12)
    assert reading.seconds > 0


@torch.no_grad()
@pytest.mark.parametrize("rows", [slice(0, 2), slice(2, 3), slice(3, 5)])
def test_some_rows_are_those_of_the_whole_batch(rows: slice) -> None:
    ids = np.arange(100, 123)
    whole, part = (list(blocks(ids, 99, 5, 2, CPU, rows=chosen)) for chosen in (slice(None), rows))
    for block, some in zip(whole, part, strict=True):
        assert all(torch.equal(mine, all_[rows]) for mine, all_ in zip(some[:3], block[:3], strict=True))
        assert (places_of(some, 2) == places_of(block, 2)[rows]).all()
        assert (ids[places_of(some, 2)[some.scored.numpy()]] == some.targets[some.scored].numpy()).all()


def by_hand(model: ComposedModel, ids: list[int], first: int) -> float:
    """The sum of negative log-probabilities of a text read a token at a time."""
    state, total, before = model.start(1), 0.0, first
    for word in ids:
        prediction, state = model(torch.tensor([[before]]), state)
        total -= prediction.log_probs()[0, 0, word].item()
        before = word
    return total


def test_one_row_is_a_token_at_a_time(model: ComposedModel, stream: Stream) -> None:
    model.double()
    ids = stream(50)
    reading = read(StaticReader(model), ids, FIRST, block=16)
    assert reading.nats == pytest.approx(by_hand(model, ids.tolist(), FIRST) / 50, rel=1e-10)


def test_rows_begin_from_an_empty_state_with_the_token_before_them(model: ComposedModel, stream: Stream) -> None:
    model.double()
    ids = stream(50).tolist()  # four rows of 13, the last of 11
    total = by_hand(model, ids[:13], FIRST)
    total += sum(by_hand(model, ids[start : start + 13], ids[start - 1]) for start in (13, 26, 39))
    reading = read(StaticReader(model), np.array(ids), FIRST, batch_size=4, block=5)
    assert reading.nats == pytest.approx(total / 50, rel=1e-10)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_scores_do_not_depend_on_the_blocks(model: ComposedModel, stream: Stream, batch_size: int) -> None:
    model.double()
    nats = [
        read(StaticReader(model), stream(70), FIRST, batch_size=batch_size, block=block).nats for block in (1, 6, 70)
    ]
    assert nats == pytest.approx([nats[0]] * 3, rel=1e-12)


def test_scores_do_not_depend_on_the_batch(model: ComposedModel, stream: Stream) -> None:
    model.double()
    tokens = torch.from_numpy(stream(40).astype(np.int64))[None]
    scores = []
    for batch_size in (1, 5):
        reader = StaticReader(model)
        reader.start(batch_size)
        batch = tokens.expand(batch_size, -1)
        scores.append(reader.predict(batch).log_prob(batch.roll(-1, 1)))
    torch.testing.assert_close(scores[1], scores[0].expand(5, -1), rtol=0, atol=1e-12)


def test_a_reading_begins_afresh(model: ComposedModel, stream: Stream) -> None:
    reader = StaticReader(model)
    first = read(reader, stream(40), FIRST, batch_size=2)
    assert read(reader, stream(40), FIRST, batch_size=2).nats == first.nats


def test_the_observer_sees_each_block_before_it_is_read_and_once_it_is_scored(
    model: ComposedModel, stream: Stream
) -> None:
    events: list[str] = []

    class Noted(StaticReader):
        def predict(self, tokens: Tensor):
            events.append("predict")
            return super().predict(tokens)

        def observe(self, targets: Tensor) -> None:
            events.append("observe")
            super().observe(targets)

    class Observer:
        def before(self, reader: object, block: Block) -> None:
            events.append(f"before {block.index}")

        def after(self, block: Block, log_prob: Tensor) -> None:
            events.append(f"after {block.index}")

    read(Noted(model), stream(20), FIRST, block=10, observer=Observer())
    assert events == [
        *("before 0", "predict", "after 0", "observe"),
        *("before 1", "predict", "after 1", "observe"),
    ]


def test_a_uniform_model_scores_the_size_of_its_vocabulary(small_lstm: ComposedModel, stream: Stream) -> None:
    with torch.no_grad():
        for parameter in small_lstm.parameters():
            parameter.zero_()
    reading = read(StaticReader(small_lstm), stream(30), FIRST, batch_size=2)
    assert reading.nats == pytest.approx(math.log(small_lstm.vocabulary_size), rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    "evaluation",
    [
        None,
        {"reader": "dynamic:rule=sgd,rate=0.01", "split": "test", "after": "valid"},
        {"reader": "cache", "text": "ann saw the tea\n" * 5, "each_line": True},
    ],
)
def test_a_block_s_prediction_is_gone_when_the_next_is_predicted(
    evaluation: dict[str, Any] | None,
    tiny_run: Path,
    tmp_path: Path,
    model: ComposedModel,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two blocks of activations would take twice the memory of one."""
    made: list[weakref.ref[Prediction]] = []
    score = StreamReading.score

    def noted(self: StreamReading, block: Block) -> ScoredBlock:
        assert all(prediction() is None for prediction in made)
        scored = score(self, block)
        made.append(weakref.ref(scored.prediction))
        return scored

    monkeypatch.setattr(StreamReading, "score", noted)
    monkeypatch.setattr("backstory.readers.base.BLOCK", 16)
    if evaluation is None:
        read(StaticReader(model), stream(60), FIRST, block=7, each=lambda *scored: None)
    else:
        bs.evaluate(tiny_run, out=tmp_path / "result", **evaluation)
    assert len(made) > 2


@pytest.mark.skipif(not hasattr(signal, "SIGCONT"), reason="needs the signals of job control")
def test_a_reading_does_not_last_while_the_process_is_suspended(
    model: ComposedModel, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def passed(position: Position) -> None:
        now[0] += 3600.0
        signal.raise_signal(signal.SIGCONT)
        now[0] += 2.0

    with shown_progress():
        assert read(StaticReader(model), stream(24), FIRST, block=8, passed=passed).seconds == 6.0
