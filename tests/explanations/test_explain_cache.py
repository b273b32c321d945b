"""`explain cache` shows where the cache's mass lies, checked by hand on a few words, and on pages that render."""

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
from backstory.config.readers import CacheSettings
from backstory.data import prepare
from backstory.reports import passage_terminal, render_passage
from backstory.results import Weights
from backstory.runs.run import load_run
from backstory.training import train
from backstory.utils.errors import UserError

CHOSEN = CacheSettings(window=6, theta=0.8, weight=0.3)


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "tiny"))


@pytest.fixture
def with_cache() -> str:
    """The name of a reader with the chosen cache."""
    return f"cache:window={CHOSEN.window},theta={CHOSEN.theta},weight={CHOSEN.weight},confidence={CHOSEN.confidence}"


def layers(result: Any) -> dict[str, Any]:
    return {layer.name: layer for layer in result.figures.passage.layers}


def forward(run: Path, ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """States (N, D) and log-probabilities (N, V) by the plain forward pass."""
    loaded = load_run(run)
    tokens = torch.tensor([loaded.vocabulary.start, *ids[:-1].tolist()])[None]
    with torch.no_grad():
        prediction, _ = loaded.model(tokens, loaded.model.start(1))
    assert prediction.activations is not None
    return prediction.activations.head_input[0].double(), prediction.log_probs()[0].double()


def by_hand(states: torch.Tensor, t: int, chosen: CacheSettings) -> dict[int, float]:
    """The cache's mass at position t on the places t - window to t - 1."""
    seen = range(max(0, t - chosen.window), t)
    scores = [math.exp(chosen.theta * float(states[i] @ states[t])) for i in seen]
    return {i: score / sum(scores) for i, score in zip(seen, scores, strict=True)}


@pytest.mark.parametrize(("at", "context"), [(0, None), (3, None), (251, None), (30, 4)])
def test_every_figure_is_the_cache_s(
    run: Path, tiny_config: RunConfig, with_cache: str, at: int, context: int | None
) -> None:
    """At the start of a text, with pairs from before the passage, over the edge of a block, and after a short context."""
    dataset = prepare(tiny_config.text)
    begin = 0 if context is None else at - context
    ids = np.asarray(dataset.splits["train"].ids)[begin : at + 12].astype(np.int64)
    states, plain = forward(run, ids)
    result = bs.explain(run, "cache", split="train", at=at, words=12, context=context, reader=with_cache, top=3)
    found = layers(result)
    for word in range(12):
        t = at - begin + word
        mass = by_hand(states, t, CHOSEN)
        inside = {i - (at - begin): m for i, m in mass.items() if i >= at - begin}
        links = dict(found["cache mass"].links[word])
        assert links == {i: pytest.approx(inside[i], abs=1e-5) for i in links}
        assert sorted(inside.values())[-5:] == pytest.approx(sorted(links.values())[-5:], abs=1e-5)
        assert found["confidence"].values[word] == pytest.approx(100 * max(mass.values(), default=0.0), abs=1e-3)
        own = sum(m for i, m in mass.items() if ids[i] == ids[t])
        model = plain[t, ids[t]].exp().item()
        mixed = 0.7 * model + 0.3 * own if mass else model
        assert found["probability (cache)"].values[word] == pytest.approx(100 * own, abs=1e-3)
        assert found["probability (model)"].values[word] == pytest.approx(100 * model, abs=1e-3)
        assert found["probability (mixture)"].values[word] == pytest.approx(100 * mixed, abs=1e-3)
        assert found["gain over static"].values[word] == pytest.approx(math.log(mixed / model), abs=1e-4)
        by_word: dict[int, float] = {}
        for i, m in mass.items():
            by_word[int(ids[i])] = by_word.get(int(ids[i]), 0.0) + m
        candidates = found["expected"].lists[word]
        expected = sorted(by_word.values(), reverse=True)[:3]
        assert [p for _, p in candidates["cache"]] == pytest.approx(expected, abs=1e-5)
        assert list(candidates) == ["cache", "model", "mixture"] and len(candidates["mixture"]) == 3
        entropy = -sum(p * math.log(p) for p in by_word.values())
        assert found["entropy of the cache"].values[word] == pytest.approx(entropy, abs=1e-4)
    figures = result.figures
    assert (figures.reader, figures.against) == (with_cache, "static")
    gain = np.mean(found["gain over static"].values)
    assert figures.against_nats_per_token - figures.nats_per_token == pytest.approx(gain, abs=1e-5)
    assert figures.settings == {"window": 6, "theta": 0.8, "weight": 0.3, "confidence": 0.0}


def test_a_reader_without_a_cache_gets_the_usual_one(run: Path) -> None:
    figures = bs.explain(run, "cache", split="valid", at=20, words=15).figures
    assert figures.settings == {"window": 500, "theta": 1.0, "weight": 0.1, "confidence": 0.0}
    assert 0 <= figures.helped_percent <= 100
    assert (run / "explain-cache-valid-at20-words15" / "result.json").is_file()


def test_it_stands_in_the_page_and_in_the_terminal(run: Path, with_cache: str) -> None:
    result = bs.explain(run, "cache", split="valid", at=20, words=30, reader=with_cache)
    page = render_passage(result)
    assert "Colour by" in page and "cache mass" in page and "expected (mixture)" in page
    passage = result.figures.passage
    data = json.loads(page.split('<script type="application/json">')[1].split("</script>")[0])
    shaded = next(shade["links"] for shade in data["shades"] if "links" in shade)
    links = next(layer for layer in passage.layers if isinstance(layer, Weights)).links
    assert [[j for j, _ in word] for word in shaded] == [[j for j, _ in word] for word in links]
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=90)
    mass_first = bs.explain(run, "cache", split="valid", at=20, words=30, reader=with_cache, layer="cache mass")
    passage_terminal.show(mass_first.figures.passage, console)
    strongest = max(range(30), key=lambda i: max((w for _, w in links[i]), default=0.0))
    assert f"of '{passage.words[strongest].text}' on the words before it" in console.file.getvalue().replace("\n", " ")  # type: ignore[attr-defined]


@pytest.mark.full
def test_words_of_several_letters(tiny_config: RunConfig, with_cache: str, tmp_path: Path) -> None:
    """Links are those of a word's first letter, summed over the letters of each earlier word."""
    text = dataclasses.replace(tiny_config.text, tokenizer="characters")
    train(dataclasses.replace(tiny_config, text=text), tmp_path / "letters", console=Console(file=io.StringIO()))
    run, dataset = tmp_path / "letters", prepare(text)
    result = bs.explain(run, "cache", split="valid", at=0, words=6, reader=with_cache)
    ids = np.asarray(dataset.splits["valid"].ids)[: result.figures.tokens].astype(np.int64)
    states, _ = forward(run, ids)
    passage, found = result.figures.passage, layers(result)
    lengths = [len(word.before) + len(word.text) for word in passage.words]
    lengths[0] = len(passage.words[0].text)
    start = int(np.cumsum(lengths)[2])  # where the fourth word begins
    owner = np.repeat(np.arange(6), lengths)
    expected: dict[int, float] = {}
    for i, m in by_hand(states, start, CHOSEN).items():
        expected[int(owner[i])] = expected.get(int(owner[i]), 0.0) + m
    assert dict(found["cache mass"].links[3]) == pytest.approx(expected, abs=1e-5)
    assert "its links, confidence and candidates are those of the first" in passage.note


def test_it_compares_with_the_reader_below_alone(run: Path) -> None:
    before = sorted(run.rglob("*"))
    with pytest.raises(UserError, match="leave against out"):
        bs.explain(run, "cache", split="valid", against="static")
    assert sorted(run.rglob("*")) == before


def places_by_hand(run: Path, ids: np.ndarray, chosen: CacheSettings) -> list[tuple[float, float, float]]:
    """Entropy over places, share on the word itself and the model's own probability, at every token."""
    states, plain = forward(run, ids)
    found = []
    for t, word in enumerate(ids):
        mass = by_hand(states, t, chosen)
        entropy = -sum(m * math.log(m) for m in mass.values() if m)
        found.append((entropy, sum(m for i, m in mass.items() if ids[i] == word), plain[t, word].exp().item()))
    return found


@pytest.mark.parametrize("case", ["success", "failure"])
def test_the_case_is_the_most_peaked_success_or_the_flattest_failure(
    run: Path, tiny_config: RunConfig, case: Any
) -> None:
    # Of a model that has hardly learned, all states are alike: theta makes their small differences large.
    chosen, reader = CacheSettings(window=12, theta=2e4, weight=0.3), "cache:window=12,theta=2e4,weight=0.3"
    dataset = prepare(tiny_config.text)
    ids = np.asarray(dataset.splits["train"].ids).astype(np.int64)
    known = places_by_hand(run, ids, chosen)
    special = (dataset.vocabulary.unknown, dataset.vocabulary.index["<eos>"])
    candidates = {
        t: entropy
        for t, (entropy, share, below) in enumerate(known)
        if t >= 12 and ids[t] not in special and (share > 0.5 and below < 0.5 if case == "success" else share == 0)
    }
    best = (min if case == "success" else max)(candidates.values())
    result = bs.explain(run, "cache", split="train", reader=reader, find=case)
    figures = result.figures
    found, passage = figures.found, figures.passage
    assert found.entropy == pytest.approx(best, abs=1e-3)
    assert candidates[found.target] == pytest.approx(best, abs=1e-3)
    assert found.share == pytest.approx(known[found.target][1], abs=1e-3)
    assert found.word == dataset.vocabulary.words[ids[found.target]] == passage.words[-1].text
    # It leads up to the word, which is the one that is shown, from the oldest that the cache remembers.
    assert len(passage.words) == 13 and passage.chosen == 12 and figures.at + 12 == found.target
    mass = passage.layers[0]
    assert isinstance(mass, Weights) and mass.name == "cache mass" and mass.high == pytest.approx(8 / 12)
    links = dict(mass.links[12])
    assert sum(links.values()) == pytest.approx(1.0, abs=1e-4) and len(links) == 12
    assert passage.title.endswith(f"of the cache, word {found.target:,}")
    assert [p.name.endswith(f"find-{case}") for p in run.glob("explain-cache-train*")] == [True]
    page = render_passage(result)
    assert f"The last word, ‘{passage.words[-1].text}’, is the case that was searched for" in page


def test_it_is_looked_for_from_a_place_on(run: Path, with_cache: str) -> None:
    def target(at: int) -> int:
        place = {"split": "train", "at": at, "words": 5}
        return bs.explain(run, "cache", **place, reader=with_cache, find="failure").figures.found.target

    first = target(0)
    assert target(first) == first < target(first + 1)


@pytest.mark.full
def test_cases_that_there_are_none_of(run: Path, with_cache: str, tiny_config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="find looks for cases of a cache, and `explain surprisal` has none"):
        bs.explain(run, "surprisal", split="valid", find="success")
    with pytest.raises(UserError, match="find must be one of success, failure or None, not 'luck'"):
        bs.explain(run, "cache", split="valid", reader=with_cache, find="luck")  # type: ignore[arg-type]
    text = tmp_path / "text.txt"
    text.write_text("the the the the\n")
    with pytest.raises(UserError, match="there is no failure of the cache in this text; choose another split, or at"):
        bs.explain(run, "cache", text=text, reader=with_cache, find="failure")
    letters = dataclasses.replace(tiny_config.text, tokenizer="characters")
    train(dataclasses.replace(tiny_config, text=letters), tmp_path / "l", console=Console(file=io.StringIO()))
    with pytest.raises(UserError, match="cases of the cache are words, and the tokens here are characters; choose at"):
        bs.explain(tmp_path / "l", "cache", split="valid", find="success")
    assert not list(run.glob("explain-*"))
