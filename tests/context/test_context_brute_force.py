"""Compare each experiment with its definition: one target at a time, lists as contexts, full distributions."""

import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from tiers import fast_then_full

from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, NoBufferConfig, SoftmaxConfig
from backstory.config.readers import CacheSettings
from backstory.context import EXPERIMENTS, Examination, Losses, ReaderScorer, measure
from backstory.context.examined_text import WholeReading
from backstory.models import ComposedModel, Precision, build_model
from backstory.readers import Reader, StaticReader
from backstory.readers.neural_cache import NeuralCache

TYPES, TOKENS, START, UNKNOWN, SEED = 53, 700, 2, 4, 3
FLOAT32 = Precision(torch.float32, "a test")
CACHE = CacheSettings(window=40, theta=0.7, weight=0.3)
SETTINGS: dict[str, Any] = {"targets": 24, "maximum_context": 90, "seed": SEED, "context": 60, "near": 10}
Answer = Callable[[Sequence[int], int], float]
"""Nats of a target after a context."""


def build() -> ComposedModel:
    """A model in float32 with weights as large as after training, so that contexts matter."""
    torch.manual_seed(0)
    model = build_model(
        ModelConfig(EmbeddingConfig(7), LSTMConfig(layers=2, hidden=6), SoftmaxConfig(), NoBufferConfig()), TYPES
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)
    return model.eval()


def corpus() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Ids with recurring words, their tags, a training text and counts."""
    random = np.random.default_rng(0)
    ids = (TYPES * random.random(TOKENS) ** 2).astype(np.uint16)
    tags = np.array(["NN", "VBD", "DT", "IN", "JJ"])[random.integers(0, 5, TOKENS)]
    tags[ids == UNKNOWN] = "<unk>"
    training = random.integers(0, TYPES, 400).astype(np.uint16)
    return ids, tags, training, random.integers(1, 5000, TYPES)


def examination(reader: Reader, **changes: Any) -> Examination:
    ids, tags, training, counts = corpus()
    documents = np.array([0, 150, 420])
    settings = SETTINGS | changes
    within = documents if settings.get("within_documents") else None
    whole = WholeReading(reader, ids, START, within, with_inner=reader.inner is not None)
    return Examination(
        ids, whole, ReaderScorer(reader), tags=tags, training=training, counts=counts,
        unknown=UNKNOWN, start=START, documents=documents, **settings,
    )  # fmt: skip


def alone(model: ComposedModel) -> Answer:
    @torch.no_grad()
    def nats(context: Sequence[int], target: int) -> float:
        prediction, _ = model(torch.tensor([list(context)]), model.start(1))
        return -prediction.log_probs()[0, -1, target].item()

    return nats


def cached(model: ComposedModel) -> Answer:
    """The neural cache by its equation, over the pairs (h_i, w_i) of the context."""

    @torch.no_grad()
    def nats(context: Sequence[int], target: int) -> float:
        prediction, _ = model(torch.tensor([list(context)]), model.start(1))
        assert prediction.activations is not None
        hidden = prediction.activations.head_input[0].double().numpy()
        share = np.zeros(TYPES)
        pairs = list(zip(hidden, context[1:], strict=False))[-CACHE.window :]
        for vector, word in pairs:
            share[word] += np.exp(CACHE.theta * vector @ hidden[-1])
        p = prediction.log_probs()[0, -1].double().exp().numpy()
        mixed = (1 - CACHE.weight) * p + CACHE.weight * share / share.sum() if pairs else p
        return -float(np.log(mixed[target]))

    return nats


def before(position: int, reach: int | None, within: bool) -> list[int]:
    """Return the context of a target as tokens; a text, or a separately read document, begins with the start token."""
    ids = corpus()[0].tolist()
    begin = max(b for b in ((0, 150, 420) if within else (0,)) if b <= position)
    whole = [START, *ids[begin:position]]
    return whole if reach is None else whole[-reach:]


def tags_before(position: int, length: int) -> list[str]:
    return corpus()[1].tolist()[position - length : position]


def changed(record: dict[str, Any], context: list[int], tags: list[str], target: int, random: Any) -> list[int]:
    """The context after the condition that a result's record describes, token by token."""
    _, _, training, _ = corpus()
    count, boundary = len(context), record.get("boundary")
    far = [] if boundary is None else [i for i in range(count) if count - i > boundary]
    match record["method"]:
        case "truncate" | "drop-distant":
            keep = record.get("boundary", record["context"])
            return [token for i, token in enumerate(context) if count - i <= keep]
        case "shuffle" | "reverse" as method:
            moved = [i for i in far if record["span"] == "global" or count - i <= boundary + 20]
            order = random.permutation(len(moved)).tolist() if method == "shuffle" else [*range(len(moved))][::-1]
            result = list(context)
            for place, source in zip(moved, order, strict=True):
                result[place] = context[moved[source]]
            return result
        case "replace":
            start = int(random.integers(len(training) - len(far) + 1))
            return [int(t) for t in training[start : start + len(far)]] + context[len(far) :]
        case "mask":
            return [UNKNOWN] * len(far) + context[len(far) :]
        case "drop":
            begins = {"content": "NVJR", "function": "DI"}[record["words"]]
            gone = [tags[i][:1] in begins for i in far]
            if record["control"]:
                gone = random.permutation(np.array(gone, bool)).tolist()
            return [context[i] for i in far if not gone[i]] + context[len(far) :]
        case "drop-target":
            return [token for token in context if token != target]
        case "replace-target":
            return [similar(target, random) if token == target else token for token in context] if (
                record["replacement"] == "similar"
            ) else [UNKNOWN if token == target else token for token in context]  # fmt: skip
    raise AssertionError(record)


def similar(target: int, random: Any) -> int:
    """Return a target's replacement, drawn once from the ten words of its tag nearest in frequency."""
    if not hasattr(random, "drawn"):
        ids, tags, _, counts = corpus()
        words = sorted(set(ids.tolist()))
        most = {w: max(sorted(set(tags[ids == w])), key=lambda t: (tags[ids == w] == t).sum()) for w in words}
        alike = [w for w in words if most[w] == most[target] and w != target]
        alike.sort(key=lambda w: abs(np.log1p(counts[w]) - np.log1p(counts[target])))
        random.drawn = target if not alike else int(random.generator.choice(np.array(alike[:10])))
    return random.drawn


class Drawn:
    """A generator that remembers the one word that was drawn from it."""

    def __init__(self, seed: list[int]) -> None:
        self.generator = np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        if name == "drawn":
            raise AttributeError(name)
        return getattr(self.generator, name)


def brute_force(losses: Losses, answer: Answer, without: Answer, within: bool) -> tuple[np.ndarray, np.ndarray]:
    """The baseline (N,) and every condition (C, N), by the definition."""
    baseline = [
        answer(before(p, losses.baseline_context, within), t)
        for p, t in zip(losses.positions.tolist(), losses.targets.tolist(), strict=True)
    ]
    rows = []
    for record in losses.conditions:
        row = []
        for position, target in zip(losses.positions.tolist(), losses.targets.tolist(), strict=True):
            context = before(position, record["context"], within)
            if record["method"] == "without-cache":
                row.append(without(context, target))
                continue
            # The token that a document begins with stays where it is.
            document = max(b for b in (0, 150, 420) if b <= position)
            first = context[: within and position - record["context"] < document]
            text, random = context[len(first) :], Drawn([SEED, zlib.crc32(record["name"].encode()), position])
            tags = tags_before(position, len(text))
            row.append(answer(first + changed(dict(record), text, tags, target, random), target))
        rows.append(row)
    return np.array(baseline), np.array(rows)


@pytest.mark.parametrize(
    ("experiment", "within"),
    fast_then_full(
        product([name for name in EXPERIMENTS if name != "cache"], [False, True]),
        [(name, number % 2 == 0) for number, name in enumerate(name for name in EXPERIMENTS if name != "cache")],
    ),
)
def test_every_experiment_is_that_of_one_target_at_a_time(experiment: str, within: bool) -> None:
    model = build()
    losses = measure(experiment, examination(StaticReader(model, FLOAT32), within_documents=within))
    baseline, rows = brute_force(losses, alone(model), alone(model), within)
    np.testing.assert_allclose(losses.baseline, baseline, rtol=0, atol=1e-5)
    np.testing.assert_allclose(losses.nats, rows, rtol=0, atol=1e-5)
    effects = np.abs(losses.nats - losses.baseline)
    assert (effects.max(1) > 1e-3).all() or experiment in ("shuffle", "reverse", "replace"), "a condition has no effect"
    assert effects.max() > 3e-3  # many times the tolerance


@pytest.mark.parametrize("within", [False, True], ids=["across documents", "within documents"])
@pytest.mark.parametrize("experiment", ["cache", "truncate", "drop-target"])
def test_a_model_with_a_cache_is_examined_by_the_cache_of_the_context_alone(experiment: str, within: bool) -> None:
    model = build()
    reader = NeuralCache(StaticReader(model, FLOAT32), CACHE)
    losses = measure(experiment, examination(reader, within_documents=within))
    baseline, rows = brute_force(losses, cached(model), alone(model), within)
    np.testing.assert_allclose(losses.baseline, baseline, rtol=0, atol=1e-5)
    np.testing.assert_allclose(losses.nats, rows, rtol=0, atol=1e-5)
    assert np.abs(losses.nats - losses.baseline).max() > 0.05


@pytest.mark.full
def test_neither_order_nor_company_changes_what_is_drawn_for_a_target() -> None:
    reader = StaticReader(build(), FLOAT32)
    few, many = (measure("shuffle", examination(reader, targets=count)) for count in (24, TOKENS))
    places = np.searchsorted(many.positions, few.positions)
    assert np.array_equal(many.positions[places], few.positions)
    np.testing.assert_allclose(many.nats[:, places], few.nats, rtol=0, atol=1e-5)


def test_the_texts_words_come_again_near_and_far() -> None:
    ids = corpus()[0].tolist()
    assert len({a for a, b in pairwise(ids) if a == b}) > 1 and len(set(ids)) > 40
