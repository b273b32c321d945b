"""Progress of a training where there is no terminal: a line at the start, one a minute, and one for every epoch."""

import io
import math
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from runs import with_training

from backstory.config import RunConfig
from backstory.data import prepare
from backstory.results.training_record import EpochRecord
from backstory.training import train
from backstory.training.objectives import ANSWER_SHARE
from backstory.training.progress import Progress
from backstory.training.progress_display import Display


class Clock:
    """A clock that a test sets; no time between two readings is zero."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made.perf_counter)
    return made


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_without_a_terminal_it_prints_a_line_a_minute(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=40)  # lines are not wrapped
    display = Display(console, 100_000, 40_000)  # resumed
    with display.shown():
        for step in range(1, 61):
            clock.now += 4.0
            display.advance(f"epoch {1 + step // 40}/2", 1000)
            display.window(4.0, 250.0)
    assert lines(console) == [
        "training: 40.0% of 100,000 tokens done; a line follows every minute",
        "epoch 1/2: 55.0% done, 250 tokens/s, 0:03:00 left",
        "epoch 1/2: 70.0% done, 250 tokens/s, 0:02:00 left",
        "epoch 2/2: 85.0% done, 250 tokens/s, 0:01:00 left",
    ]  # and none at the end


@pytest.mark.parametrize("epoch_tokens, said", [(30_000, ["an epoch takes about 0:01:00, plus validation"]), (300, [])])
def test_after_ten_steps_it_says_how_long_an_epoch_takes(clock: Clock, epoch_tokens: int, said: list[str]) -> None:
    console = Console(file=io.StringIO())
    display = Display(console, 90_000, 0, epoch_tokens=epoch_tokens)
    with display.shown():
        for step in range(12):
            clock.now += 0.2 if step else 9.0  # the first step is slow
            display.advance("epoch 1/3", 100)
    assert lines(console)[1:] == said


def test_on_a_terminal_a_bar_does_that(clock: Clock) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    display = Display(console, 100_000, 0)
    with display.shown():
        clock.now += 90.0
        display.advance("epoch 1/2", 1000)
    assert not any("training:" in line or "% done" in line for line in lines(console))


def test_a_window_without_an_answer_has_no_score() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    display, progress = Display(console, 100_000, 0), Progress()
    progress.take({"nats": 0.0, ANSWER_SHARE: 0.0}, 700, 1.0)
    with display.shown():
        display.window(progress.window_nats(), 700.0)
        assert display._bar.tasks[0].fields["figures"] == "700 tokens/s"
        progress.take({"nats": 0.5, ANSWER_SHARE: 0.25}, 700, 1.0)
        display.window(progress.window_nats(), 700.0)
        assert display._bar.tasks[0].fields["figures"] == f"perplexity {math.exp(2.0):7.2f}  700 tokens/s"


def test_an_epoch_is_one_line_of_a_usual_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    for perplexity in (9.5, 9999.9, 123456.7):
        nats = math.log(perplexity)
        figures = {"train_nats": nats, "valid_nats": nats, "valid_perplexity": perplexity}
        timing = {"seconds": 1234.4, "tokens_per_second": 2345.6}
        Display(console, 100, 0).epoch(EpochRecord(epoch=12, **figures, **timing, best=True))
    assert lines(console) == [
        "epoch  12  train perplexity    9.50  valid    9.50  2,346 tokens/s  1234 s  best",
        "epoch  12  train perplexity 9999.90  valid 9999.90  2,346 tokens/s  1234 s  best",
        "epoch  12  train perplexity 1.2e+05  valid 1.2e+05  2,346 tokens/s  1234 s  best",
    ]


def test_a_training_says_how_far_it_is(
    tiny_config: RunConfig, monkeypatch: pytest.MonkeyPatch, at_step: Callable, clock: Clock, tmp_path: Path
) -> None:
    at_step(5, lambda optimizer: clock.wait(61.0))
    console = Console(file=io.StringIO())
    train(with_training(tiny_config, epochs=2), tmp_path / "run", console=console)
    text = lines(console)
    assert re.search(r"parameters, \d+ tokens of", text[0])
    assert re.fullmatch(r"training: 0\.0% of [\d,]+ tokens done; a line follows every minute", text[1])
    assert re.fullmatch(r"epoch 1/2: \d+\.\d% done, \d+ tokens/s, 0:\d\d:\d\d left", text[2])
    epochs = [line for line in text[3:] if "takes about" not in line]
    assert [line.split()[:2] for line in epochs] == [["epoch", "1"], ["epoch", "2"]]


@pytest.mark.full
def test_an_epoch_that_is_no_better_than_word_frequencies_says_so(tiny_config: RunConfig, tmp_path: Path) -> None:
    dataset = prepare(tiny_config.text)
    training, validation = ([*map(int, dataset.splits[name].ids)] for name in ("train", "valid"))
    total = len(training) + len(dataset.vocabulary)
    frequencies = math.exp(sum(math.log(total / (training.count(word) + 1)) for word in validation) / len(validation))
    console = Console(file=io.StringIO(), width=200)
    config = with_training(tiny_config, optimizer="adam", learning_rate=0.01, epochs=8)
    result = train(config, tmp_path / "run", console=console)
    assert result is not None
    perplexities = [math.exp(epoch.valid_nats) for epoch in result.figures.curve]
    assert perplexities[0] > frequencies > perplexities[-1]
    said = f"  no better than word frequencies ({frequencies:.2f})"
    epochs = [line for line in lines(console) if re.match("epoch  ", line)]
    assert [line.endswith(said) for line in epochs] == [value >= frequencies for value in perplexities]


@pytest.mark.skipif(not hasattr(signal, "SIGCONT"), reason="needs the signals of job control")
def test_the_time_left_leaves_out_the_time_for_which_a_training_is_suspended(
    tiny_config: RunConfig, at_step: Callable, clock: Clock, tmp_path: Path
) -> None:
    def suspended(optimizer: object) -> None:
        clock.wait(36_000.0)
        signal.raise_signal(signal.SIGCONT)

    at_step(5, suspended)
    at_step(7, lambda optimizer: clock.wait(61.0))
    console = Console(file=io.StringIO())
    result = train(with_training(tiny_config, epochs=2), tmp_path / "run", console=console)
    [left] = [line.rpartition(", ")[2] for line in lines(console) if line.endswith(" left")]
    assert re.fullmatch(r"0:\d\d:\d\d left", left)
    assert result is not None and result.figures.curve[-1].seconds == 61.0
