"""Texts in and out of the command line: standard input, files, and continuing a prompt."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SMALL, Command, piped, process, tree

import backstory as bs
from backstory.utils.errors import UserError

TEXT = "ann saw the zebra and\nbob took more jam\n"


def test_a_text_is_scored_in_a_line(command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("text.txt").write_text(TEXT)
    before = tree(Path())
    result = bs.evaluate("run", text=Path("text.txt"))
    line = (
        f"run, {{}}: perplexity {result.figures.perplexity:.2f} per word{{}} over 11 words, "
        "9.1% of them outside the vocabulary, audit passed\n"
        "  unknown     9.1% of the words are outside the vocabulary (read as <unk>), so the perplexity does not compare with "
        "models of another vocabulary; the training text does not have them; give more of it, or another tokenizer\n"
    )
    spelled = f", {result.figures.open_bits_per_byte:.4f} bits per byte with unknown words spelled out"
    of_file = command("evaluate", "run", "text.txt")
    assert (of_file.code, of_file.out, of_file.err) == (0, line.format("text.txt", spelled), "")
    piped(monkeypatch, TEXT.encode())
    assert command("evaluate", "run", "-").out == line.format("standard input", "")
    assert json.loads(command("evaluate", "run", "text.txt", "--json").out)["figures"] == result.figures.to_dict()
    assert tree(Path()) == before


def test_training_names_files_without_text_and_splits_that_are_too_small(command: Command) -> None:
    for number, lines in enumerate((1, 9, 120, 9)):
        Path("other", f"{number}.txt").write_text("ann saw more jam\n" * lines)
    Path("other", "notes.txt").rename("other/notes.pdf")
    trained = command("train", "demo", "--corpus", "other", *SMALL)
    left_out = "left out 1 file of other without text: notes.pdf (a PDF)"
    assert f"{left_out}\n" in trained.err
    assert (
        "the valid split has 5 tokens of 560, too few to score a model; to choose the splits yourself, give a folder with "
        "the files train.txt, valid.txt and test.txt\n"
    ) in trained.err
    with pytest.warns(UserWarning, match=re.escape(left_out)):
        bs.evaluate("runs/demo", text=Path("other"))
    for split, lines in {"train": 300, "valid": 9, "test": 9}.items():
        Path("other", f"{split}.txt").write_text("ann saw more jam\n" * lines)
    assert "too few" not in command("train", "demo", "--corpus", "other", *SMALL, "--out", "more").err


@pytest.mark.full
def test_a_run_reads_other_corpora_in_its_own_vocabulary(command: Command, run_copy: Path) -> None:
    for split in ("train", "valid", "test"):
        Path("other", f"{split}.txt").write_text(f"ann saw the {split} and\nbob took more jam\n" * 9)
    Path("other", "notes.txt").unlink()
    before = tree(Path())
    alone = bs.evaluate("run", text=Path("other", "test.txt")).figures
    of_corpus = bs.evaluate("run", corpus="other").figures
    assert (of_corpus.nats_per_token, of_corpus.unknown_tokens) == (alone.nats_per_token, 9)
    assert command("evaluate", "run", "--corpus", "other").out.startswith("run, test split of other, static reader\n")
    table = command("evaluate", "run", "--corpus", "other", "--corpus", "good.txt").out.splitlines()
    assert [line.split()[0] for line in table[2:4]] == ["other", "good.txt"]
    assert f"{of_corpus.nats_per_token:.4f}" in table[2]
    assert (
        "a text and --corpus cannot be combined"
        in command("evaluate", "run", "good.txt", "--corpus", "other").mistake()
    )
    with pytest.raises(UserError, match="a text and corpus cannot"):
        bs.evaluate("run", text="ann saw the jam\n", corpus="other")
    assert tree(Path()) == before  # a result of another corpus is written where --out says


def test_a_run_is_no_corpus(command: Command, run_copy: Path) -> None:
    message = "run is a run, not a corpus; give a text, or the corpus that the run was trained on"
    for arguments in (["train", "demo", "--corpus", "run"], ["evaluate", "run", "run"], ["data", "show", "run"]):
        assert message in command(*arguments).err
    assert "by the folder that holds them: `backstory evaluate FOLDER`" in command("evaluate", "run", "run").mistake()


def test_a_file_s_name_is_no_markup(command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the progress bar tells it; there `[/b]` would end what never began."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    Path("d[").mkdir()
    Path("d[", "b].txt").write_text(TEXT)
    done = command("evaluate", "run", "d[/b].txt")
    assert done.code == 0 and done.out.startswith("run, b].txt: perplexity")
    assert "reading d[/b].txt" in done.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "standard input is empty; give some words"),
        (b"ann\x00", "standard input is binary (a NUL at byte 3)"),
        (b"ann \xff", "standard input is not UTF-8 text (byte 4)"),
    ],
)
def test_standard_input_that_is_no_text(
    content: bytes, says: str, command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, content)
    before = tree(Path())
    assert command("evaluate", "run", "-", "--out", "new", "--per-token", "tokens.tsv").mistake().startswith(says)
    assert tree(Path()) == before


def test_the_figures_of_every_token_are_written(command: Command, run_copy: Path) -> None:
    done = command("evaluate", "run", "--split", "valid", "--per-token", "tokens.tsv")
    assert (done.code, done.err) == (0, "")
    first, *lines = Path("tokens.tsv").read_text().splitlines()
    assert first.split("\t") == ["index", "document", "title", "word", "token", "log_prob", "rank", "entropy"]
    figures = json.loads((run_copy / "evaluate-valid" / "result.json").read_text())["figures"]
    assert len(lines) == figures["tokens"]
    assert "exists" in command("evaluate", "run", "--per-token", "tokens.tsv").mistake()
    assert command("evaluate", "run", "--per-token", "tokens.tsv", "--overwrite").code == 0


def test_a_text_goes_on(command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(Path())
    options = ("--tokens", "12", "--seed", "3", "--temperature", "0.9", "--top-k", "9", "--top-p", "0.9")
    done = command("generate", "run", "--prompt", "ann saw", *options)
    expected = bs.generate("run", "ann saw", tokens=12, seed=3, temperature=0.9, top_k=9, top_p=0.9, echo=True)
    assert (done.code, done.err) == (0, "")
    text = "".join(expected)
    assert text.startswith("ann saw") and done.out == (text if text.endswith("\n") else text + "\n")
    piped(monkeypatch, b"ann saw")
    assert command("generate", "run", "--prompt", "-", *options).out == done.out
    assert command("generate", "run", "--prompt", "", "--tokens", "3").out.strip()
    stopped = command("generate", "run", "--tokens", "50", "--stop", "zzz", "--stop", "\n").out
    assert stopped.count("\n") == 1
    assert tree(Path()) == before


def test_a_prompt_that_is_no_text(command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, says in ((b"a\xff", "the prompt is not UTF-8 text"), (b"a\x00", "the prompt holds a NUL")):
        piped(monkeypatch, content)
        assert command("generate", "run", "--prompt", "-").mistake().startswith(says)


@pytest.mark.full
def test_it_comes_token_by_token_until_its_reader_goes_away(run_copy: Path) -> None:
    """The first words arrive long before the last."""
    generating = process("generate", "run", "--prompt", "ann saw", "--tokens", "1000000", "--seed", "1")
    assert generating.stdout is not None and generating.stderr is not None
    assert re.match(r"ann saw\b", generating.stdout.read(40))
    assert generating.poll() is None
    generating.stdout.close()
    assert generating.wait(60) == 0
    assert generating.stderr.read() == "backstory: loading run\n"
    generating.stderr.close()


@pytest.mark.full
def test_a_terminal_without_the_character_is_no_reason_to_stop(desk: Path, run_copy: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    Path("prompt.py").write_text(
        "import sys, backstory.evaluation as r; r.generate = lambda *_, **__: iter(['caf\\u00e9']);"
        "from backstory.cli.main import main; sys.exit(main(['generate', 'run']))"
    )
    done = subprocess.run([sys.executable, "prompt.py"], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "caf?\n", "")


@pytest.mark.full
def test_a_prompt_is_utf8_in_any_locale(desk: Path, run_copy: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "backstory", "generate", "run", "--prompt", "ann caf\u00e9", "--tokens", "2"]
    stop = ["--stop", "\u00e9"]
    done = subprocess.run([*command, *stop], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout[:9]) == (0, "ann <unk>"), done.stderr


@pytest.mark.parametrize(
    ("prompt", "note"),
    [
        ("ann <unk>", "backstory: <unk> in the prompt stands for a word that the vocabulary lacks\n"),
        ("ann zebra", "backstory: <unk> takes the place of a word that the vocabulary lacks\n"),
        ("ann saw", ""),
    ],
)
def test_an_unknown_word_in_a_prompt_is_explained(prompt: str, note: str, command: Command, run_copy: Path) -> None:
    done = command("generate", "run", "--prompt", prompt, "--tokens", "3", "--allow-unknown")
    assert (done.code, done.err) == (0, note)


def test_an_empty_line_is_read_and_says_nothing(
    command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("lines.txt").write_text("\nann saw\n\n")
    with open("lines.txt") as lines:
        monkeypatch.setattr(sys, "stdin", lines)
        done = command("read", "run")
    assert [line.partition(":")[0] for line in done.out.splitlines()] == ["line 2", "3 lines, 5 words, static reader"]
