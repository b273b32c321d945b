"""The figures of a passage are those of the model itself, read with all that comes before."""

import dataclasses
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import backstory as bs
from backstory.config import RunConfig
from backstory.data import prepare
from backstory.evaluation import evaluate
from backstory.explanations import EXPLANATIONS
from backstory.readers import READERS, ReaderKind
from backstory.results import Candidates, Numbers, result_from
from backstory.runs.run import load_run
from backstory.training import train
from backstory.utils.errors import UserError


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "tiny"))


def trained(config: RunConfig, folder: Path) -> Path:
    train(config, folder, console=Console(file=io.StringIO()))
    return folder


def log_probs(run: Path, ids: np.ndarray) -> torch.Tensor:
    """All log-probabilities (N, V) by the plain forward pass over the whole text at once."""
    loaded = load_run(run)
    tokens = torch.tensor([loaded.vocabulary.start, *ids[:-1].tolist()])[None]
    with torch.no_grad():
        prediction, _ = loaded.model(tokens, loaded.model.start(1))
        return prediction.log_probs()[0].double()


def layers(result: Any) -> dict[str, Any]:
    passage = result.figures.passage
    return {layer.name: layer for layer in passage.layers}


@pytest.mark.parametrize("at, context", [(0, None), (300, None), (300, 7), (300, 0), (290, 256)])
def test_every_figure_is_the_model_s(run: Path, tiny_config: RunConfig, at: int, context: int | None) -> None:
    """Places on both sides of the blocks of 256 tokens that a reader reads."""
    dataset = prepare(tiny_config.text)
    ids = np.asarray(dataset.splits["train"].ids)
    start = 0 if context is None else at - context
    table = log_probs(run, ids[start : at + 12])[at - start :]
    targets = torch.tensor(ids[at : at + 12].astype(np.int64))
    result = bs.explain(run, split="train", at=at, words=12, context=context, top=3)
    found = layers(result)
    nats = -table.gather(1, targets[:, None])[:, 0]
    assert found["surprisal"].values == pytest.approx(nats.tolist(), abs=1e-5)
    assert found["probability"].values == pytest.approx((100 * (-nats).exp()).tolist(), rel=1e-4)
    assert found["entropy"].values == pytest.approx((-table.exp() * table).sum(1).tolist(), abs=1e-5)
    assert found["rank"].values == tuple((1 + (table > -nats[:, None]).sum(1)).double().tolist())
    for lists, row in zip(found["expected"].lists, table, strict=True):
        top = row.topk(3)
        assert [p for _, p in lists["model"]] == pytest.approx(top.values.exp().tolist(), rel=1e-4)
        assert [w for w, _ in lists["model"]] == [
            w.replace("<eos>", "¶") for w in dataset.vocabulary.tokens(top.indices)
        ]
    words = [word.text for word in result.figures.passage.words]
    assert words == [w.replace("<eos>", "¶") for w in dataset.vocabulary.tokens(ids[at : at + 12])]
    assert (result.figures.context, result.figures.tokens) == (at - start, 12)
    assert result.figures.nats_per_token == pytest.approx(nats.mean().item(), abs=1e-5)


def test_a_whole_split_agrees_with_its_evaluation(run: Path) -> None:
    evaluated = evaluate(run, split="valid").figures
    explained = bs.explain(run, split="valid", words=2000).figures
    assert explained.tokens == evaluated.tokens
    assert explained.nats_per_token == pytest.approx(evaluated.nats_per_token, abs=1e-6)
    assert explained.perplexity == pytest.approx(evaluated.perplexity, rel=1e-6)


def test_a_gain_is_what_the_other_costs_more(run: Path, tmp_path: Path, tiny_config: RunConfig) -> None:
    other = trained(dataclasses.replace(tiny_config, seed=2), tmp_path / "other")
    place = {"split": "valid", "at": 20, "words": 15}
    plain, theirs = bs.explain(run, **place), bs.explain(other, **place)
    result = bs.explain(run, **place, against=str(other))
    found = layers(result)
    gain = found["gain over other"]
    assert gain.kind == "diverging" and max(map(abs, gain.values)) > 0.01
    ours, others = (np.array(layers(r)["surprisal"].values) for r in (plain, theirs))
    assert gain.values == pytest.approx((others - ours).tolist(), abs=1e-6)
    assert found["surprisal"] == layers(plain)["surprisal"]
    assert list(found) == ["gain over other", *layers(plain)]
    assert result.figures.against == "other"
    assert result.figures.against_nats_per_token == pytest.approx(theirs.figures.nats_per_token, abs=1e-6)
    assert len(list(run.glob("explain-surprisal-valid-at20-words15-against-other-*/result.json"))) == 1


def test_against_a_reader_of_the_same_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = READERS["static"].build
    monkeypatch.setitem(READERS, "twin", ReaderKind("twin", "the same again", made))
    found = layers(bs.explain(run, split="valid", words=9, against="twin"))
    assert set(found["gain over twin"].values) == {0.0}


def test_a_text_of_one_s_own(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("ann saw the zebra\nbob took more ink\n")
    result = bs.explain(run, text=text, at=2)
    words = [word.text for word in result.figures.passage.words]
    assert words == ["the", "<unk>", "¶", "bob", "took", "more", "ink", "¶"]
    assert result.figures.text == "mine.txt" and result.figures.context == 2
    assert result.provenance.corpus.name == "mine.txt"
    ids = load_run(run).vocabulary.encode(text.read_text())
    table = log_probs(run, ids)
    nats = [-table[i, ids[i]].item() for i in range(2, 10)]
    assert layers(result)["surprisal"].values == pytest.approx(nats, abs=1e-5)


@pytest.fixture(scope="module")
def character_run(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = dataclasses.replace(tiny_config.text, tokenizer="characters")
    return trained(dataclasses.replace(tiny_config, text=text), tmp_path_factory.mktemp("characters") / "letters")


@pytest.mark.full
def test_a_word_of_many_tokens_costs_their_sum(character_run: Path, tmp_path: Path) -> None:
    result = bs.explain(character_run, split="valid", at=4, words=6, word_score="sum", out=tmp_path / "out")
    found, figures = layers(result), result.figures
    dataset = prepare(load_run(character_run).config.text)
    ids = np.asarray(dataset.splits["valid"].ids)
    table = log_probs(character_run, ids[: 4 + figures.tokens])
    nats = -table.gather(1, torch.tensor(ids[: len(table)].astype(np.int64))[:, None])[:, 0]
    assert sum(found["surprisal"].values) == pytest.approx(nats[4:].sum().item(), abs=1e-4)
    assert figures.nats_per_token == pytest.approx(nats[4:].mean().item(), abs=1e-6)
    passage = figures.passage
    assert " ".join(w.text for w in passage.words) == " ".join(
        dataset.vocabulary.decode(ids[4 : 4 + figures.tokens]).split()
    )
    place = 4
    for word, value in zip(passage.words, found["surprisal"].values, strict=True):
        end = place + len(word.before) + len(word.text)
        assert value == pytest.approx(nats[place:end].sum().item(), abs=1e-4)
        place = end
    assert "several characters" in passage.note and "corrected" not in passage.note
    assert figures.word_score == "sum"


def test_a_word_of_many_tokens_is_corrected_for_where_it_begins_and_ends(character_run: Path) -> None:
    result = bs.explain(character_run, split="valid", at=4, words=6, against="tempered:temperature=2")
    found, figures = layers(result), result.figures
    dataset = prepare(load_run(character_run).config.text)
    ids, words = np.asarray(dataset.splits["valid"].ids), dataset.vocabulary.words
    end = 4 + figures.tokens
    # Position i of the table is after i characters; what follows the passage does not matter.
    plain = log_probs(character_run, ids[: end + 1])
    for table, name in ((plain, "surprisal"), (torch.log_softmax(plain / 2, -1), "gain over tempered:temperature=2")):
        mass = table[:, [i for i, word in enumerate(words) if word.isspace()]].exp().sum(1).log()
        begin, expected = 4, []
        for word in figures.passage.words:
            stop = begin + len(word.before) + len(word.text)
            value = -sum(table[i, int(ids[i])].item() for i in range(begin, stop))
            value += mass[begin].item() if words[ids[begin]].isspace() and not words[ids[begin - 1]].isspace() else 0.0
            expected.append(value - (0.0 if words[ids[stop - 1]].isspace() else mass[stop].item()))
            begin = stop
        values = np.array(found[name].values) + (0 if table is plain else np.array(found["surprisal"].values))
        assert values == pytest.approx(expected, abs=1e-4), name
    assert begin == end
    assert figures.word_score == "corrected" and "corrected" in figures.passage.note
    sums = bs.explain(character_run, split="valid", at=4, words=6, word_score="sum")
    assert sums.figures.nats_per_token == pytest.approx(figures.nats_per_token, abs=1e-7)
    assert (character_run / "explain-surprisal-valid-at4-words6-word-score-sum").is_dir()


def test_what_is_written_is_a_result_that_a_report_takes(run: Path) -> None:
    result = bs.explain(run)
    path = run / "explain-surprisal" / "result.json"
    assert json.loads(path.read_text()) == result.to_dict()
    assert result_from(path.read_text(), "x").label == "explain surprisal of test"
    assert result.provenance.config["model"] and result.provenance.seconds >= 0
    assert math.isclose(result.figures.perplexity, math.exp(result.figures.nats_per_token))


def test_progress_counts_every_token_once(run: Path) -> None:
    seen: list[tuple[int, int]] = []
    bs.explain(run, split="train", at=300, words=10, against="static", progress=lambda d, t: seen.append((d, t)))
    assert seen[-1] == (620, 620) and seen == sorted(seen)


def test_the_layer_that_colours_first(run: Path) -> None:
    result = bs.explain(run, layer="entropy")
    assert result.figures.passage.layers[0].name == "entropy"
    kinds = {type(layer) for layer in layers(result).values()}
    assert kinds == {Numbers, Candidates}


def test_no_candidates_where_none_are_asked_for(run: Path) -> None:
    assert "expected" not in layers(bs.explain(run, top=0))


def test_mistakes_write_nothing(run: Path, tmp_path: Path, character_run: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    before = sorted(run.rglob("*"))
    for mistaken, says in (
        (lambda: bs.explain(run, "surprise"), r"no explanation 'surprise' \(did you mean 'surprisal'\?\)"),
        (lambda: bs.explain(run, at=10**9), r"at=1000000000 is beyond the test text, which has"),
        (lambda: bs.explain(run, at=-1), r"at must be 0 or more"),
        (lambda: bs.explain(run, context=-1), r"context must be 0 or more"),
        (lambda: bs.explain(run, text=empty), r"is empty; give some words"),
        (lambda: bs.explain(run, words=2001), r"1 to 2,000 words, not 2,001"),
        (lambda: bs.explain(run, words=0), r"words must be 1 or more, not 0"),
        (lambda: bs.explain(run, split="test", text=empty), r"text and split exclude"),
        (lambda: bs.explain(run, layer="surprise"), r"no layer 'surprise' \(did you mean 'surprisal'\?\); there are"),
        (lambda: bs.explain(run, against="statik"), r"'statik' is neither a reader \(did you mean 'static'\?\) nor"),
        (lambda: bs.explain(run, against=str(character_run)), r"has another vocabulary than"),
        (lambda: bs.explain(run, reader="statik"), r"no reader 'statik'"),
    ):
        with pytest.raises(UserError, match=says):
            mistaken()
    assert sorted(run.rglob("*")) == before


def test_every_explanation_says_what_it_shows() -> None:
    assert all(explanation.description for explanation in EXPLANATIONS.values())
