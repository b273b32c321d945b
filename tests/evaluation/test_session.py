"""A session gives the figures of `evaluate`, whenever lines arrive, and is saved and resumed bit for bit."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import adaptive
import pytest
from runs import contents
from test_resuming import DAMAGE, other_weights

import backstory as bs
from backstory.cli.main import main
from backstory.data import tokenizer
from backstory.data.corpora import text_files
from backstory.evaluation import Sampling, generate_ids
from backstory.evaluation.session import Line, Session, session
from backstory.evaluation.session_state import session_state
from backstory.readers.registry import READERS
from backstory.readers.saved_reading import ReadingCheckpoint, _layers, load_reading, save_reading
from backstory.runs.run import load_run
from backstory.storage.lock import LOCK
from backstory.utils.errors import NoDisk, UserError

Runs = Callable[..., Path]
PROGRAM = [sys.executable, str(Path(adaptive.__file__))]
TOKENIZERS = ("words", "regex", "characters", "bytes", "pieces")
TEXT = "ann saw the tea and\n\nbob took more jam\nann - sold 3.5 oil,\n\n\n  dora saw\nthe end"


@pytest.fixture(autouse=True)
def registered(adaptive_readers: None) -> None:
    """Register the readers of `adaptive` by name for all tests here."""


@pytest.fixture
def text(tiny_corpus: Path, tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text((tiny_corpus / "train.txt").read_text() + TEXT)
    return path


def read_file(run: Path, path: Path, **options: Any) -> tuple[list[Line], Any]:
    """Read a file as standard input; return its lines and the session's final state."""
    lines: list[Line] = []
    with open(path, "rb") as file, session(run, on_line=lines.append, **options) as opened:
        opened.read(file.fileno())
    return lines, opened.state


def read_slowly(run: Path, pieces: list[bytes]) -> tuple[list[Line], Any]:
    """The same of pieces that come one by one, with pauses."""
    ours, theirs = os.pipe()
    lines: list[Line] = []

    def feed() -> None:
        for piece in pieces:
            os.write(theirs, piece)
            time.sleep(0.03)
        os.close(theirs)

    feeding = threading.Thread(target=feed)
    with session(run, on_line=lines.append) as opened:
        feeding.start()
        opened.read(ours)
    feeding.join()
    os.close(ours)
    return lines, opened.state


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "reader"),
    list(product(TOKENIZERS, ["static", "doubtful", "learning", "learning+doubtful"])),
)
def test_a_file_reads_as_evaluate_reads_it(name: str, reader: str, tokenized_run: Runs, text: Path) -> None:
    if name == "pieces":  # which may stretch over several line ends
        text.write_text(text.read_text().replace("\n\n", "\n").replace("\n  ", "\n"))
    run = tokenized_run(name)
    figures = bs.evaluate(run, text=text, reader=reader).figures
    lines, at = read_file(run, text, reader=reader)
    assert at.tokens == figures.tokens == sum(len(line.ids) for line in lines)
    assert at.nats == pytest.approx(figures.nats_per_token * figures.tokens, rel=1e-12)  # the blocks are the same
    assert at.unknown == (figures.unknown_tokens or 0)
    assert sum(sum(line.nats) for line in lines) == pytest.approx(at.nats)
    assert (lines[-1].all_tokens, lines[-1].all_nats) == (at.tokens, pytest.approx(at.nats))
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_however_slowly_it_arrives_it_is_the_same_text(
    name: str, tokenized_run: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[None] = []
    catch_up = Session._catch_up
    monkeypatch.setattr(Session, "_catch_up", lambda self: (pauses.append(None), catch_up(self)))
    monkeypatch.setattr(text_files, "IDLE_SECONDS", 0.005)
    content = TEXT if name != "pieces" else TEXT.replace("\n\n", "\n").replace("\n  ", "\n")
    path, run = tmp_path / "text.txt", tokenized_run(name)
    path.write_text(content)
    data = content.encode()
    whole, at = read_file(run, path)
    for size in (7, 30):
        lines, slow = read_slowly(run, [data[i : i + size] for i in range(0, len(data), size)])
        assert (slow.tokens, slow.lines, slow.last, slow.unknown) == (at.tokens, at.lines, at.last, at.unknown)
        assert slow.nats == pytest.approx(at.nats, rel=1e-6)
        assert [i for line in lines for i in line.ids] == [i for line in whole for i in line.ids]
        assert len(pauses) >= len(data) // size - 1
        nats = [n for line in lines for n in line.nats]
        assert nats == pytest.approx([n for line in whole for n in line.nats], rel=1e-4, abs=1e-6)


def test_a_line_is_its_own_tokens(tokenized_run: Runs, text: Path) -> None:
    lines, _ = read_file(tokenized_run("words"), text)
    vocabulary = load_run(tokenized_run("words")).vocabulary
    for line, content in zip(lines, text.read_text().split("\n"), strict=True):
        assert line.ids == vocabulary.encode(content + "\n").tolist()


def test_the_last_word_of_a_line_is_known_with_it() -> None:
    """Of `regex`, where the white space after it may become the end of a paragraph."""
    assert list(tokenizer("regex").stream(["a b\n", "c\n", "\n", "d"]))[:2] == [["a", "b"], ["c"]]


# --- real processes ---


class Talk:
    """`backstory read` in a process of its own, spoken to line by line."""

    def __init__(self, *arguments: object, **options: Any) -> None:
        command = [*PROGRAM, "read", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def say(self, *lines: str) -> list[dict[str, Any]]:
        """Return its answers to lines that come together."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()
        return [json.loads(self.process.stdout.readline()) for _ in lines]

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Return its exit code and standard error, after a signal or the end of the input."""
        assert self.process.stdin is not None and self.process.stderr is not None and self.process.stdout is not None
        if number is not None:
            self.process.send_signal(number)
        else:
            self.process.stdin.close()
        code = self.process.wait(60)
        said = self.process.stderr.read()
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            file.close()
        return code, said


FIRST = ["ann saw the tea", "bob took more jam"]
THEN = ["carl found the ink and ann sold more oil", "ann saw"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("reader", "number"),
    [
        (["learning", "doubtful"], signal.SIGTERM),
        pytest.param(["static"], signal.SIGINT, marks=pytest.mark.full),
        pytest.param(["learning", "doubtful"], None, marks=pytest.mark.full),
    ],
)
def test_it_goes_on_in_another_process_bit_for_bit(
    reader: list[str], number: signal.Signals | None, tiny_run: Path, tmp_path: Path
) -> None:
    hashes = contents(tiny_run)
    flags = [word for name in reader for word in ("--reader", name)]
    whole = Talk(tiny_run, "--json", "--per-token", *flags)
    expected = whole.say(*FIRST) + whole.say(*THEN)
    assert whole.end()[0] == 0
    assert [line["line"] for line in expected] == [1, 2, 3, 4]
    assert [len(line["each"]) for line in expected] == [line["tokens"] for line in expected] == [5, 5, 10, 3]

    folder = tmp_path / "session"
    part = Talk(tiny_run, "--json", "--per-token", *flags, "--session", folder)
    found = part.say(*FIRST)
    with (  # nor do two processes share it
        pytest.raises(UserError, match="another reading is running"),
        session(tiny_run, folder, on_line=lambda line: None, resume=True),
    ):
        pass
    code, said = part.end(number)
    assert code == (0 if number is None else 128 + number)
    assert (
        said == f"backstory: {'read' if number is None else 'stopped'} and saved in {folder}; continue with --resume\n"
    )
    assert [p.name for p in folder.iterdir()] == ["reading-10"]
    rest = Talk(tiny_run, "--json", "--per-token", "--session", folder, "--resume")
    found += rest.say(*THEN)
    assert rest.end()[0] == 0
    assert found == expected
    assert contents(tiny_run) == hashes


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_endless_text_is_read_until_it_is_stopped(number: signal.Signals, tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "session"
    endless = subprocess.Popen(["yes", "ann saw the tea"], stdout=subprocess.PIPE)
    command = [*PROGRAM, "read", str(tiny_run), "--session", str(folder), "--save-every", "0.01", "--json"]
    process = subprocess.Popen(
        command, stdin=endless.stdout, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while not any(folder.glob("reading-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    endless.kill()
    endless.communicate()
    if number == signal.SIGKILL:
        assert (folder / LOCK).exists()
    else:
        assert process.returncode == 128 + number and said.count("\n") == 1
    saved = load_reading(folder)
    assert saved is not None and saved.progress["tokens"] > 0
    more = subprocess.run(
        [*PROGRAM, "read", str(tiny_run), "--session", str(folder), "--resume", "--json"],
        input="ann saw the tea\n",
        capture_output=True,
        text=True,
        check=True,
    )
    line = json.loads(more.stdout)
    # The line that was read in part is not read in part twice.
    unread = 5 - len(saved.progress["begun_ids"])
    assert (line["line"], line["all_tokens"]) == (saved.progress["lines"] + 1, saved.progress["tokens"] + unread)
    assert [p.name for p in folder.iterdir()] == [f"reading-{line['all_tokens']}"]


# --- killed at any time ---


class Killed(BaseException):
    """The process is gone: nothing is cleared away."""


def killed_after(saves: int, patch: pytest.MonkeyPatch) -> None:
    """Let a session end right after so many savings."""
    left = [saves]

    def save_and_die(*arguments: Any) -> Path:
        path = save_reading(*arguments)
        left[0] -= 1
        if not left[0]:
            raise Killed
        return path

    patch.setattr("backstory.evaluation.session.save_reading", save_and_die)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "saves"),
    list(product(["words", "regex", "characters", "pieces"], [1, 2, 3])),
)
def test_a_killed_session_goes_on_after_the_line_that_it_says(
    name: str, saves: int, tokenized_run: Runs, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that ends in the middle of a line gives the same figures, of the line too."""
    if name == "pieces":  # which may stretch over several line ends
        text.write_text(text.read_text().replace("\n\n", "\n").replace("\n  ", "\n"))
    run, folder, lines = tokenized_run(name), tmp_path / "session", text.read_text().splitlines(keepends=True)[-60:]
    text.write_text("".join(lines))
    expected, end = read_file(run, text, reader="learning")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(saves, patch)
        read_file(run, text, reader="learning", folder=folder, save_every=1e-9)
    saved = load_reading(folder)
    assert saved is not None
    at = session_state(saved, load_run(run).vocabulary)
    assert bool(at.begun_ids) == (at.nats != next((e.all_nats for e in expected if e.number == at.lines), 0.0))
    text.write_text("".join(lines[at.lines :]))
    rest, end_of_both = read_file(run, text, folder=folder, resume=True)
    told = {line.number: line for line in rest}
    assert told and {n: line for n, line in ((e.number, e) for e in expected) if n in told} == told
    assert end_of_both == end


def test_a_full_disk_names_the_line_to_go_on_from(
    tiny_run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--resume`: the same command is refused where a session was saved."""
    folder, saves = tmp_path / "session", iter(range(2))

    def save_until_full(*arguments: Any) -> Path:
        if next(saves, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return save_reading(*arguments)

    with monkeypatch.context() as patch, pytest.raises(NoDisk) as full:
        patch.setattr("backstory.evaluation.session.save_reading", save_until_full)
        read_file(tiny_run, text, folder=folder, save_every=1e-9)
    saved = load_reading(folder)
    assert saved is not None
    line = saved.progress["lines"] + 1
    assert f"make room on that disk, and go on with --resume from line {line:,} on" in str(full.value)


def test_other_text_after_a_line_that_was_read_in_part(
    tiny_run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part that was read stays read, and a message says so."""
    folder = tmp_path / "session"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_after(1, patch)
        read_file(tiny_run, text, folder=folder, save_every=1e-9)
    saved = load_reading(folder)
    assert saved is not None and saved.progress["begun_ids"]
    text.write_text("jam jam\n")
    with pytest.warns(UserWarning, match=f"line {saved.progress['lines'] + 1} was read in part"):
        (line,), at = read_file(tiny_run, text, folder=folder, resume=True)
    assert (line.number, at.tokens) == (saved.progress["lines"] + 1, saved.progress["tokens"] + 3)


# --- the command line ---


@pytest.fixture
def read(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable:
    """Run `backstory read RUN ...` on a text; return exit code and output."""

    def call(content: str | bytes, *arguments: str, run: Path = tiny_run, verb: str = "read") -> tuple[int, str, str]:
        path = tmp_path / "typed"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        capfd.readouterr()
        with open(path) as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            code = main([verb, str(run), *arguments])
        return code, *capfd.readouterr()

    return call


def test_what_a_person_sees(read: Callable, tmp_path: Path) -> None:
    code, out, err = read("ann saw the zebra\nand the lion\n", "--session", str(tmp_path / "s"))
    first, second, total, warning = out.splitlines()
    assert code == 0
    assert first.startswith("line 1: 5 words, perplexity ") and first.endswith(" so far, 20.0% of them <unk>")
    assert second.startswith("line 2: 4 words, perplexity ")
    assert total.startswith("2 lines, 9 words, 22.2% of them outside the vocabulary, static reader: perplexity ")
    assert total.endswith(" per word")
    assert warning.startswith(
        "  unknown     22.2% of the words are outside the vocabulary (read as <unk>), so the perplexity "
    )
    assert err.splitlines() == [
        "backstory: words outside the vocabulary are read as <unk>",
        f"backstory: read and saved in {tmp_path / 's'}; continue with --resume",
    ]


def test_what_is_lost_is_counted_over_a_session(read: Callable, tmp_path: Path, tiny_run: Path) -> None:
    """An `<unk>` that the text writes is not lost; a session of before there was a count does not guess."""
    folder = tmp_path / "s"
    read("ann saw the <unk>\n", "--session", str(folder))
    out = read("and the lion\n", "--session", str(folder), "--resume")[1]
    assert "9 words, 11.1% of them written as <unk>, 11.1% of them outside the vocabulary" in out.splitlines()[-2]
    saved = load_reading(folder)
    assert saved is not None and saved.progress.pop("lost") == 1
    vocabulary = load_run(tiny_run).vocabulary
    assert session_state(saved, vocabulary).lost is None and session_state(saved, vocabulary).unknown == 2


def test_tokens_are_shown_with_their_surprisal(read: Callable, tokenized_run: Runs) -> None:
    _, out, _ = read("ann saw\n", "--per-token")
    shown = out.splitlines()[0].split()
    assert shown[::2] == ["ann", "saw", "<eos>"] and all(float(nats) > 0 for nats in shown[1::2])
    _, out, _ = read("a\n", "--per-token", run=tokenized_run("characters"))
    assert out.splitlines()[0].split()[::2] == ["a", r"'\n'"]


def test_byte_level_pieces_are_shown_as_their_text(read: Callable, tokenized_run: Runs) -> None:
    _, out, _ = read("\nann ö\n", "--per-token", run=tokenized_run("pieces"))
    shown, score, _ = out.splitlines()  # the empty line prints nothing
    signs = shown.split()[::2]
    assert "".join(signs) == r"ann␣\xc3\xb6¶" and score.startswith("line 2: ")


def test_nothing_to_read_is_nothing_read(read: Callable, tmp_path: Path) -> None:
    code, out, err = read("", "--session", str(tmp_path / "s"))
    assert (code, out) == (0, "nothing was read: standard input held no text\n")
    assert err == "backstory: read; without text there is no session to save\n"
    assert not (tmp_path / "s").exists()


def test_what_comes_before_a_bad_byte_is_read_and_saved(read: Callable, tmp_path: Path) -> None:
    code, out, err = read(b"ann saw\nbob \xff\n", "--session", str(tmp_path / "s"))
    assert code == 2 and err.startswith("backstory: standard input is not UTF-8 text (byte 12)")
    assert out.startswith("line 1: 3 words") and out.count("\n") == 1
    assert [p.name for p in (tmp_path / "s").iterdir()] == ["reading-3"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--session", "S"], "holds a session; use --resume to go on with it, or another --session"),
        (
            ["--session", "S", "--resume", "--reader", "static"],
            "was saved with the reader learning:rate=0.3, not static",
        ),
        (["--session", "S", "--resume", "--reader", "learning:rate=1"], "learning:rate=0.3, not learning:rate=1"),
        (["--session", "S", "--resume", "--reader", "doubtful"], "not static+doubtful"),
        (["--session", "S", "--resume", "--precision", "bfloat16"], "with the precision float32, not bfloat16"),
        (["--session", "EMPTY", "--resume"], "holds no session to resume"),
        (["--session", "FULL"], "holds something other than a session"),
        (["--resume"], "say which with --session"),
        (["--session", "FULL/file"], "cannot write to"),
    ],
    ids=str,
)
def test_a_session_that_cannot_be_gone_on_with(arguments: list[str], says: str, read: Callable, tmp_path: Path) -> None:
    assert read("ann saw\n", "--session", str(tmp_path / "S"), "--reader", "learning")[0] == 0
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "file").write_text("somebody's")
    before = contents(tmp_path)
    places = [a if a.startswith("-") or (not a.isupper() and "/" not in a) else str(tmp_path / a) for a in arguments]
    code, out, err = read("ann saw\n", *places)
    assert (code, out, err.count("\n")) == (2, "", 1) and says in err
    assert contents(tmp_path) == before
    assert not (tmp_path / "EMPTY").exists()


def test_a_session_whose_reader_came_from_a_plugin_asks_for_it(
    read: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "s")
    assert read("ann saw\n", "--session", folder, "--reader", "learning")[0] == 0
    monkeypatch.delitem(READERS, "learning")
    code, out, err = read("bob saw\n", "--session", folder, "--resume")
    assert (code, out) == (2, "")
    assert "with the reader learning, which is unknown here; give --plugin FILE, if it came from a plugin" in err


def test_another_model_does_not_go_on_with_it(read: Callable, tiny_run: Path, tmp_path: Path) -> None:
    other = other_weights(tiny_run, tmp_path / "other")
    folder = str(tmp_path / "s")
    assert read("ann saw\n", "--session", folder)[0] == 0
    for verb, resume in (("read", ["--resume"]), ("generate", [])):
        code, out, err = read("", "--session", folder, *resume, run=other, verb=verb)
        assert (code, out, err.count("\n")) == (2, "", 1) and "was saved with another model; give that one" in err


@pytest.mark.parametrize(
    "what", ["a tensor", "the document", "cut off", "no manifest", "version", "no tree", "elsewhere"]
)
def test_a_damaged_session_is_refused(what: str, read: Callable, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    assert read("ann saw\n", "--session", str(folder))[0] == 0
    damage, says = DAMAGE[what]
    damage(next(folder.glob("reading-*")))
    before = contents(folder)
    code, out, err = read("ann saw\n", "--session", str(folder), "--resume")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (says if what != "elsewhere" else "is not a saved session") in err
    assert contents(folder) == before


# --- going on with a text ---


@pytest.mark.parametrize("prompt", ["", "ann saw"])
def test_generate_goes_on_from_a_session(prompt: str, read: Callable, tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    assert read("ann sold the oil\nbob sold\n", "--session", str(folder), "--reader", "learning")[0] == 0
    before = contents(folder)
    texts = "".join(bs.generate(tiny_run, prompt, session=folder, tokens=20, seed=3))
    assert contents(folder) == before

    run = load_run(tiny_run)
    reader = adaptive.Learning(run.model)
    saved = load_reading(folder)
    assert saved is not None
    saved.restore(reader)
    first = run.vocabulary.index["<eos>"]
    context = [first, *(run.vocabulary.index[w] for w in prompt.split())]
    ids = list(islice(generate_ids(reader, context, Sampling(), 3, [run.vocabulary.unknown or 0], reset=False), 20))
    joined = run.vocabulary.decode([*context[1:], *ids])
    assert joined.removeprefix(prompt) == texts
    assert texts != "".join(bs.generate(tiny_run, prompt, tokens=20, seed=3))
    code, out, err = read(
        "", "--session", str(folder), "--tokens", "20", "--seed", "3", "--prompt", prompt, verb="generate"
    )
    assert (code, err) == (0, "") and out.strip("\n") == (prompt + texts).strip("\n")


def test_generate_needs_a_session_that_is_there(read: Callable, tmp_path: Path) -> None:
    code, _, err = read("", "--session", str(tmp_path / "nowhere"), verb="generate")
    assert code == 2 and "holds no session; begin one with `backstory read" in err


@pytest.mark.parametrize(
    "readers",
    [
        [{"name": ["static"], "settings": {}}],
        [{"name": {}, "settings": {}}],
        [{"name": "cache", "settings": {}}],
        [{"name": "static", "settings": {}}, {"name": "static", "settings": {}}],
        [],
        "static",
    ],
)
def test_a_session_whose_readers_are_none_is_refused(readers: Any, tmp_path: Path) -> None:
    saved = ReadingCheckpoint(tmp_path, {"readers": readers}, {}, None, {})
    with pytest.raises(UserError, match="is damaged: "):
        _layers(saved)
