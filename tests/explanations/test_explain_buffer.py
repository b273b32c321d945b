"""`explain buffer` shows the buffer's attention according to its equations, on words that are all shown."""

import dataclasses
import io
import json
import math
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from naive_span_buffer import score, spans_of
from rich.console import Console
from runs import with_model, with_training
from tiers import fast_then_full

import backstory as bs
from backstory.config import AuxiliarySoftmaxConfig, GateConfig, RunConfig, SpanBufferConfig
from backstory.data import prepare
from backstory.explanations.attention import buffer_links as links_of
from backstory.explanations.explained_text import led_by, words_of
from backstory.explanations.passage_reading import strong_high, weights_layer
from backstory.models import Interpolation
from backstory.reports import passage_terminal, render_passage
from backstory.results import Passage, Weights, Word
from backstory.runs.run import load_run
from backstory.training import train
from backstory.utils.errors import UserError

GATE = GateConfig(training_temperature=1.0, temperature=0.5)
KINDS: dict[str, dict[str, Any]] = {
    "sliding": {"size": 12, "span": 3},
    "before": {"size": 12, "span": 4, "vectors": "minus-before", "attention": "bilinear", "residual": True},
    "words": {"size": 5, "vectors": "words", "ends": "present"},
    "grid": {"size": 12, "span": 3, "alignment": "fixed", "vectors": "end"},
    "grid-present": {"size": 8, "span": 4, "alignment": "fixed", "ends": "present"},
    "following": {"size": 9, "span": 3, "values": "following"},
    "pointer": {"size": 9, "vectors": "words", "values": "following", "prediction": "pointer", "sentinel": True},
}


def trained(config: RunConfig, folder: Path) -> Path:
    train(with_training(config, batch_size=12), folder, console=Console(file=io.StringIO()))
    return folder


@pytest.fixture(scope="module")
def runs_of(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of every kind of buffer."""
    folder = tmp_path_factory.mktemp("buffers")
    return {
        kind: trained(with_model(tiny_config, buffer=SpanBufferConfig(gate=GATE, **options)), folder / kind)
        for kind, options in KINDS.items()
    }


@pytest.fixture
def run(runs_of: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs_of["sliding"], tmp_path / "run"))


def passage_of(result: Any) -> Passage:
    return result.figures.passage


def layers(result: Any) -> dict[str, Any]:
    return {layer.name: layer for layer in passage_of(result).layers}


def spans_on(run: Path, ids: np.ndarray, position: int) -> list[tuple[range, float]]:
    """The tokens of the text that each span of a position is of, by the equations, and its weight; -1 is what is read first."""
    loaded = load_run(run)
    model, config = loaded.model, loaded.config.model.buffer
    assert isinstance(config, SpanBufferConfig)
    tokens = torch.tensor([loaded.vocabulary.start, *ids[:-1].tolist()])[None]
    with torch.no_grad():
        states = model.core(model.embedding(tokens), model.core.start(1)).layers[-1][0]
        found = spans_of(config, states, position)
        if not found:
            return []
        weights = torch.softmax(torch.stack([score(model, config, states[position], s) for _, s in found]), 0).tolist()
    length = 1 if config.vectors == "words" else config.span
    # State number i is of token i - 1.
    return [(range(end - length, end), weight) for (end, _), weight in zip(found, weights, strict=True)]


def on_tokens(run: Path, ids: np.ndarray, position: int) -> dict[int, float]:
    """The weight of the span that each token is in."""
    return {token: weight for tokens, weight in spans_on(run, ids, position) for token in tokens}


@pytest.mark.parametrize(
    ("kind", "begins"),
    fast_then_full(
        product(KINDS, [(0, None), (7, None), (251, None), (300, 4)]),
        [("sliding", (0, None)), ("grid", (0, None)), ("sliding", (300, 4)), *product(KINDS, [(251, None)])],
    ),
)
def test_every_figure_is_the_buffer_s(
    kind: str, begins: tuple[int, int | None], runs_of: dict[str, Path], tiny_config: RunConfig, tmp_path: Path
) -> None:
    """At the start of a text, with spans from before the passage, over the edge of a block, and after a short context."""
    run, dataset, (at, context) = runs_of[kind], prepare(tiny_config.text), begins
    begin = 0 if context is None else at - context
    ids = np.asarray(dataset.splits["train"].ids)[begin : at + 12].astype(np.int64)
    loaded = load_run(run)
    with torch.no_grad():
        tokens = torch.tensor([loaded.vocabulary.start, *ids[:-1].tolist()])[None]
        blend, _ = loaded.model(tokens, loaded.model.start(1))
    assert isinstance(blend, Interpolation)
    parts = {"buffer": blend.q, "model": blend.p, "mixture": blend}
    tables = {name: part.log_probs()[0].double() for name, part in parts.items()}
    gates = blend.log_gates()[0][0].exp().tolist()

    result = bs.explain(run, "buffer", split="train", at=at, words=12, context=context, top=3, out=tmp_path / "out")
    found, passage, lead = layers(result), passage_of(result), passage_of(result).lead
    reached = [token for token in on_tokens(run, ids, at - begin) if token >= 0]
    assert lead == at - begin - min(reached, default=at - begin)
    assert [w.text.replace("¶", "<eos>") for w in passage.words] == loaded.vocabulary.tokens(ids[at - begin - lead :])
    for word in range(12):
        t, place = at - begin + word, lead + word
        by_token = on_tokens(run, ids, t)
        first = at - begin - lead
        shown = {token - first: weight for token, weight in by_token.items() if token >= first}
        links = dict(found["attention"].links[place])
        assert links == {i: pytest.approx(shown[i], abs=1e-5) for i in links}
        if place == passage.chosen:
            assert links.keys() == shown.keys() and (links or lead == 0)
        assert sorted(links.values()) == pytest.approx(sorted(shown.values())[len(shown) - len(links) :], abs=1e-5)
        nats = {name: -table[t, ids[t]].item() for name, table in tables.items()}
        assert found["surprisal"].values[place] == pytest.approx(nats["mixture"], abs=1e-4)
        assert found["surprisal, model"].values[place] == pytest.approx(nats["model"], abs=1e-4)
        assert found["gain over model"].values[place] == pytest.approx(nats["model"] - nats["mixture"], abs=1e-4)
        assert found["gate"].values[place] == pytest.approx(100 * gates[t], abs=1e-3)
        candidates = found["expected"].lists[place]
        if not by_token:
            assert found["surprisal, buffer"].values[place] is None and list(candidates) == ["model", "mixture"]
            continue
        wanted = pytest.approx(nats["buffer"], abs=1e-4) if math.isfinite(nats["buffer"]) else None
        assert found["surprisal, buffer"].values[place] == wanted
        assert list(candidates) == ["buffer", "model", "mixture"]
        for name, tokens_of in candidates.items():
            likeliest = [p for p in tables[name][t].exp().topk(3)[0].tolist() if p > 0]
            assert [p for _, p in tokens_of] == pytest.approx(likeliest, abs=1e-5)
    figures = result.figures
    assert figures.tokens == 12 and figures.settings["kind"] == "span-buffer"
    assert figures.against_nats_per_token - figures.nats_per_token == pytest.approx(
        np.mean(found["gain over model"].values[lead:]), abs=1e-5
    )
    assert figures.gate_percent == pytest.approx(100 * np.mean(gates[at - begin :]), abs=1e-3)
    assert 0 <= figures.helped_percent <= 100


def test_weights_of_spans_are_whole_and_add_up_where_they_share_a_word() -> None:
    owner = {-4: 0, -3: 0, -2: 1, -1: 1, 0: 2}
    spans_seen = {0: (-2, -1), 1: (-4, -3), 2: (-7, -5)}  # the last is out of sight
    assert links_of([0.5, 0.2, 0.3], spans_seen, owner) == {1: 0.5, 0: 0.2}
    assert links_of([0.5, 0.2], {0: (-3, -2), 1: (-5, -4)}, owner) == {0: pytest.approx(0.7), 1: 0.5}
    assert links_of([], {}, owner) == {}


def test_the_chosen_word_keeps_every_link_and_others_the_strong_ones() -> None:
    many = {i: 0.001 for i in range(50)}
    layer = weights_layer("a", [{}, *[{**many, 60: 0.5} for _ in range(20)]], "n", shown_links=2, whole=20)
    assert [len(links) for links in layer.links] == [0, *[2] * 19, 51] and layer.high == 0.5


def test_the_full_colour_of_weights_is_rounded_up_to_two_digits() -> None:
    assert strong_high([0.0, 0.0]) == 1.0 and strong_high([0.00432]) == 0.0044 and strong_high([0.5]) == 0.5
    assert strong_high([1.0] * 5 + [0.0] * 95) == 1.0


def test_words_before_a_passage_stand_as_in_the_text(tiny_config: RunConfig) -> None:
    dataset = prepare(tiny_config.text)
    ids = np.asarray(dataset.splits["train"].ids)[:40].astype(np.int64)
    whole = words_of(dataset.vocabulary, ids, 40)
    for start in range(1, 40):
        rest = words_of(dataset.vocabulary, ids[start:], 40)
        led = led_by(dataset.vocabulary, ids[:start], int(ids[start]), rest)
        assert [span.word for span in led] == [span.word for span in whole]
        assert [(span.start, span.end) for span in led] == [(s.start - start, s.end - start) for s in whole]
    assert led_by(dataset.vocabulary, ids[:0], int(ids[0]), whole) == whole


def test_words_of_several_letters(tiny_config: RunConfig, tmp_path: Path) -> None:
    """A word has the weights of all spans that it has a letter in, and a word cut by the reach is shown from there."""
    config = with_model(tiny_config, buffer=SpanBufferConfig(size=30, span=3, gate=GATE))
    text = dataclasses.replace(tiny_config.text, tokenizer="characters")
    run, dataset = trained(dataclasses.replace(config, text=text), tmp_path / "letters"), prepare(text)
    result = bs.explain(run, "buffer", split="valid", at=101, words=4)
    passage, found = passage_of(result), layers(result)
    ids = np.asarray(dataset.splits["valid"].ids)[: 101 + result.figures.tokens].astype(np.int64)
    letters = "".join(dataset.vocabulary.tokens(ids))
    assert letters[100] == " "  # which belongs to the first word of the passage
    lead = passage.lead
    text_before = "".join(word.before + word.text for word in passage.words[:lead])
    begin = 101 - 31  # thirty letters of spans, and the last one, which no span has
    assert text_before == letters[begin:100] and passage.words[lead].before == " "
    lengths = [len(word.before) + len(word.text) for word in passage.words[:lead]]
    owner = dict(enumerate(np.repeat(np.arange(lead), lengths).tolist(), begin))
    expected: dict[int, float] = {}
    for tokens, weight in spans_on(run, ids, 101):
        for word in {owner[token] for token in tokens if token in owner}:
            expected[word] = expected.get(word, 0.0) + weight
    assert dict(found["attention"].links[lead]) == pytest.approx(expected, abs=1e-5)
    assert "attention, gate and candidates are those of the first" in passage.note


def test_a_reader_that_learns_has_its_own_blocks(runs_of: dict[str, Path], tmp_path: Path) -> None:
    """Places of a grid depend on where a block begins: blocks of five tokens and of 256 show the same."""
    at = {"split": "train", "at": 61, "words": 20}
    plain = bs.explain(runs_of["grid"], "buffer", **at, out=tmp_path / "static")
    blocks = bs.explain(runs_of["grid"], "buffer", **at, reader="dynamic:rule=sgd,rate=1e-12", out=tmp_path / "dynamic")
    assert blocks.figures.reader.startswith("dynamic")
    one, other = layers(plain)["attention"], layers(blocks)["attention"]
    for a, b in zip(one.links, other.links, strict=True):
        assert [j for j, _ in a] == [j for j, _ in b]
        assert [w for _, w in a] == pytest.approx([w for _, w in b], abs=1e-5)


def test_it_stands_in_the_page_and_in_the_terminal(run: Path) -> None:
    result = bs.explain(run, "buffer", split="valid", at=20, words=9)
    passage = result.figures.passage
    assert (run / "explain-buffer-valid-at20-words9" / "result.json").is_file()
    assert passage.chosen == passage.lead == 13 and len(passage.words) == 22
    page = render_passage(result)
    assert page.count(" data-lead ") == 13 and "expected (buffer)" in page and "gate" in page
    data = json.loads(page.split('<script type="application/json">')[1].split("</script>")[0])
    assert (data["lead"], data["first"]) == (13, 13)
    links = next(layer for layer in passage.layers if isinstance(layer, Weights)).links[13]
    shaded = dict(next(shade["links"] for shade in data["shades"] if "links" in shade)[13])
    assert len(links) == 12 and shaded.keys() == {j for j, _ in links}
    told = next(rows for name, rows in data["words"][13]["lists"] if name == "attention")
    assert len(told) == 4 and all(len(text.split()) == 3 for text, *_ in told)  # spans, not words one by one
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=400)
    passage_terminal.show(passage, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"of '{passage.words[13].text}' on the words before it" in printed
    assert "expected  buffer   " in printed and "expected  mixture  " in printed and "; gate " in printed
    lines = list(passage_terminal.columns(passage))
    assert f"attention of '{passage.words[13].text}'" in lines[0] and lines[14].split()[0] == "1"
    assert [f"{w:.4f}" for _, w in links] == [line.split()[1] for line in lines[1:13]]


def test_a_word_that_attends_to_nothing_is_not_the_first_told_of(run: Path) -> None:
    result = bs.explain(run, "buffer", split="valid", at=0, words=20)
    passage, gains = passage_of(result), layers(result)["gain over model"].values
    assert passage.lead == 0 and passage.chosen == 3 + int(np.argmax(gains[3:]))
    assert gains[:3] == (0.0, 0.0, 0.0)  # nothing is in the buffer there
    alone = passage_of(bs.explain(run, "buffer", split="valid", at=0, words=2))
    assert alone.chosen == 0 and alone.words[0] == Word(alone.words[0].text, alone.words[0].before)


def test_words_before_the_passage_are_left_out_where_there_is_no_room(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = bs.explain(run, "buffer", split="valid", at=20, words=4)
    monkeypatch.setattr("backstory.explanations.attention.MOST_SHOWN", 9)
    cut = bs.explain(run, "buffer", split="valid", at=20, words=4, out=tmp_path / "cut")
    assert passage_of(whole).note == "The passage begins after 13 words, which are what its first word may attend to."
    assert "after 5 words, which are the last of what its" in passage_of(cut).note
    assert passage_of(cut).words[1:] == passage_of(whole).words[9:]
    kept = {j - 8: w for j, w in layers(whole)["attention"].links[13] if j >= 8}
    assert dict(layers(cut)["attention"].links[5]) == kept


def test_what_it_cannot_explain_is_one_line_and_nothing_is_written(
    run: Path, tiny_run: Path, tiny_config: RunConfig, tmp_path: Path
) -> None:
    control = trained(with_model(tiny_config, buffer=AuxiliarySoftmaxConfig(gate=GATE)), tmp_path / "control")
    for folder in (control, tiny_run):
        before = sorted(folder.rglob("*"))
        with pytest.raises(UserError, match=rf"^{folder} has no span buffer; train one with model.buffer.kind span-"):
            bs.explain(folder, "buffer", split="valid")
        assert sorted(folder.rglob("*")) == before
    before = sorted(run.rglob("*"))
    with pytest.raises(UserError, match=r"leave the reader cache out"):
        bs.explain(run, "buffer", split="valid", reader="cache")
    with pytest.raises(UserError, match=r"leave against out"):
        bs.explain(run, "buffer", split="valid", against="static")
    with pytest.raises(UserError, match=r"at=99999 is beyond the valid text"):
        bs.explain(run, "buffer", split="valid", at=99999)
    assert sorted(run.rglob("*")) == before
    assert math.isfinite(bs.explain(run, "surprisal", split="valid").figures.perplexity)
