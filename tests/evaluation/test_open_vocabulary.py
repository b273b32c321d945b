"""Bits per byte of all vocabularies: what `evaluate` says is what `compress` takes, and is not said of what has no bytes."""

import dataclasses
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import backstory as bs
from backstory.config.options import LoadOptions
from backstory.evaluation import open_vocabulary
from backstory.runs.run import open_run
from backstory.utils import terminal
from backstory.utils.terminal import shown_progress


def test_unknown_words_are_paid_for(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from backstory.cli.main import main

    text = tmp_path / "text.txt"
    for known, content in ((True, "ann saw the tea\n" * 9), (False, "Ann saw the  zeppelin\r\n" * 9)):
        text.write_bytes(content.encode())
        figures = bs.evaluate(tiny_run, text, allow_unknown=True).figures
        assert figures.open_bits_per_byte == pytest.approx(bs.compress(text, tiny_run).bits_per_byte, rel=1e-5)
        tokens_alone = figures.bits_per_token * figures.tokens / text.stat().st_size
        assert (figures.open_bits_per_byte or 0) > tokens_alone + (0.001 if known else 0.5)
    assert main(["evaluate", str(tiny_run), str(text), "--allow-unknown"]) == 0
    assert " bits per byte with unknown words spelled out over " in capsys.readouterr().out


def test_what_has_no_bytes_has_no_figure(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ann saw the tea\n" * 9)
    assert bs.evaluate(tiny_run, io.BytesIO(text.read_bytes())).figures.open_bits_per_byte is None
    assert bs.evaluate(tiny_run, text, each_line=True).figures.open_bits_per_byte is None
    monkeypatch.setattr(open_vocabulary, "MOST_BYTES", 20)
    assert bs.evaluate(tiny_run, text).figures.open_bits_per_byte is None


def test_a_length_is_measured_once(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = open_run(tiny_run, LoadOptions()).vocabulary
    first = open_vocabulary.spelled(vocabulary, [b"ann saw\n", b"an otter\n"])
    monkeypatch.setattr(open_vocabulary, "measure", None)
    assert open_vocabulary.spelled(vocabulary, [b"ann saw\n", b"an otter\n"]) == first
    with pytest.raises(TypeError):  # of another vocabulary it is measured
        open_vocabulary.spelled(dataclasses.replace(vocabulary, lowercase=True), [b"ann saw\n", b"an otter\n"])


def test_a_long_spelling_shows_how_far_it_is(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, console = open_run(tiny_run, LoadOptions()).vocabulary, Console(file=io.StringIO(), width=120)
    monkeypatch.setattr(terminal, "EVERY", 0.0)
    monkeypatch.setattr(terminal, "ANNOUNCED", 1000)
    monkeypatch.setattr(open_vocabulary, "SHOW_EVERY", 100)
    file = b"ann saw the zeppelin\n" * 100
    with shown_progress(console):
        open_vocabulary.measure(vocabulary, [file], "text.txt")
    assert isinstance(console.file, io.StringIO)
    first, *others = console.file.getvalue().splitlines()
    assert first.endswith("spelling text.txt (2.1 kB)") and len(others) == 4
    shown = re.compile(r"spelling text.txt \(2.1 kB\): [0-2] of 2 kB, 0:00:0. left$")
    assert all(shown.search(line) for line in others)
