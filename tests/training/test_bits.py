"""Output on a run over characters or bytes: bits of each and no perplexity; and the first steps of recipes for them."""

import dataclasses
import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console
from runs import with_model, with_training
from tiers import fast_then_full

from backstory.cli.evaluation_text import describe, summary
from backstory.config import RunConfig, recipes
from backstory.evaluation import evaluate
from backstory.reports.phrases import learning_caption
from backstory.reports.phrases import summary as sentence
from backstory.results import read
from backstory.training import train
from backstory.utils import formats
from backstory.utils.scores import format_score


@pytest.mark.full
@pytest.mark.parametrize(("tokenizer", "unit"), [("bytes", "byte"), ("characters", "character")])
def test_bits_from_training_to_a_report(tokenizer: str, unit: str, tiny_config: RunConfig, tmp_path: Path) -> None:
    text, said = dataclasses.replace(tiny_config.text, tokenizer=tokenizer), io.StringIO()
    folder = tmp_path / "run"
    trained = train(dataclasses.replace(tiny_config, text=text), folder, console=Console(file=said)).figures
    valid = trained.valid_nats / math.log(2)
    line = next(line for line in said.getvalue().splitlines() if line.startswith("epoch"))
    assert f"train bits per {unit}" in line and f"valid {valid:7.4f}" in line and "perplexity" not in line
    result = evaluate(folder)
    figures = result.figures
    assert figures.bits_per_token == figures.nats_per_token / math.log(2)
    assert getattr(figures, f"bits_per_{unit}") == pytest.approx(figures.bits_per_token)
    head = describe(result).splitlines()[1]
    assert head.startswith(f"  bits        {figures.bits_per_token:.4f} per {unit}  (perplexity ")
    assert f": {figures.bits_per_token:.4f} bits per {unit}, perplexity " in summary(result)
    for per_word, told in ((158560.99, "158,560.99"), (12019801.62, "above 10⁶")):
        other = dataclasses.replace(result, figures=dataclasses.replace(figures, perplexity_per_word=per_word))
        assert f", perplexity {told} per word)" in describe(other)
        assert f", perplexity {told} per word over " in summary(other)
    found = read(folder)
    assert f"at {figures.bits_per_token:.3f} bits per {unit} over" in sentence(found)
    assert f"at validation {valid:.3f} bits per {unit} over" in learning_caption([found])


def test_scores_by_unit() -> None:
    assert formats.score(math.log(4), "character") == "2.000 bits per character"
    assert formats.score(math.log(98.14), "word") == "perplexity 98.1 per word"


def test_a_perplexity_that_broke_down_is_above_a_million() -> None:
    assert formats.score(700.0, "word") == format_score(700.0, "word") == "perplexity above 10⁶ per word"
    assert formats.validation(1e300, "word") == "validation perplexity above 10⁶ per word"
    assert formats.alone(1e300) == formats.perplexity(1e300) == "above 10⁶"
    assert formats.perplexity(999_999.4) == "999,999" and formats.perplexity(math.nan) == "not finite"
    assert formats.percent(1e300) == "above 10⁶%" and formats.percent(1204.0) == "1,204%"


def test_no_line_of_a_reading_has_hundreds_of_digits(tiny_run: Path, tmp_path: Path) -> None:
    result = evaluate(tiny_run, reader="cache", out=tmp_path / "out")
    gains = tuple(
        dataclasses.replace(score, perplexity=p) for score, p in zip(result.figures.gains, (9.0, 1e290), strict=True)
    )
    figures = dataclasses.replace(result.figures, perplexity=1e290, nats_per_token=668.0, gains=gains)
    broken = dataclasses.replace(result, figures=figures)
    lines = describe(broken) + summary(broken)
    assert "perplexity  above 10⁶ per word" in lines and "cache       above 10⁶  above 10⁶%" in lines
    assert "perplexity above 10⁶ per word" in summary(broken) and max(map(len, lines.split())) < 60


@pytest.mark.parametrize("name", fast_then_full(["ptb-char-awd-lstm", "enwik8-awd-lstm"], ["ptb-char-awd-lstm"]))
def test_the_recipes_of_characters_take_their_first_steps(name: str, tmp_path: Path) -> None:
    config, letters = recipes.load(name), tmp_path / "text"
    letters.mkdir()
    for split, times in (("train", 130), ("valid", 12), ("test", 13)):
        (letters / f"{split}.txt").write_text("the cat sat on the mat .\n" * times)
    kind = "characters" if name.startswith("ptb") else "bytes"
    text = dataclasses.replace(config.text, corpus=str(letters), tokenizer=kind)
    core = dataclasses.replace(config.model.core, hidden=16)
    small = with_model(dataclasses.replace(config, text=text), core=core)
    small = with_training(small, epochs=2, batch_size=8, segment=40, learning_rate=0.01, device="cpu")
    result = train(small, tmp_path / "run", console=Console(file=io.StringIO())).figures
    curve = [epoch.train_nats for epoch in result.curve]
    assert len(curve) == 2 and curve[1] < curve[0] and json.dumps(result.to_dict())
