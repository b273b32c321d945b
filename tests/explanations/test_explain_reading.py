"""Gains between readers: scored as in `evaluate`, and combined as plain loops would."""

import dataclasses
import io
import json
import math
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from bias_reader import KIND
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import backstory as bs
from backstory.config import RunConfig
from backstory.context.bootstrap import paired_interval
from backstory.data import prepare
from backstory.evaluation import evaluate
from backstory.explanations import explain_passage, gain_passages, gains
from backstory.explanations.gains import ENOUGH, ScoredText
from backstory.readers import READERS, ReaderKind
from backstory.results import result_from
from backstory.results.passage import Numbers, Passage
from backstory.runs.run import load_run
from backstory.training import train
from backstory.utils.errors import UserError

THREE = {"reader": "bias:forget=0.1", "against": ("bias", "static")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a folder of documents."""
    folder = tmp_path_factory.mktemp("documents")
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(60):
        (corpus / f"doc{number:02}.txt").write_text(runs.sentences(2 + 5 * (number % 3), number))
    train(runs.tiny_config(corpus), folder / "run", console=Console(file=io.StringIO()))
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(READERS, "bias", KIND)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def scores(run: Path, reader: str, folder: Path, split: str = "train") -> np.ndarray:
    """Minus the log-probabilities that `evaluate` writes for every token of a split."""
    path = folder / f"{reader.replace(':', '-')}.jsonl"
    evaluate(run, split=split, reader=reader, per_token=path, out=folder / "out", overwrite=True)
    written = [json.loads(line)["log_prob"] for line in path.read_text().splitlines()]
    return -np.array(written, np.float32).astype(np.float64)


@pytest.mark.full
@pytest.mark.parametrize("at, tokens", [(0, 10**6), (0, 137), (413, 95)])
def test_every_score_is_the_one_that_evaluate_writes(run: Path, tmp_path: Path, at: int, tokens: int) -> None:
    """Bit for bit, in the middle of the text too: what comes before is read, and no block is cut short."""
    result = bs.explain(run, "reading", split="train", at=at, tokens=tokens, block=1, **THREE).figures
    best, middle, plain = (
        scores(run, name, tmp_path)[at : at + tokens] for name in ("bias:forget=0.1", "bias", "static")
    )
    assert np.abs(plain - middle).max() > 0.01 < np.abs(middle - best).max()
    named = {(c.reader, c.over): c for c in result.comparisons}
    expected = {("bias", "static"): plain - middle, ("bias:forget=0.1", "bias"): middle - best,
                ("bias:forget=0.1", "static"): plain - best}  # fmt: skip
    assert list(named) == list(expected)
    for pair, gain in expected.items():
        assert named[pair].blocks == tuple(gain.tolist())
        assert named[pair].gain == pytest.approx(gain.mean(), abs=1e-12)
    for reader, nats in zip(result.readers, (best, middle, plain), strict=True):
        assert reader.nats_per_token == pytest.approx(nats.mean(), abs=1e-12)
        assert reader.perplexity == pytest.approx(math.exp(nats.mean()))
    assert (result.context, result.tokens) == (at, len(plain))


def test_a_context_is_all_that_is_read_before(run: Path, tmp_path: Path) -> None:
    """As a text that begins there, but for the token that the model is given first."""
    result = bs.explain(run, "reading", split="train", at=400, tokens=60, context=0, block=1, **THREE).figures
    whole = bs.explain(run, "reading", split="train", at=400, tokens=60, block=1, **THREE).figures
    assert (result.context, whole.context) == (0, 400)
    assert result.readers != whole.readers
    place = {"split": "train", "at": 400, "words": 60, "context": 0}
    alone = bs.explain(run, **place, reader="bias", out=tmp_path / "alone").figures
    assert result.readers[1].nats_per_token == pytest.approx(alone.nats_per_token, abs=1e-6)


@pytest.mark.full
def test_blocks_documents_and_places_are_means_of_the_tokens(run: Path, tmp_path: Path) -> None:
    at, tokens = 30, 500
    result = bs.explain(run, "reading", split="train", at=at, tokens=tokens, block=40, **THREE).figures
    nats = [scores(run, name, tmp_path)[at : at + tokens] for name in ("bias:forget=0.1", "bias", "static")]
    split = prepare(load_run(run).config.text).splits["train"]
    comparison = result.comparisons[0]
    for i in range(13):
        inside = slice(40 * i, 40 * i + 40)
        middle, plain = nats[1][inside].mean(), nats[2][inside].mean()
        assert comparison.blocks[i] == pytest.approx(plain - middle, abs=1e-12)
        assert comparison.perplexity_blocks[i] == pytest.approx(math.exp(plain) - math.exp(middle))
    assert len(comparison.blocks) == 13 and result.comparisons[0].perplexity_gain == pytest.approx(
        result.readers[2].perplexity - result.readers[1].perplexity
    )
    starts = [*split.documents.tolist(), len(split.ids)]
    expected = [
        (number, split.titles[number], max(a, at), min(b, at + tokens))
        for number, (a, b) in enumerate(pairwise(starts))
        if a < at + tokens and b > at
    ]
    assert len(expected) > ENOUGH
    for told, (number, title, start, end) in zip(result.documents, expected, strict=True):
        assert (told.document, told.title, told.start, told.tokens) == (number, title, start, end - start)
        means = [n[start - at : end - at].mean() for n in nats]
        assert told.nats == pytest.approx(means, abs=1e-12)
        assert told.gains == pytest.approx([means[2] - means[1], means[1] - means[0], means[2] - means[0]], abs=1e-12)
    assert sum(p.tokens for p in result.positions) == tokens
    for place in result.positions:
        far = [
            i for number, _, a, b in expected for i in range(a, b)
            if place.from_ <= i - int(split.documents[number]) < place.to
        ]  # fmt: skip
        gain = (nats[2] - nats[0])[np.array(far) - at].mean()
        assert place.tokens == len(far) and place.gains[2].gain == pytest.approx(gain, abs=1e-12)


@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=6), at=st.integers(0, 300), tokens=st.integers(1, 900)
)
def test_every_token_is_in_one_document_and_at_one_place(lengths: list[int], at: int, tokens: int) -> None:
    total = sum(lengths)
    at, tokens = min(at, total - 1), min(tokens, total - min(at, total - 1))
    documents = np.cumsum([0, *lengths[:-1]])
    scored = ScoredText(np.arange(2 * tokens, dtype=float).reshape(2, tokens), at, documents, [""] * len(lengths))
    owner = [number for number, length in enumerate(lengths) for _ in range(length)][at : at + tokens]
    offset = [i for length in lengths for i in range(length)][at : at + tokens]
    assert (scored.within.tolist(), scored.offsets.tolist()) == (owner, offset)
    told = gains.documents(scored)
    assert [d.document for d in told] == sorted(set(owner)) and sum(d.tokens for d in told) == tokens
    assert told[0].start == at
    places = gains.positions(scored)
    for p in places:
        assert p.tokens == sum(p.from_ <= o < p.to for o in offset) > 0
    assert sum(p.tokens for p in places) == tokens
    # 0, 100, 200, 400, 800: each twice as far as the one before.
    assert all((p.from_, p.to) == (0, 100) or p.to == 2 * p.from_ for p in places)


def test_an_interval_is_over_documents_not_tokens() -> None:
    """Documents of one length whose tokens gain alike: the interval is that of the documents' means."""
    means = np.random.default_rng(1).normal(size=12)
    found = gains.interval(np.repeat(means, 50), np.repeat(np.arange(12), 50))
    expected = paired_interval(means)
    assert found.to_dict() == {"gain": pytest.approx(expected.value), "low": pytest.approx(expected.low),
                     "high": pytest.approx(expected.high)}  # fmt: skip
    few = gains.interval(np.repeat(means[: ENOUGH - 1], 50), np.repeat(np.arange(ENOUGH - 1), 50))
    assert (few.low, few.high) == (None, None)
    # A long document weighs as much as it has tokens: the mean is of tokens, and lies within.
    uneven = gains.interval(np.arange(1000.0), np.sqrt(np.arange(1000)).astype(int))
    assert uneven.gain == 499.5 and uneven.low < 499.5 < uneven.high


def test_blocks_are_drawn_where_a_text_is_one_document() -> None:
    nats = np.repeat(np.random.default_rng(2).normal(5, 1, (2, 12)), 500, axis=1)
    scored = ScoredText(nats, 1_000, np.zeros(1, np.int64), ["all"])
    [told] = gains.comparisons(scored, ["a", "b"], 100)
    blocks = paired_interval((nats[1] - nats[0])[::500])
    assert (told.low, told.high) == (pytest.approx(blocks.low), pytest.approx(blocks.high))
    many = ScoredText(nats, 1_000, np.arange(0, 7_000, 1_000), [""] * 7)
    [told] = gains.comparisons(many, ["a", "b"], 100)
    assert told.low is None, "documents that are known and few say little of how they differ"


@given(values=st.lists(st.integers(-9, 9), min_size=1, max_size=40), words=st.integers(1, 12))
def test_the_passages_are_those_of_most_and_least_gain(values: list[int], words: int) -> None:
    length = min(words, len(values))
    sums = [sum(values[i : i + length]) for i in range(len(values) - length + 1)]
    found = dict(gain_passages.notable(np.array(values, float), [2, 1] if len(values) > 2 else [], words))
    assert sums[found["the largest gain"]] == max(sums)
    lost = found.get("the largest loss", found.get("the smallest gain"))
    assert (min(sums) == max(sums)) if lost is None else sums[lost] == min(sums)
    assert ("the largest loss" in found) == (min(sums) < 0 and min(sums) < max(sums))
    begins = found.get("the beginning of a document")
    assert begins in (None, 2) and (begins == 2 or len(values) <= 2 or 2 in found.values())


def test_pairs_follow_each_other_and_span_all() -> None:
    assert gains.pairs(2) == [(0, 1)]
    assert gains.pairs(3) == [(1, 2), (0, 1), (0, 2)]
    assert gains.pairs(4) == [(2, 3), (1, 2), (0, 1), (0, 3)]


def layers(passage: Passage) -> dict[str, Any]:
    return {layer.name: layer for layer in passage.layers}


@pytest.mark.full
def test_passages_say_what_their_tokens_gain(run: Path, tmp_path: Path) -> None:
    result = bs.explain(run, "reading", split="train", at=10, tokens=600, words=30, passage=(12, 600), **THREE).figures
    nats = {name: scores(run, name, tmp_path) for name in ("bias:forget=0.1", "bias", "static")}
    dataset = prepare(load_run(run).config.text)
    one, two = result.passages
    assert (one.why, one.at, one.tokens, two.at, two.tokens) == ("asked for", 12, 30, 600, 10)
    for passage in (one, two):
        inside = slice(passage.at, passage.at + passage.tokens)
        words = [w.text for w in passage.passage.words]
        assert words == [
            w.replace("<eos>", "¶") for w in dataset.vocabulary.tokens(dataset.splits["train"].ids[inside])
        ]
        found = layers(passage.passage)
        assert list(found)[:3] == ["gain over static", "gain over bias", "gain of bias over static"]
        for (name, layer), (here, there) in zip(
            found.items(),
            (("bias:forget=0.1", "static"), ("bias:forget=0.1", "bias"), ("bias", "static")),
            strict=False,
        ):
            assert isinstance(layer, Numbers) and layer.kind == "diverging", name
            assert layer.values == pytest.approx((nats[there] - nats[here])[inside].tolist(), abs=1e-12)
        for name, expected in nats.items():
            assert found[f"surprisal, {name}"].values == pytest.approx(expected[inside].tolist(), abs=1e-12)
        assert passage.gains[-1] == pytest.approx((nats["static"] - nats["bias:forget=0.1"])[inside].mean())
    scales = {layer.high for p in (one, two) for name, layer in layers(p.passage).items() if "gain" in name}
    assert len(scales) == 1  # a colour means the same everywhere
    assert one.passage.title.endswith(", from word 12")


def test_passages_are_chosen_where_none_are_asked_for(run: Path) -> None:
    result = bs.explain(run, "reading", split="train", tokens=400, words=20, block=1, **THREE).figures
    told = {p.why: p for p in result.passages}
    assert len(told) == 3
    gain = result.comparisons[-1].blocks
    best = max(range(381), key=lambda i: sum(gain[i : i + 20]))
    assert sum(gain[told["the largest gain"].at :][:20]) == pytest.approx(sum(gain[best : best + 20]))
    begins = [d.start for d in result.documents][1:]
    longest = max((d for d in result.documents if d.start), key=lambda d: d.tokens)
    assert told["the beginning of a document"].at in begins
    assert told["the beginning of a document"].at == longest.start


@pytest.mark.full
def test_words_of_many_tokens(tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "bias", KIND)
    text = dataclasses.replace(tiny_config.text, tokenizer="characters")
    letters = tmp_path / "letters"
    train(dataclasses.replace(tiny_config, text=text), letters, console=Console(file=io.StringIO()))
    how: dict[str, Any] = {"reader": "bias", "word_score": "sum"}
    result = bs.explain(letters, "reading", split="valid", words=5, passage=(9,), **how).figures
    (passage,) = result.passages
    dataset = prepare(load_run(letters).config.text)
    ids = dataset.splits["valid"].ids
    shown = passage.passage
    assert passage.at <= 9 < passage.at + passage.tokens and "several characters" in shown.note
    whole = dataset.vocabulary.decode(ids[passage.at : passage.at + passage.tokens])
    assert " ".join(w.text for w in shown.words) == " ".join(whole.split())
    gain = sum(layers(passage.passage)["gain over static"].values)
    assert gain == pytest.approx(passage.gains[0] * passage.tokens) and result.unit == "character"
    assert result.word_score == "sum"
    # Corrected, a passage's words are those of the reader alone.
    at, tokens = passage.at, passage.tokens
    stretch, detail = {"split": "valid", "tokens": at + tokens}, {"words": 5, "passage": (9,)}
    corrected = bs.explain(letters, "reading", **stretch, **detail, reader="bias").figures
    assert corrected.word_score == "corrected" and corrected.readers[0].name == "bias"
    found = layers(corrected.passages[0].passage)
    alone = bs.explain(letters, split="valid", at=at, words=len(shown.words)).figures
    for layer in alone.passage.layers:
        if layer.name == "surprisal":
            assert found["surprisal, static"].values == pytest.approx(layer.values, abs=1e-4)
    assert found["surprisal, static"].values != layers(passage.passage)["surprisal, static"].values
    begun = bs.explain(letters, "reading", split="valid", at=at, tokens=tokens, **detail, reader="bias").figures
    inside = layers(begun.passages[0].passage)["surprisal, static"].values
    assert inside == pytest.approx(found["surprisal, static"].values, abs=1e-4)


def test_against_another_run_and_a_text_of_one_s_own(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other" / "run"))
    text = tmp_path / "mine.txt"
    text.write_text("ann saw the tea and\nbob took more jam\n" * 5)
    result = bs.explain(run, "reading", text=text, reader="bias", against=(str(other), "static")).figures
    assert [r.name for r in result.readers] == ["bias", "run", "static"]
    assert result.readers[0].nats_per_token == result.readers[1].nats_per_token  # the same run, the same reader
    assert result.text == "mine.txt" and set(result.comparisons[1].blocks) == {0.0}
    twin = Path(shutil.copytree(run, tmp_path / "another" / "run"))
    named = bs.explain(run, "reading", split="valid", tokens=50, against=(str(other), str(twin))).figures.readers
    assert [r.name for r in named] == ["run", str(other), str(twin)]


@pytest.mark.full
def test_what_is_written_is_a_result_and_settings_are_told(run: Path) -> None:
    result = bs.explain(run, "reading", split="valid", **THREE)
    (path,) = run.glob("explain-reading-valid-bias_forget_0.1-against-bias-static/result.json")
    assert json.loads(path.read_text()) == result.to_dict()
    assert result_from(path.read_text(), "x").label == "explain reading of valid"
    assert result.figures.readers[0].layers == [
        {"name": "bias", "settings": {"rate": 0.2, "forget": 0.1}, "origin": "forget given, others default"}
    ]
    many = bs.explain(run, "reading", split="valid", passage=tuple(range(60)), **THREE)
    assert len(many.figures.passages) == 60
    (long,) = (p for p in run.glob("explain-reading-*") if "passage0" in p.name)
    assert len(long.name) < 200
    bs.explain(run, "reading", split="valid", passage=tuple(range(61)), **THREE)
    assert len([p for p in run.glob("explain-reading-*") if "passage0" in p.name]) == 2


def test_the_model_is_left_as_it_was(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def remember(ground: Any, settings: Any) -> Any:
        made.append(KIND.build(ground, settings))
        return made[-1]

    monkeypatch.setitem(READERS, "bias", ReaderKind("bias", "", remember, KIND.settings))
    files = {name: digest for name, digest in runs.contents(run).items() if not name.startswith("explain")}
    bs.explain(run, "reading", split="valid", **THREE)
    kept = load_run(run).model.state_dict()
    for reader in made:
        assert all((tensor == kept[name]).all() for name, tensor in reader.model.state_dict().items())
    assert len(made) == 2
    assert {n: d for n, d in runs.contents(run).items() if not n.startswith("explain")} == files


def test_progress_counts_every_token_of_every_reader(run: Path) -> None:
    seen: list[tuple[int, int]] = []
    bs.explain(run, "reading", split="train", at=50, tokens=100, **THREE, progress=lambda d, t: seen.append((d, t)))
    assert seen[-1] == (450, 450) and seen == sorted(seen) and len(seen) > 10


def test_mistakes_write_nothing(run: Path) -> None:
    before = sorted(run.rglob("*"))
    compare: Callable[..., Any] = lambda **k: bs.explain(run, "reading", **({"reader": "bias"} | k))  # noqa: E731
    for mistaken, says in (
        (lambda: compare(at=10**9), r"at=1000000000 is beyond the test text, which has"),
        (lambda: compare(at=50, tokens=100, passage=(60, 150)), r"passage=150 .* tokens 50 to 149"),
        (lambda: compare(at=50, tokens=100, passage=(49,)), r"passage=49 is outside the stretch"),
        (lambda: compare(reader="static"), r"static would be compared with itself"),
        (lambda: compare(against=("static", "static")), r"static would be compared with itself"),
        (lambda: compare(against=("statik",)), r"'statik' is neither a reader \(did you mean 'static'\?\)"),
        (lambda: compare(reader="biass"), r"no reader 'biass' \(did you mean 'bias'\?\)"),
        (lambda: compare(split="vaild"), r"no split 'vaild' \(did you mean 'valid'\?\)"),
        (lambda: compare(tokens=0), r"tokens must be 1 or more"),
        (lambda: compare(context=-1), r"context must be 0 or more"),
        (lambda: compare(block=0), r"block must be 1 or more"),
        (lambda: compare(words=2001), r"1 to 2,000 words, not 2,001"),
        (lambda: explain_passage(run, "reading"), r"`explain reading` has options of its own"),
        (lambda: compare(out=run), r"holds a result of kind training, which would be lost"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=says):
            mistaken()
    assert sorted(run.rglob("*")) == before


@pytest.mark.full
def test_real_articles_have_titles(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WikiText-2 with a model of a few thousand steps less than it needs: the articles are those of the file."""
    monkeypatch.setitem(READERS, "bias", KIND)
    config = runs.tiny_config(data_dir / "wikitext-2")
    text = dataclasses.replace(config.text, corpus="wikitext-2", maximum_size=500)
    config = dataclasses.replace(config, text=text)
    monkeypatch.setenv("BACKSTORY_DATA", str(data_dir))
    short = runs.with_training(config, batch_size=400, segment=70, epochs=1, steps=5)
    train(short, tmp_path / "wiki", console=Console(file=io.StringIO()))
    figures = bs.explain(tmp_path / "wiki", "reading", split="test", reader="bias").figures
    lines = (data_dir / "wikitext-2" / "wiki.test.tokens").read_text().splitlines()
    heads = [line.strip(" =") for line in lines if line.startswith(" = ") and not line.startswith(" = =")]
    titles = [d.title for d in figures.documents]
    assert len(titles) > 3 and titles == heads[: len(titles)]
    assert figures.tokens == 20_000 and len(figures.comparisons[0].blocks) == 200
