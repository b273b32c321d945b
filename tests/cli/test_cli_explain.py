"""`backstory explain`: what it prints, what it writes, and that a report shows it."""

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Command, piped
from rich.console import Console
from runs import with_model

from backstory.config import MDMConfig, NTMConfig, RunConfig, SpanBufferConfig
from backstory.results import result_from
from backstory.training import train

PROVENANCE = {"config", "seed", "commit", "versions", "device", "precision", "ranks", "precision_reason", "corpus", "started",
              "seconds", "command", "weights", "weights_file"}  # fmt: skip


def test_columns_in_a_pipe(command: Command, run_copy: Path) -> None:
    done = command("explain", "surprisal", "run", "--words", "7", "--top", "2")
    assert (done.code, done.err) == (0, "")
    head, *lines, blank, summary = done.out.splitlines()
    assert head.split()[:2] == ["word", "surprisal,"] and blank == ""
    written = json.loads((run_copy / "explain-surprisal-words7-top2" / "result.json").read_text())
    words = written["figures"]["passage"]["words"]
    surprisal = written["figures"]["passage"]["layers"][0]["values"]
    assert [line.split()[1:3] for line in lines] == [
        [w["text"], f"{s:.2f}"] for w, s in zip(words, surprisal, strict=True)
    ]
    assert all(line.count(" · ") == 1 for line in lines)  # two candidates
    assert summary.startswith("run reads these 7 words at perplexity ") and summary.endswith("nothing was read first.")
    assert written["kind"] == "explanation" and set(written["provenance"]) == PROVENANCE


def in_a_terminal(*arguments: str, **environment: str) -> str:
    """Output of a real process on a terminal of 50 columns."""
    ours, theirs = pty.openpty()
    settings = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "50", **environment}
    command = [sys.executable, "-m", "backstory", *arguments]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=settings) as process:
        os.close(theirs)
        pieces = []
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # how Linux tells that the other end is closed
                break
            if not piece:
                break
            pieces.append(piece)
    os.close(ours)
    assert process.returncode == 0
    return b"".join(pieces).decode().replace("\r\n", "\n")


@pytest.mark.full
def test_shades_in_a_real_terminal(run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = in_a_terminal("explain", "surprisal", "run", "--words", "30")
    assert text.count("\x1b[38;2;") > 20 and "surprisal  0.00 nats" in text
    lines = text.splitlines()
    summary = lines[next(i for i, line in enumerate(lines) if line.startswith("run reads these 30 words")) :]
    assert len(summary) > 1 and all(len(line) <= 50 for line in summary), "it is broken between words"


@pytest.mark.full
def test_no_shades_in_a_real_terminal_where_none_are_wanted(run_copy: Path) -> None:
    plain = in_a_terminal("explain", "surprisal", "run", "--words", "30", NO_COLOR="1")
    assert "\x1b[38" not in plain and "\x1b[48" not in plain and "  30  " in plain


def test_json_is_what_is_written(command: Command, run_copy: Path) -> None:
    done = command("explain", "surprisal", "run", "--split", "valid", "--at", "3", "--words", "5", "--json")
    assert (done.code, done.err) == (0, "")
    path = run_copy / "explain-surprisal-valid-at3-words5" / "result.json"
    assert json.loads(done.out) == json.loads(path.read_text())
    assert result_from(done.out, "x").name == "run"


@pytest.mark.full
def test_a_page_of_a_text_of_one_s_own_and_the_report(command: Command, run_copy: Path, desk: Path) -> None:
    done = command("explain", "surprisal", "run", "--text", "good.txt", "--words", "9", "--html", "page.html")
    assert (done.code, done.out, done.err) == (0, "page.html\n", "")
    page = Path("page.html").read_text()
    assert re.search(r"run reads these 9 words \([\d.]+% of them outside the vocabulary\) at perplexity", page)
    assert page.count('role="region"') == 1
    (written,) = run_copy.glob("explain-surprisal-good.txt-*-words9/result.json")
    evaluated = json.loads(command("evaluate", "run", "good.txt", "--json").out)["provenance"]["corpus"]
    assert json.loads(written.read_text())["provenance"]["corpus"] == evaluated  # so that the results may be compared
    assert command("explain", "surprisal", "run", "--html", "page.html").code == 0  # a page of ours is replaced
    assert command("report", "run", "--out", "page.html").code == 0
    assert command("report", "run", "--out", "report.html").code == 0
    assert '<figure class="passage">' in Path("report.html").read_text()


@pytest.mark.parametrize("verb", [("explain", "surprisal", "run", "--html"), ("report", "run", "--out")])
def test_a_file_of_one_s_own_is_replaced_where_that_is_asked_for(
    verb: tuple[str, ...], command: Command, run_copy: Path
) -> None:
    Path("other/notes.html").write_text("somebody's notes\n")
    assert command(*verb, "other/notes.html").code == 2
    assert Path("other/notes.html").read_text() == "somebody's notes\n"
    assert command(*verb, "other/notes.html", "--overwrite").code == 0
    assert Path("other/notes.html").read_text().startswith("<!doctype html>")


@pytest.mark.full
def test_no_result_takes_the_place_of_another(command: Command, run_copy: Path) -> None:
    for name, text in {"test": "ann", "valid": "ann", "a/x.txt": "ann saw bob", "b/x.txt": "bob saw ann"}.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(f"{text}\n")
    for name in ("a/wide", "b/wide"):
        shutil.copytree(run_copy, name)
    told = (
        *((), ("--at", "3"), ("--words", "9"), ("--context", "2"), ("--precision", "bfloat16"), ("--split", "valid")),
        *(("--top", "3"), ("--layer", "entropy"), ("--against", "a/wide"), ("--against", "b/wide")),
        *(("--text", name) for name in ("test", "valid", "a/x.txt", "b/x.txt")),
    )
    for flags in told:
        assert command("explain", "surprisal", "run", *flags).code == 0
    assert len(list(run_copy.glob("explain-surprisal*/result.json"))) == len(told)
    assert command("explain", "surprisal", "run", *told[-1]).code == 0  # the same again takes its own place
    assert len(list(run_copy.glob("explain-surprisal*/result.json"))) == len(told)
    assert "holds a result of kind training" in command("explain", "surprisal", "run", "--out", "run").mistake()


@pytest.mark.full
def test_standard_input_is_read_once(command: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two readers, or two runs, score it."""
    shutil.copytree(run_copy, "twin")
    text = "ann saw the zebra and\nbob took more jam\n"
    Path("text.txt").write_text(text)
    of_file = json.loads(command("explain", "surprisal", "run", "--text", "text.txt", "--json").out)["figures"]
    for against in (("--against", "twin"), ("--against", "static")):
        program = [sys.executable, "-m", "backstory", "explain", "surprisal", "run", "--text", "-", "--json", *against]
        done = subprocess.run(program, input=text, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "backstory: explaining surprisal of run\n")
        figures = json.loads(done.stdout)["figures"]
        assert figures["text"] == "standard input" and figures["tokens"] == of_file["tokens"] == 11
        assert figures["nats_per_token"] == of_file["nats_per_token"]
        assert figures.get("against_nats_per_token", figures["nats_per_token"]) == figures["nats_per_token"]
    assert len(list(run_copy.glob("explain-surprisal-standard_input-*"))) == 2
    piped(monkeypatch, b"")
    empty = command("explain", "surprisal", "run", "--text", "-")
    assert empty.mistake() == "standard input is empty; give some words"


def test_a_pipe_is_read_once(command: Command, run_copy: Path) -> None:
    os.mkfifo("pipe")
    with subprocess.Popen(["sh", "-c", "echo ann saw bob > pipe"]) as writing:
        done = command("explain", "surprisal", "run", "--text", "pipe", "--against", "static", "--json")
        writing.wait(60)
    assert done.code == 0
    Path("same.txt").write_text("ann saw bob\n")
    evaluated = json.loads(command("evaluate", "run", "same.txt", "--json").out)["provenance"]["corpus"]
    assert json.loads(done.out)["provenance"]["corpus"]["fingerprint"] == evaluated["fingerprint"]


@pytest.mark.full
def test_readers_are_compared_in_a_pipe_as_json_and_on_a_page(command: Command, run_copy: Path) -> None:
    shutil.copytree(run_copy, "twin")
    told = ("explain", "reading", "run", "--against", "twin", "--tokens", "120", "--block", "30", "--words", "9")
    done = command(*told, "--passage", "3", "--passage", "40")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].startswith("run reads 120 words in 1 document at perplexity ")
    assert "\n1. Asked for: run over twin 0.000 nats per word\n" in done.out and done.out.count("gain over twin") == 2
    (written,) = run_copy.glob("explain-reading-tokens120-block30-words9-passage3-40-static-against-twin-*/result.json")
    figures = json.loads(written.read_text())["figures"]
    assert figures["comparisons"][0]["blocks"] == [0.0] * 4  # the same model, the same text
    as_json = command(*told, "--json")
    assert as_json.code == 0 and result_from(as_json.out, "x").figures.passages[0].why == "the largest gain"
    assert command(*told, "--html", "page.html").out == "page.html\n"
    assert " (test)</h1>" in Path("page.html").read_text()
    assert command(*told, "--html", "other/notes.txt").code == 2
    assert command("report", "run", "--out", "report.html").code == 0
    assert "Readers against each other" in Path("report.html").read_text()


@pytest.mark.full
def test_a_span_buffer_at_a_word(command: Command, tiny_config: RunConfig, desk: Path) -> None:
    """The heat map of the first word of the passage, and what each part expected there."""
    buffer = SpanBufferConfig(size=12, span=4)
    train(with_model(tiny_config, buffer=buffer), Path("buffered"), console=Console(file=io.StringIO()))
    done = command("explain", "buffer", "buffered", "--at", "30", "--words", "1", "--top", "2")
    assert (done.code, done.err) == (0, "")
    head, *lines, blank, summary = done.out.splitlines()
    assert "attention of " in head and "gate, %" in head and len(lines) == 14 and blank == ""
    (written,) = Path("buffered").glob("explain-buffer-at30-words1-top2/result.json")
    passage = json.loads(written.read_text())["figures"]["passage"]
    weights = dict(map(tuple, passage["layers"][0]["links"][-1]))
    assert len(weights) == 12 and passage["chosen"] == 13
    assert [line.split()[1] for line in lines[:12]] == [f"{weights[i]:.4f}" for i in range(12)]
    assert lines[-1].split()[0] == "1" and "buffer: " in lines[-1] and "mixture: " in lines[-1]
    assert summary.startswith("buffered reads this word at perplexity ")
    assert " with the sequence model alone; 30 words before it were read first." in summary
    done = command("explain", "buffer", "buffered", "--at", "30", "--layer", "gate", "--html", "page.html")
    assert (done.code, done.out) == (0, "page.html\n")
    assert command("report", "buffered", "--out", "report.html").code == 0
    assert (
        'data-lead title=""' in Path("page.html").read_text() and "surprisal, buffer" in Path("report.html").read_text()
    )


@pytest.mark.full
@pytest.mark.parametrize("core", [NTMConfig, MDMConfig])
def test_an_external_memory(
    core: type[NTMConfig | MDMConfig], command: Command, tiny_config: RunConfig, desk: Path
) -> None:
    """Figures of its heads in columns, and the picture of their weights on the page and in the report."""
    config = with_model(tiny_config, core=core(layers=(9,), slots=7, width=5))
    train(config, Path("remembers"), console=Console(file=io.StringIO()))
    done = command("explain", "memory", "remembers", "--at", "30", "--words", "6", "--top", "2")
    assert (done.code, done.err) == (0, "")
    head = done.out.splitlines()[0]
    assert "read weights of " in head and "entropy, write, bits" in head and "window, read, %" in head
    assert done.out.splitlines()[-1].startswith("remembers reads these 6 words at perplexity ")
    assert "\nHead   Entropy, of 2.81 bits  Largest weight  In a window of 7 slots  Fall-back\nwrite  " in done.out
    assert "from older words.\n" in done.out
    assert Path("remembers/explain-memory-at30-words6-top2/result.json").is_file()
    done = command("explain", "memory", "remembers", "--words", "9", "--html", "page.html")
    assert (done.code, done.out) == (0, "page.html\n")
    assert command("report", "remembers", "--out", "report.html").code == 0
    for page in ("page.html", "report.html"):
        text = Path(page).read_text(encoding="utf-8")
        assert "of all 7 slots of the memory, at each token of the passage." in text and "Entropy, of 2.81 bits" in text
    assert "external memory" in command("ls", "explanations").out


@pytest.mark.full
def test_cases_of_a_cache_are_looked_for(command: Command, run_copy: Path) -> None:
    reader = ("--reader", "cache:window=12,theta=2e4", "--split", "train")
    done = command("explain", "cache", "run", "--find", "both", *reader)
    assert (done.code, done.err) == (0, "")
    success, failure = (line for line in done.out.splitlines() if "was searched for: " in line)
    assert "of the cache’s mass lies on it" in success and "the cache does not hold it" in failure
    assert len(list(run_copy.glob("explain-cache-train-*find-*/result.json"))) == 2
    refused = command("explain", "cache", "run", "--find", "both", "--html", "page.html", *reader)
    assert (refused.code, refused.out) == (2, "") and "are for one passage; give --find success" in refused.err
    assert command("explain", "surprisal", "run", "--find", "failure").code == 2
    assert command("report", "run", "--out", "page.html").code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "the most peaked success of the cache" in page and "the flattest failure of the cache" in page
