"""Accuracy on a synthetic task, compared with a reader queried token by token, and from training to a report."""

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from runs import events

import backstory as bs
from backstory.cli.evaluation_text import describe
from backstory.cli.train import run_training
from backstory.config import AlgorithmConfig, RunConfig, TextConfig
from backstory.data import Algorithm, prepare
from backstory.evaluation.metrics.answer_accuracy import AnswerAccuracy
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.models import Prediction, Softmax, choose_precision
from backstory.readers.base import blocks
from backstory.reports import trainings_table
from backstory.reports.phrases import summary
from backstory.reports.sections.gains_section import headline
from backstory.results import read
from backstory.results.training_record import TrainingFigures
from backstory.training import train
from backstory.utils import formats
from backstory.utils.errors import UserError

SETTINGS = AlgorithmConfig(bits=2, longest=3, documents=60, held_out=12)


def asking(config: RunConfig, **changes: Any) -> RunConfig:
    text = TextConfig("copy", algorithm=SETTINGS)
    return dataclasses.replace(config, text=text, training=dataclasses.replace(config.training, **changes))


@pytest.fixture(scope="module")
def run(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a small copy task, trained on what is asked alone; what was told of it is in `told` beside it."""
    folder = tmp_path_factory.mktemp("copy") / "run"
    told = io.StringIO()
    train(asking(tiny_config, answer_loss_only=True, epochs=2), folder, console=Console(file=told))
    (folder.parent / "told").write_text(told.getvalue())
    return folder


def by_hand(tokens: list[str], predicted: list[str], nats: list[float]) -> dict[int, list[list[float]]]:
    """For each length and document: answer tokens, correct tokens, correct bits, nats."""
    found: dict[int, list[list[float]]] = {}
    inside = False
    for token, guess, paid in zip(tokens, predicted, nats, strict=True):
        if token == "<bos>":
            document, inside = [0.0, 0.0, 0.0, 0.0], False
        elif token == "<answer>":
            inside = True
        elif token == "<eos>":
            found.setdefault(int(document[0]), []).append(document)
        elif inside:
            bits = sum(a == b for a, b in zip(token, guess, strict=True)) if guess[0] in "01" else 0
            document = [document[0] + 1, document[1] + (token == guess), document[2] + bits, document[3] + paid]
    return found


@pytest.mark.parametrize(("batch_size", "size"), [(1, 7), (1, 1000), (3, 5)])
def test_the_figures_are_those_of_every_token_added_up(batch_size: int, size: int) -> None:
    data = prepare(TextConfig("copy", algorithm=SETTINGS))
    split, answers = data.splits["test"], data.answers("test")
    assert answers is not None
    torch.manual_seed(0)
    logits = torch.randn(len(split.ids), len(data.vocabulary), dtype=torch.float64)
    # Half of the time what is right is the likeliest.
    right = torch.rand(len(split.ids)) < 0.5
    logits[right, torch.from_numpy(split.ids.astype(np.int64))[right]] = 9.0
    watch = AnswerAccuracy(answers, choose_precision("float32", torch.device("cpu")), size)
    length = -(-len(split.ids) // batch_size)
    halfway: dict[str, Any] | None = None
    for block in blocks(split.ids, data.vocabulary.start, batch_size, size, torch.device("cpu")):
        places = np.arange(batch_size)[:, None] * length + block.index * size + np.arange(block.targets.shape[1])
        here = logits[np.minimum(places, len(split.ids) - 1)]
        prediction: Prediction = Softmax(None, here, torch.eye(logits.shape[1], dtype=torch.float64), None)
        watch.update(ScoredBlock(block, prediction, prediction.log_prob(block.targets)))
        if halfway is None:
            halfway = json.loads(json.dumps(watch.state_dict()))
            again = AnswerAccuracy(answers, watch.precision, size)
            again.load_state_dict(halfway)
            assert np.array_equal(again.sums, watch.sums)
    words = data.vocabulary.words
    nats = -logits.log_softmax(1)[torch.arange(len(split.ids)), torch.from_numpy(split.ids.astype(np.int64))]
    guesses = [words[i] for i in logits.argmax(1).tolist()]
    found = by_hand(data.vocabulary.tokens(split.ids), guesses, nats.tolist())
    figures = watch.result()
    assert [one.length for one in figures.lengths] == sorted(found)
    everything = [document for documents in found.values() for document in documents]
    for one, documents in [
        *zip(figures.lengths, (found[n] for n in sorted(found)), strict=True),
        (figures, everything),
    ]:
        asked, tokens, bits, paid = np.array(documents).sum(0)
        assert one.documents == len(documents) and one.answer_tokens == asked
        assert one.nats_per_answer_token == pytest.approx(paid / asked, rel=1e-9)
        assert one.token_accuracy == pytest.approx(tokens / asked)
        assert one.bit_accuracy == pytest.approx(bits / (2 * asked))
        assert one.document_accuracy == pytest.approx(np.mean([d[0] == d[1] for d in documents]))
    assert 0.2 < figures.token_accuracy < 0.9
    with pytest.raises(ValueError, match="its sums have the shape"):
        watch.load_state_dict({"sums": [[0.0]]})


def test_the_end_that_repeat_copy_asks_for_has_no_bits() -> None:
    source = Algorithm("repeat-copy", AlgorithmConfig(bits=2, repeats=2))
    words = source.words()
    ids = np.array([words.index(t) for t in ["<bos>", "01", "x2", "01", "01", "<eos>"]])
    watch = AnswerAccuracy(source.answers(ids), choose_precision("float32", torch.device("cpu")), 6)
    guesses = [words.index(t) for t in ["x1", "x1", "x1", "01", "00", "<eos>"]]
    logits = 20 * torch.eye(len(words))[guesses][None]
    prediction = Softmax(None, logits, torch.eye(len(words)), None)
    (block,) = blocks(ids, 0, 1, 6, torch.device("cpu"))
    watch.update(ScoredBlock(block, prediction, prediction.log_prob(block.targets)))
    figures = watch.result()
    assert figures.answer_tokens == 3 and figures.token_accuracy == pytest.approx(2 / 3)
    assert figures.bit_accuracy == pytest.approx(3 / 4) and figures.document_accuracy == 0


def test_the_weights_are_chosen_by_what_is_asked(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())["figures"]
    curve = result["curve"]
    assert result["valid_nats"] == min(e["valid_nats"] for e in curve)
    for epoch in curve:
        assert epoch["valid_nats"] == epoch["answers"]["nats_per_answer_token"]
        assert 0.2 < epoch["answer_share"] < 0.6
    # Told per token that is asked, in every line: an untrained model pays about log 7 for each.
    assert all(0.5 < e["nats"] < 4 for e in events(run, "steps"))


def test_what_is_told_of_training_is_per_word_that_is_asked(
    run: Path, tiny_config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads((run / "result.json").read_text())["figures"]
    data = prepare(TextConfig("copy", algorithm=SETTINGS))
    for name, split in data.splits.items():
        assert result["tokens"][name] == data.answer_mask(split.ids).sum() < len(split.ids)
    best = result["curve"][result["best_epoch"] - 1]
    at, right = f"{best['valid_perplexity']:.2f}", f"{best['answers']['token_accuracy']:.1%} of answers right"
    lines = [line for line in (run.parent / "told").read_text().splitlines() if line.endswith("best")]
    assert "train perplexity per answer word " in lines[-1] and at in lines[-1] and right in lines[-1]
    run_training(asking(tiny_config, answer_loss_only=True, epochs=2), run, "resume")
    assert f"validation perplexity {at} per answer word after epoch" in capsys.readouterr().out
    score = f"perplexity {formats.perplexity(best['valid_perplexity'])} per answer word"
    alone = dataclasses.replace(read(run), results=tuple(read(run).of(TrainingFigures)))
    assert f"validation {score} on copy over {result['tokens']['valid']} answer words, " in summary(alone)
    assert trainings_table([alone]).rows[0][5] == score


@pytest.mark.full
def test_an_evaluation_tells_them_and_at_other_lengths(run: Path, tmp_path: Path) -> None:
    result = bs.evaluate(run)
    answers = result.figures.answers
    assert answers.task == "copy" and answers.documents == 12 and result.figures.audit.passed
    assert [one.length for one in answers.lengths] == [1, 2, 3]
    assert " of the answer tokens, " in describe(result)
    longer = bs.evaluate(run, lengths=(5, 9))
    found = longer.figures.answers.lengths
    assert [(one.length, one.documents, one.answer_tokens) for one in found] == [(5, 6, 30), (9, 6, 54)]
    assert json.loads((run / "evaluate-test-lengths-5-9" / "result.json").read_text()) == longer.to_dict()
    assert json.loads((run / "evaluate-test" / "result.json").read_text()) == result.to_dict()
    assert longer.provenance.corpus.fingerprint != result.provenance.corpus.fingerprint
    bs.report([run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"audited; {answers.in_words()}." in page
    assert "<h2>Answers</h2>" in page and "synthetic documents of copy: 5 and 9 symbols of 2 bits" in page
    assert headline([read(run), read(run)]) == ""  # by the perplexity of tokens that are random
    with pytest.raises(UserError, match="lengths works with synthetic tasks only"):
        bs.evaluate(run, text=tmp_path / "page.html", lengths=(5,))


@pytest.mark.full
def test_many_lengths_have_a_folder_of_a_short_name(run: Path) -> None:
    many = tuple(range(1, 101))
    for lengths in (many, (1, *many[:0:-1]), (*many[:50], 7, *many[50:])):
        result = bs.evaluate(run, lengths=lengths)
        assert result.figures.lengths == lengths
    found = sorted(p.name for p in run.glob("evaluate-test-lengths-1..*"))
    assert len(found) == 3 and all(re.fullmatch(r"evaluate-test-lengths-1\.\.(100|2)-[0-9a-f]{8}", n) for n in found)


def test_only_tasks_have_answers(tiny_config: RunConfig, tiny_run: Path, tmp_path: Path) -> None:
    assert bs.evaluate(tiny_run, out=tmp_path / "out").figures.answers is None
    with pytest.raises(UserError, match="leave lengths out"):
        bs.evaluate(tiny_run, lengths=(5,))
    config = dataclasses.replace(tiny_config, training=dataclasses.replace(tiny_config.training, answer_loss_only=True))
    with pytest.raises(UserError, match=r"has no answers; set training\.answer_loss_only to false"):
        train(config, tmp_path / "run", console=Console(file=io.StringIO()))
    assert not (tmp_path / "run" / "config.yaml").exists()
