"""The corpus `recall` against a plain generator, and its costs against a reader that tries every hidden cast and fact."""

from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import several

from backstory.config import RecallConfig, TextConfig
from backstory.data import Dataset, Recall, encode_split, prepare
from backstory.runs.run import corpus_places
from backstory.utils.errors import UserError

SMALL: dict[str, Any] = {"entities": 30, "cast": 4, "names": 3, "values": 5, "words": 20, "length": 200}


def made(**changes: Any) -> Dataset:
    return prepare(TextConfig(corpus="recall", recall=RecallConfig(**changes)))


# --- statistics, against the description followed literally ---


def plain_document(s: RecallConfig, chain: np.ndarray, rng: np.random.Generator) -> list[tuple[str, int]]:
    """Each token with how long ago what comes back in it was last seen, or 0."""
    out: list[tuple[str, int]] = []
    hidden, seen, told, last = list(rng.permutation(s.entities)[: s.cast]), {}, {}, 0
    while len(out) < s.length - 1:
        drawn = rng.random()
        if drawn < s.mentions:
            new = rng.random() < (s.cast - len(seen)) / s.cast
            e = hidden[len(seen)] if new else list(seen)[rng.integers(len(seen))]
            out.append((f"e{e}", 0 if new else len(out) - seen[e]))
            seen[e] = len(out) - 1
        elif drawn < s.mentions + s.facts:
            n = int(rng.integers(s.names))
            value, before = told.get(n, (int(rng.integers(s.values)), None))
            here = len(out) + 2
            out += [(f"n{n}", 0), ("is" if before is None else "?", 0), (f"v{value}", here - (before or here))]
            told[n] = (value, here)
        else:
            last = int(rng.choice(s.words, p=chain[last]))
            out.append((f"w{last}", 0))
    return [*out[: s.length - 1], ("<eos>", 0)]


@pytest.mark.full
@pytest.mark.parametrize("facts", [0.0, 0.1])
def test_statistics_are_those_of_a_plain_generator(facts: float) -> None:
    config = RecallConfig(**SMALL, facts=facts, documents=2000, seed=3)
    source, rng = Recall(config), np.random.default_rng(0)
    plain = [plain_document(config, source.chain, rng) for _ in range(300)]
    index = {word: i for i, word in enumerate(source.words())}
    by_hand = np.array([index[word] for document in plain for word, _ in document])
    ours = np.concatenate([*source.draw("train")])
    truths = [source.truth(ids) for ids in (by_hand, ours)]
    assert truths[0].distance.tolist() == [distance for document in plain for _, distance in document]
    shares, entropies, distances = [], [], []
    for truth in truths:
        shares.append(np.bincount(truth.kind, minlength=len(truth.kinds)) / len(truth.kind))
        entropies.append(truth.exact.mean())
        kinds = [truth.kinds.index(k) for k in (truth.forgotten if facts else ["old entity"])]
        distances.append([np.quantile(truth.distance[truth.kind == k], [0.25, 0.5, 0.75, 0.9]) for k in kinds])
    # 60,000 tokens by hand: four standard errors.
    assert shares[1] == pytest.approx(shares[0], abs=4 * (0.25 / 60_000) ** 0.5)
    assert entropies[1] == pytest.approx(entropies[0], abs=4 * truths[0].exact.std() / 60_000**0.5)
    assert np.array(distances[1]) == pytest.approx(np.array(distances[0]), rel=0.08, abs=1)
    follows = np.zeros_like(source.chain)
    words = ours.reshape(-1, config.length) - index["w0"]
    pairs = words[:, :-1], words[:, 1:]
    filler = [(w >= 0) & (w < config.words) for w in pairs]
    np.add.at(follows, tuple(w[filler[0] & filler[1]] for w in pairs), 1)
    tries = follows.sum(1, keepdims=True)
    spread = np.sqrt(source.chain * (1 - source.chain) / np.maximum(tries, 1))
    assert (np.abs(follows / np.maximum(tries, 1) - source.chain) < 6 * spread + 1e-12)[tries[:, 0] > 500].all()


# --- exact costs, against a reader that weighs every cast (in its order) and every value of every name ---

TINY = RecallConfig(
    entities=4, cast=2, mentions=0.35, facts=0.25, names=2, values=2, words=3, length=24, documents=1, held_out=8
)


def bayesian(words: list[str], s: RecallConfig, chain: np.ndarray) -> Iterator[float]:
    """-log p of each token of a document, its end left out."""
    hypotheses = [*product(permutations(range(s.entities), s.cast), product(range(s.values), repeat=s.names))]
    weights = np.ones(len(hypotheses)) / len(hypotheses)
    for place, word in enumerate(words):
        likelihoods = np.array([likelihood(words[:place], word, *h, s, chain) for h in hypotheses])
        yield -float(np.log(weights @ likelihoods))
        weights = weights * likelihoods / (weights @ likelihoods)


def likelihood(
    past: list[str], word: str, cast: tuple[int, ...], values: tuple[int, ...], s: RecallConfig, chain: np.ndarray
) -> float:
    """p(word | past) where the order of the cast and the values are known."""
    kind, number = word[0], int(word[1:]) if word[1:].isdigit() else -1
    if past and past[-1][0] == "n":
        return float(word == ("?" if past[-1] in past[:-1] else "is"))
    if past and past[-1] in ("is", "?"):
        return float(kind == "v" and number == values[int(past[-2][1:])])
    if kind == "e":
        seen = {int(w[1:]) for w in past if w[0] == "e"}
        if number in seen:
            return s.mentions * len(seen) / s.cast / len(seen)
        coming = cast[len(seen)] if seen == set(cast[: len(seen)]) and len(seen) < s.cast else None
        return s.mentions * (s.cast - len(seen)) / s.cast * (number == coming)
    if kind == "n":
        return s.facts / s.names
    fillers = [int(w[1:]) for w in past if w[0] == "w"]
    return (1 - s.mentions - s.facts) * float(chain[fillers[-1] if fillers else 0, number]) if kind == "w" else 0.0


@pytest.mark.parametrize("seed", range(3))
def test_costs_are_those_of_a_reader_who_weighs_every_possibility(seed: int) -> None:
    config = RecallConfig(**{**vars(TINY), "seed": seed})
    source = Recall(config)
    ids = np.concatenate([*source.draw("test")])
    truth, words = source.truth(ids), source.words()
    kinds = {truth.kinds[k] for k in truth.kind}
    assert {"new entity", "old entity", "stated value", "queried value"} <= kinds
    for start in range(0, len(ids), config.length):
        *document, end = [words[i] for i in ids[start : start + config.length]]
        assert end == "<eos>" and truth.exact[start + config.length - 1] == 0
        costs = [*bayesian(document, config, source.chain)]
        assert truth.exact[start : start + len(costs)] == pytest.approx(costs, abs=1e-9)


def test_what_forgetting_costs() -> None:
    source = Recall(TINY)
    # Who knows nothing of a document finds every entity, and every value, as likely.
    nothing = {"old entity": -np.log(TINY.mentions / TINY.entities), "queried value": np.log(TINY.values)}
    truth = source.truth(np.concatenate([*source.draw("test")]))
    for kind, nats in nothing.items():
        exact = truth.exact[truth.kind == truth.kinds.index(kind)]
        assert len(exact) and nats - exact == pytest.approx(truth.forgotten[kind])


# --- documents ---


@st.composite
def configs(draw: st.DrawFn) -> RecallConfig:
    entities = draw(st.integers(1, 12))
    mentions = draw(st.floats(0, 0.99))
    return RecallConfig(
        entities=entities,
        cast=draw(st.integers(1, entities)),
        mentions=mentions,
        facts=draw(st.floats(0, 0.995 - mentions)),
        names=draw(st.integers(1, 4)),
        values=draw(st.integers(1, 4)),
        words=draw(st.integers(1, 12)),
        length=draw(st.integers(2, 40)),
        documents=draw(st.integers(1, 30)),
        seed=draw(st.integers(0, 2**31 - 1)),
    )


@given(configs())
@settings(max_examples=several(20, 100))
def test_documents_are_as_described(config: RecallConfig) -> None:
    source = Recall(config)
    words = source.words()
    ids = np.concatenate([*source.draw("train")])
    truth = source.truth(ids)
    assert ids.shape == truth.exact.shape == (config.documents * config.length,)
    assert np.isfinite(truth.exact).all() and (truth.exact > -1e-12).all()
    assert ((truth.distance > 0) == np.isin([truth.kinds[k] for k in truth.kind], list(truth.forgotten))).all()
    for start in range(0, len(ids), config.length):
        *document, end = [words[i] for i in ids[start : start + config.length]]
        assert end == "<eos>" and not {"<eos>", "<unk>"} & set(document)
        assert len({w for w in document if w[0] == "e"}) <= config.cast
        told: dict[str, str] = {}
        place = 0
        while place < len(document):
            if document[place][0] != "n":
                assert document[place][0] in "we"
                place += 1
                continue
            name, *rest = document[place : place + 3]
            assert rest[:1] in ([], ["?" if name in told else "is"])
            if len(rest) == 2:
                assert rest[1][0] == "v" and told.setdefault(name, rest[1]) == rest[1]
            place += 3


def test_it_is_a_corpus() -> None:
    data = made(**SMALL, facts=0.1, documents=30, held_out=5)
    words = data.vocabulary
    assert words.words[words.start] == "<eos>" and words.unknown is not None
    for name, count in (("train", 30), ("valid", 5), ("test", 5)):
        split = data.splits[name]
        assert split.documents.tolist() == [200 * i for i in range(count)] and len(split.titles) == count
        assert len(split.ids) == 200 * count and split.ids.dtype == np.uint16
        # As text it is a line for a document, and the same again when it is read.
        text = words.decode(split.ids)
        again = encode_split(words, text)
        assert np.array_equal(again.ids, split.ids)
        assert (split.characters, split.bytes, split.words) == (again.characters, again.bytes, again.words)
        assert text.count("\n") == count
        truth = data.truth(name)
        assert truth is not None and len(truth.exact) == len(split.ids)
    assert np.array_equal(words.counts, np.bincount(data.splits["train"].ids, minlength=len(words)))
    assert words.counts[words.unknown] == 0
    assert data.vocabulary.from_json(words.to_json()).words == words.words


def test_many_documents_are_drawn_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstory.data.synthetic.recall.BLOCK", 7 * 200)
    source = Recall(RecallConfig(**SMALL, documents=30))
    assert [len(ids) for ids in source.draw("train")] == [1400, 1400, 1400, 1400, 400]
    heard: list[tuple[int, int]] = []
    prepare(TextConfig(corpus="recall", recall=source.settings), progress=lambda *said: heard.append(said))
    assert heard == sorted(heard) and heard[-1] == (2 * 200 * 110, 2 * 200 * 110)


def test_seeds() -> None:
    data, again = made(**SMALL, documents=40), made(**SMALL, documents=40)
    assert data.fingerprint == again.fingerprint
    assert all(np.array_equal(data.splits[s].ids, again.splits[s].ids) for s in data.splits)
    assert not np.array_equal(data.splits["train"].ids, data.splits["valid"].ids)
    assert not np.array_equal(data.splits["valid"].ids, data.splits["test"].ids)
    other = made(**SMALL, documents=40, seed=1)
    assert not np.array_equal(data.splits["train"].ids, other.splits["train"].ids)
    assert data.source is not None and other.source is not None
    assert not np.array_equal(data.source.chain, other.source.chain)


@pytest.mark.parametrize(
    "change",
    [
        *({"entities": 31}, {"cast": 5}, {"mentions": 0.2}, {"facts": 0.1}, {"names": 4}, {"values": 6}, {"words": 21}),
        *({"length": 201}, {"documents": 41}, {"held_out": 41}, {"new_each_epoch": True}, {"seed": 1}),
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_is_in_the_fingerprint(change: dict[str, Any]) -> None:
    usual: dict[str, Any] = {**SMALL, "documents": 40}
    assert made(**usual).fingerprint != made(**{**usual, **change}).fingerprint


def test_a_setting_of_recall_changes_no_other_corpus(tiny_corpus: Path) -> None:
    corpus = str(tiny_corpus)
    found = {prepare(TextConfig(corpus, recall=RecallConfig(seed=seed))).fingerprint for seed in (0, 1)}
    assert len(found) == 1


def test_every_epoch_has_its_own_documents() -> None:
    data, kept = made(**SMALL, documents=30, new_each_epoch=True), made(**SMALL, documents=30)
    first = data.splits["train"].ids
    assert np.array_equal(data.epoch(1), first)
    later = [data.epoch(e) for e in (2, 3)]
    assert all(len(ids) == len(first) for ids in later)
    assert all((a != b).mean() > 0.5 for a, b in ((first, later[0]), (later[0], later[1])))
    assert np.array_equal(data.epoch(2), later[0])
    assert np.array_equal(kept.epoch(2), kept.splits["train"].ids)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ({"recall": {"entities": 5, "cast": 6}}, "a cast of 6 cannot be drawn from 5 entities"),
        ({"recall": {"mentions": 0.6, "facts": 0.4}}, "leave no room for filler words"),
        ({"recall": {"length": 1}}, "text.recall.length must be at least 2"),
        ({"recall": {"documents": 2**30}}, "more than 1,073,741,824 tokens"),
        ({"minimum_count": 2}, "set text.minimum_count to 1"),
        ({"maximum_size": 20}, "set text.maximum_size to null"),
        ({"lowercase": True}, "set text.lowercase to false"),
        ({"tokenizer": "bytes"}, "set text.tokenizer to auto"),
    ],
)
def test_settings_that_do_not_go_together(text: dict[str, Any], says: str) -> None:
    drawn = RecallConfig(**text.pop("recall", {}))
    with pytest.raises(UserError, match=says) as told:
        prepare(TextConfig(corpus="recall", recall=drawn, **text))
    assert "\n" not in str(told.value)


def test_a_folder_of_the_same_name_is_not_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recall").mkdir()
    assert corpus_places(TextConfig("recall"), tmp_path) == {"data_dir": str(tmp_path)}
    assert corpus_places(TextConfig("./recall"), None) == {"corpus": str(tmp_path / "recall")}
