"""`explain memory` shows the memory's heads: the words whose slots they read, and their addressing."""

import dataclasses
import io
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from runs import with_model, with_training

import backstory as bs
from backstory.config import MDMConfig, NTMConfig, RunConfig
from backstory.data import prepare
from backstory.explanations import memory_reads as explained
from backstory.explanations.memory_reads import READS, Attribution, measured, window_of
from backstory.models import ComposedModel
from backstory.models.cores import ExternalMemory
from backstory.models.memory import Addressing, AddressingTrace, TuringMachine, parse_addressing
from backstory.reports import render_passage
from backstory.results import Passage, Weights
from backstory.runs.run import load_run
from backstory.training import train
from backstory.utils.errors import UserError

END = 3
"""Id of the `<eos>` after every ninth word of the tiny corpus."""
CORES: dict[str, Any] = {
    "ntm": NTMConfig(layers=(9,), slots=11, width=5, heads=2),
    "mdm": MDMConfig(layers=(9, 7), slots=8, width=5, addressing="localized:3"),
    "begin": MDMConfig(layers=(9,), slots=8, width=5, reset_token=END),
}


def trained(config: RunConfig, folder: Path) -> Path:
    train(with_training(config, batch_size=12), folder, console=Console(file=io.StringIO()))
    return folder


@pytest.fixture(scope="module")
def runs_of(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("memories")
    return {kind: trained(with_model(tiny_config, core=core), folder / kind) for kind, core in CORES.items()}


def passage_of(result: Any) -> Passage:
    return result.figures.passage


def layers(result: Any) -> dict[str, Any]:
    return {layer.name: layer for layer in passage_of(result).layers}


def numbers(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_rows_are_of_the_words_that_wrote_them() -> None:
    written = Attribution(3, 4)
    written.write(0, numbers(1.0, 0.0, 0.0), numbers(0.5, 1.0, 1.0))
    written.write(1, numbers(0.5, 0.5, 0.0), numbers(0.75, 0.75, 1.0))
    # Row 0 is 0.75 of word 0 and 0.5 of word 1, row 1 all of word 1, and row 2 of none.
    assert written.read(numbers(0.8, 0.1, 0.1)).tolist() == pytest.approx([0.48, 0.42, 0, 0])
    written.write(3, numbers(0.0, 1.0, 0.0), numbers(1.0, 0.0, 1.0))
    assert written.read(numbers(0.8, 0.1, 0.1)).tolist() == pytest.approx([0.48, 0.32, 0, 0.1])
    assert written.read(numbers(0.0, 0.0, 1.0)).tolist() == [0, 0, 0, 0]


def test_measures_by_hand() -> None:
    """Two steps, one head that writes and one that reads."""
    cosines = numbers([[0.1, 0.9, 0.2, 0.0], [-0.1, -0.2, -0.3, -0.4]], [[0.1, 0.0, 0.2, 0.3], [0.8, 0.8, 0.0, -0.1]])
    content = numbers([[0.1, 0.6, 0.1, 0.2], [0.25] * 4], [[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    weights = numbers([[0.0, 0.5, 0.0, 0.0], [0.25] * 4], [[0.0] * 4, [0.5, 0.0, 0.0, 0.5]])
    trace = AddressingTrace(cosines, content, weights, numbers([1.0] * 4, [1.0] * 4))
    dense, localized = (measured(trace, how) for how in (Addressing("dense"), Addressing("localized", 3)))
    np.testing.assert_allclose(dense["entropy"], [[0, 2], [np.nan, 1]])
    np.testing.assert_allclose(dense["largest"], [[0.5, 0.25], [0, 0.5]])
    np.testing.assert_array_equal(dense["negative"], [[0, 1], [0, 0]])
    # Three slots: of content where all slots have a weight, of what came of it where a window is there.
    np.testing.assert_allclose(dense["window"], [[0.8, np.nan], [0.7, 0.7]])
    np.testing.assert_allclose(localized["window"], [[0.5, np.nan], [0, 0.5]])
    assert [window_of(Addressing(), slots) for slots in (4, 5, 1024)] == [3, 5, 257]
    assert window_of(Addressing("localized", 9), 1024) == 9


def test_fall_backs_are_counted_on_a_memory_that_says_which() -> None:
    """All slots point one way: a key the other way has negative cosines alone."""
    machine = TuringMachine(6, 4, 1, Addressing("localized", 3))
    state = machine.start(numbers(0.0), 1)._replace(memory=torch.ones(1, 6, 4, dtype=torch.float64))
    trace: list[AddressingTrace] = []
    for write, read in ((1, 1), (1, -1), (1, -1), (-1, 1)):
        interface = torch.zeros(1, machine.interface_size, dtype=torch.float64)
        interface[0, :4], interface[0, 10:14] = write, read
        interface[0, 20:24] = -50  # erases nothing, and writes zeros
        machine.step(interface, state, trace=trace)
    found = measured(AddressingTrace(*(torch.cat(part) for part in zip(*trace, strict=True))), machine.addressing)
    assert explained._by_head(found["negative"]).to_dict() == {"write": 0.25, "read": [0.5]}


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "place"),
    list(product(CORES, [(0, None), (7, None), (251, None), (300, 4)])),
)
def test_every_figure_is_the_memory_s(
    kind: str, place: tuple[int, int | None], runs_of: dict[str, Path], tiny_config: RunConfig, tmp_path: Path
) -> None:
    """Read a token at a time, the weights taken from the state: from the start, over the edge of a block, after a cut."""
    run, count, (at, context) = runs_of[kind], 12, place
    begin = 0 if context is None else at - context
    ids = np.asarray(prepare(tiny_config.text).splits["train"].ids)[begin : at + count].astype(np.int64)
    loaded = load_run(run)
    model, core = loaded.model, loaded.model.core
    assert isinstance(model, ComposedModel) and isinstance(core, ExternalMemory)
    shares = np.zeros((core.machine.slots, 1 + len(ids)))  # of what is read first, and of each token
    state, reads, writes, mixed, nats = model.start(1), [], [], [], []
    with core.traced() as trace:
        for position, token in enumerate([loaded.vocabulary.start, *ids[:-1].tolist()]):
            prediction, state = model(torch.tensor([[token]]), state)
            nats.append(-prediction.log_probs()[0, 0, ids[position]].item())
            if token == core.reset_token:
                shares[:] = 0
            write = state.external.write_weights[0].double().numpy()
            read = state.external.read_weights[0].double().numpy()
            for row in range(len(shares)):
                shares[row] *= trace[-1].left[0, row].item()
                shares[row, position] += write[row]
            writes.append(write)
            reads.append(read)
            mixed.append(read.mean(0) @ (shares / shares.sum(1, keepdims=True).clip(1e-300)))

    result = bs.explain(run, "memory", split="train", at=at, words=count, context=context, top=3, out=tmp_path / "out")
    found, passage, figures = layers(result), passage_of(result), result.figures
    lead, start = len(passage.words) - count, at - begin
    assert [w.text.replace("¶", "<eos>") for w in passage.words] == loaded.vocabulary.tokens(ids[start - lead :])
    first = start - lead
    for word in range(count):
        t, shown_at = start + word, lead + word
        links = dict(found[READS].links[shown_at])
        # Column 1 + i of the shares is token i.
        assert links == {j: pytest.approx(mixed[t][1 + first + j], abs=1e-5) for j in links}
        strongest = sorted(mixed[t][1 : t + 1])[-5:]
        assert sorted(links.values())[-5:] == pytest.approx([w for w in strongest if w > 0], abs=1e-5)
        assert found["surprisal"].values[shown_at] == pytest.approx(nats[t], abs=1e-4)
        entropies = [-(p * np.log2(p, where=p > 0, out=np.zeros_like(p))).sum() for p in map(normalised, reads[t])]
        assert found["entropy, read"].values[shown_at] == pytest.approx(np.mean(entropies), abs=1e-3)
        assert found["largest, read"].values[shown_at] == pytest.approx(100 * reads[t].max(1).mean(), abs=1e-3)
        assert found["largest, write"].values[shown_at] == pytest.approx(100 * writes[t].max(), abs=1e-3)
        assert found["read of older words"].values[shown_at] == pytest.approx(
            100 * mixed[t][: 1 + max(0, start - explained.BEFORE)].sum(), abs=1e-3
        )
    assert figures.nats_per_token == pytest.approx(np.mean(nats[start:]), abs=1e-5)
    share = [[(of.cosines[0, head].max() < 0).item() for of in trace[start:]] for head in range(1 + core.machine.heads)]
    assert figures.fall_back_percent.to_dict() == {
        "write": pytest.approx(100 * np.mean(share[0])),
        "read": [pytest.approx(100 * np.mean(of)) for of in share[1:]],
    }
    assert len(figures.entropy_bits.read) == CORES[kind].heads
    shown = figures.weights
    assert shown.slots == tuple(range(CORES[kind].slots)) and len(shown.tokens) == count
    np.testing.assert_allclose(shown.write, np.array(writes[start:]).T, rtol=6e-3, atol=1e-6)
    np.testing.assert_allclose(shown.read, np.array(reads[start:]).mean(1).T, rtol=6e-3, atol=1e-6)


@pytest.mark.full
def test_no_word_is_read_of_a_text_that_ended(runs_of: dict[str, Path], tmp_path: Path) -> None:
    """The token at which a memory begins anew is the first that it holds."""
    read = bs.explain(runs_of["begin"], "memory", split="train", at=247, words=40, out=tmp_path / "out")
    passage, found = passage_of(read), layers(read)
    ends = [place for place, word in enumerate(passage.words) if word.text == "¶"]
    assert len(ends) >= 4 and passage.lead > 0
    for place in range(passage.lead, len(passage.words)):
        links = dict(found[READS].links[place])
        last = max((end for end in ends if end < place), default=0)
        assert links and min(links) >= last
        assert found["read of older words"].values[place] == 0
    assert read.figures.older_percent == 0


def normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()


def test_words_that_are_too_old_are_one(
    runs_of: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bs.explain(runs_of["ntm"], "memory", split="train", at=60, words=5)
    monkeypatch.setattr(explained, "BEFORE", 3)
    cut = bs.explain(runs_of["ntm"], "memory", split="train", at=60, words=5, out=tmp_path / "cut")
    assert len(passage_of(cut).words) == 8 and passage_of(cut).lead == 3
    more = [layers(r)["read of older words"].values[-5:] for r in (whole, cut)]
    assert all(0 < a < b <= 100 for a, b in zip(*more, strict=True))
    links = dict(layers(cut)[READS].links[3])
    assert links.keys() == {0, 1, 2} and 100 * sum(links.values()) + more[1][0] == pytest.approx(100, abs=0.1)


@pytest.mark.full
def test_a_picture_holds_the_rows_of_most_weight(
    runs_of: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"split": "train", "at": 250, "words": 20}
    whole = bs.explain(runs_of["mdm"], "memory", **place, out=tmp_path / "whole").figures.weights
    monkeypatch.setattr(explained, "MOST_ROWS", 3)
    monkeypatch.setattr(explained, "MOST_TOKENS", 9)
    cut = bs.explain(runs_of["mdm"], "memory", **place, out=tmp_path / "cut").figures.weights
    sums = (np.array(whole.write) + np.array(whole.read))[:, :9].sum(1)
    assert cut.slots == tuple(sorted(np.argsort(sums)[-3:].tolist())) and cut.of == 8
    assert cut.tokens == whole.tokens[:9] and len(whole.tokens) == 20
    assert cut.write == tuple(whole.write[row][:9] for row in cut.slots)


@pytest.mark.full
def test_words_of_several_letters(tiny_config: RunConfig, tmp_path: Path) -> None:
    config = with_model(tiny_config, core=CORES["mdm"])
    text = dataclasses.replace(tiny_config.text, tokenizer="characters")
    run = trained(dataclasses.replace(config, text=text), tmp_path / "letters")
    result = bs.explain(run, "memory", split="valid", at=101, words=4)
    passage, figures = passage_of(result), result.figures
    assert "weights and candidates are those of the first" in passage.note
    assert len(figures.weights.tokens) == figures.tokens > 4
    assert all(sum(w for _, w in links) <= 1 + 1e-6 for links in layers(result)[READS].links)
    assert passage.lead == len(passage.words) - 4 > 0


@pytest.mark.full
def test_the_page_holds_the_picture(runs_of: dict[str, Path]) -> None:
    result = bs.explain(runs_of["ntm"], "memory", split="valid", at=20, words=9)
    page = render_passage(result)
    for width in ("wide", "narrow"):  # the picture, drawn for each
        assert page.count(f'<div class="{width}"><svg') == 1
    assert page.count("<svg") == 2
    assert "write: slot" in page and "read: slot" in page
    assert "of all 11 slots of the memory, at each token of the passage." in page and "the mean of 2 heads" in page
    passage = result.figures.passage
    assert passage.chosen == passage.lead and isinstance(passage.shades[0], Weights)
    assert math.isfinite(result.figures.perplexity)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "addressing", "told"),
    [
        ("ntm", "localized:3x2", "2 windows of 3 slots around the largest cosines; the rest is where locations lead"),
        ("mdm", "localized:3", "within 3 slots around the largest cosine; the rest is where links lead."),
    ],
)
def test_windows_are_told_with_what_leads_out_of_them(
    kind: str, addressing: str, told: str, tiny_config: RunConfig, tmp_path: Path
) -> None:
    core = dataclasses.replace(CORES[kind], addressing=addressing)
    result = bs.explain(
        trained(with_model(tiny_config, core=core), tmp_path / "run"), "memory", split="valid", at=20, words=9
    )
    how = parse_addressing(addressing, core.slots)
    assert (result.figures.window, result.figures.windows) == (how.selected, how.windows)
    assert told in layers(result)["window, read"].note


def test_what_it_cannot_explain_is_one_line_and_nothing_is_written(runs_of: dict[str, Path], tiny_run: Path) -> None:
    run = runs_of["ntm"]
    before = [sorted(folder.rglob("*")) for folder in (run, tiny_run)]
    with pytest.raises(
        UserError, match=rf"^{tiny_run} has no external memory; train one with model.core.kind ntm, dnc or"
    ):
        bs.explain(tiny_run, "memory", split="valid")
    for reader in ("cache", "dynamic:rule=sgd,rate=1e-12"):
        with pytest.raises(UserError, match=r"^`explain memory` shows .*; leave the reader (cache|dynamic) out$"):
            bs.explain(run, "memory", split="valid", reader=reader)
    with pytest.raises(UserError, match=r"leave against out$"):
        bs.explain(run, "memory", split="valid", against="cache")
    assert [sorted(folder.rglob("*")) for folder in (run, tiny_run)] == before
