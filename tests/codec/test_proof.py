"""The proof of an evaluation: it decodes to the text that was scored, at the score, or says what does not hold."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cheats import GoldCache

import backstory as bs
from backstory.cli.main import main
from backstory.codec.code_file import pack, unpack
from backstory.readers import READERS
from backstory.readers.kind import ReaderKind
from backstory.results import result_at
from backstory.utils.errors import UserError

READINGS = [
    {},
    {"reader": "cache:window=20", "batch_size": 7},
    {"reader": "dynamic:rule=sgd,rate=0.3"},
    {"batch_size": 149},
    {"reader": "tempered:temperature=1.3", "split": "valid"},
]

AFTER = [
    {"reader": "dynamic:rule=sgd,rate=0.3,segment=4"},  # which holds a part of a segment at the end of the split
    {"reader": "cache:window=20", "batch_size": 7},
    {"reader": "dynamic:rule=sgd,rate=0.3,segment=7+cache:window=9"},
    {},
]
LINES = [
    {"batch_size": 3},
    {"reader": "dynamic:rule=sgd,rate=0.3,segment=3"},
    {"reader": "cache:window=20"},
    {"reader": "cache:window=20", "batch_size": 100},
]


@pytest.mark.full
@pytest.mark.parametrize("reading", READINGS, ids=str)
def test_a_score_is_proved_in_the_shapes_that_it_was_read_in(reading: dict, tiny_run: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "proof.bks", tmp_path / "out"
    figures = bs.evaluate(tiny_run, proof=file, out=out, **reading).figures
    assert figures.proof is not None and figures.proof.bytes == file.stat().st_size
    assert figures.proof.nats_per_token == pytest.approx(figures.nats_per_token, rel=1e-4)
    assert result_at(out / "result.json").figures.proof == figures.proof
    verified = bs.verify(file, tiny_run)
    assert verified.holds == (reading.get("batch_size", 1) == 1), "the ends of rows are a large part of so short a text"
    assert verified.same_text and verified.tokens == figures.tokens
    assert (verified.nats_per_token, verified.reported) == (figures.proof.nats_per_token, figures.nats_per_token)


def test_a_proof_of_a_text_and_of_another_text(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text, other = (tmp_path / name for name in ("proof.bks", "text.txt", "other.txt"))
    text.write_text("ann saw the tea\n" * 3)
    other.write_text("bob saw the tea\n" * 3)
    assert main(["evaluate", str(tiny_run), str(text), "--proof", str(file)]) == 0
    assert "  proof       proof.bks, " in capsys.readouterr().out
    assert main(["verify", str(file)]) == 0  # the run that it names
    assert (
        "text.txt, it says; name the text with --text, or its corpus with --corpus, to compare"
        in capsys.readouterr().out
    )
    assert main(["verify", str(file), "--text", str(text)]) == 0
    assert "15 words, the same as text.txt" in capsys.readouterr().out
    assert main(["verify", str(file), "--text", str(other)]) == 1
    assert "15 words, NOT other.txt" in capsys.readouterr().out
    assert main(["evaluate", str(tiny_run), str(text), "--proof", str(file)]) == 2
    assert f"{file} exists; choose another place" in capsys.readouterr().err


@pytest.mark.full
def test_a_score_that_is_better_than_the_code_does_not_hold(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = ReaderKind("gold", "scores gold alone", lambda context, settings: GoldCache(context.run.model))
    monkeypatch.setitem(READERS, "gold", gold)
    file = tmp_path / "proof.bks"
    command = ["evaluate", str(tiny_run), "--reader", "gold", "--proof", str(file), "--out", str(tmp_path / "out")]
    assert main(command) == 1, "the audit fails as well"
    assert "less than it takes to decode" in capsys.readouterr().out
    assert main(["verify", str(file), "--json"]) == 1
    verified = json.loads(capsys.readouterr().out)
    assert verified["same_text"] and not verified["holds"] and verified["reported"] < verified["nats_per_token"]
    assert main(["verify", str(file)]) == 1
    assert "% more than reported" in capsys.readouterr().out


def test_what_a_proof_says_of_itself_is_not_believed(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text = tmp_path / "proof.bks", tmp_path / "text.txt"
    text.write_text("ann saw the tea\n" * 3)
    bs.evaluate(tiny_run, text, reader="cache:window=20", proof=file)
    header, payload = unpack(file.read_bytes(), "it")
    assert header.text is not None
    for forged in (replace(header, reader="static"), replace(header, text=header.text | {"unit": "byte"})):
        with pytest.raises(UserError, match=r"its code was made by .*cache.* on words; it was changed after"):
            bs.verify(pack(forged, payload), tiny_run)
    named = replace(header, text=header.text | {"corpus": "ptb", "split": "test"})
    file.write_bytes(pack(named, payload))
    assert main(["verify", str(file), "--text", str(text)]) == 0
    assert "the same as text.txt" in capsys.readouterr().out, "what it was compared with, not what it says"
    worse = replace(header, text=header.text | {"nats_per_token": header.text["nats_per_token"] / 1.05})
    other = tmp_path / "other.txt"
    other.write_text("bob saw the tea\n" * 3)
    file.write_bytes(pack(worse, payload))
    assert main(["verify", str(file), "--text", str(other)]) == 1
    assert "5.0% more than reported" in capsys.readouterr().out, "whatever the text is"
    file.write_bytes(pack(replace(header, text=header.text | {"nats_per_token": 0.0}), payload))
    assert main(["verify", str(file), "--text", str(text)]) == 1
    assert "nats per token, more than reported" in capsys.readouterr().out, "no score is none"


def test_a_proof_in_many_rows_proves_nothing(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last tokens of rows stand in front of the code: a reader could tell them to the rows before."""
    file = tmp_path / "proof.bks"
    out = ["--out", str(tmp_path / "out")]
    assert main(["evaluate", str(tiny_run), "--batch-size", "149", "--proof", str(file), *out]) == 0
    assert "too many rows for so short a text" in capsys.readouterr().out
    assert main(["verify", str(file), "--model", str(tiny_run)]) == 1
    said = capsys.readouterr().out
    assert "the last tokens of its 149 rows, which the decoder has before their turn, take" in said
    assert "NOT proved; read it in fewer rows" in said


@pytest.mark.full
@pytest.mark.parametrize("reading", AFTER, ids=str)
def test_a_score_after_another_split_is_proved_where_that_split_is(
    reading: dict, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "proof.bks"
    figures = bs.evaluate(tiny_run, proof=file, out=tmp_path / "out", after="valid", **reading).figures
    assert figures.proof is not None
    assert figures.proof.nats_per_token == pytest.approx(figures.nats_per_token, rel=1e-4)
    verified = bs.verify(file, tiny_run)
    assert verified.score_holds == (reading.get("batch_size", 1) == 1)
    assert verified.same_text and verified.after == "valid"
    assert verified.nats_per_token == figures.proof.nats_per_token
    header, payload = unpack(file.read_bytes(), "it")
    assert header.after is not None
    changed = replace(header, after=header.after | {"sha256": "0" * 64})
    file.write_bytes(pack(changed, payload))
    assert main(["verify", str(file)]) == 2
    assert "was scored after the valid split of " in capsys.readouterr().err
    with pytest.raises(UserError, match="cannot be decoded"):  # the text before is needed
        bs.verify(pack(replace(header, after=None), payload), tiny_run)


@pytest.mark.full
def test_a_score_after_a_split_of_another_corpus_is_proved_where_that_corpus_is_named(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "proof.bks", str(shutil.copytree(tiny_corpus, tmp_path / "other"))
    for split in ("valid", "test"):
        (Path(other) / f"{split}.txt").write_text((tiny_corpus / f"{split}.txt").read_text()[:200])
    figures = bs.evaluate(tiny_run, proof=file, corpus=other, after="valid", reader="dynamic:rule=sgd,rate=0.3").figures
    assert figures.proof is not None
    assert figures.proof.nats_per_token == pytest.approx(figures.nats_per_token, rel=1e-4)
    assert main(["verify", str(file), "--corpus", other]) == 0
    assert "the same as the test split of other, read after valid" in capsys.readouterr().out
    assert main(["verify", str(file)]) == 2
    assert "after the valid split of other had been read; name that corpus with --corpus" in capsys.readouterr().err
    assert main(["verify", str(file), "--corpus", str(tiny_corpus)]) == 2
    assert "had been read, and that of" in capsys.readouterr().err
    bs.evaluate(tiny_run, proof=file, corpus=other, overwrite=True)
    assert bs.verify(file, tiny_run).same_text is None
    assert bs.verify(file, tiny_run, corpus=other).same_text is True
    assert bs.verify(file, tiny_run, corpus=str(tiny_corpus)).same_text is False


def test_a_text_in_a_field_of_records_is_compared_where_the_field_is_named(
    tiny_run: Path, tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, records = tmp_path / "proof.bks", tmp_path / "records.jsonl"
    lines = (tiny_corpus / "test.txt").read_text().splitlines()[:4]
    records.write_text("".join(json.dumps({"text": "ann", "body": line}) + "\n" for line in lines))
    bs.evaluate(tiny_run, text=records, field="body", proof=file)
    assert main(["verify", str(file), "--text", str(records), "--text.field", "body"]) == 0
    assert "the same as records.jsonl" in capsys.readouterr().out
    assert bs.verify(file, text=records).same_text is False
    assert bs.verify(file, text=records, field="body").holds
    assert main(["verify", str(file), "--text.field", "body"]) == 2
    assert "name it with --text or --corpus" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("reading", LINES, ids=str)
def test_a_score_of_lines_by_themselves_is_proved(
    reading: dict, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text, other = (tmp_path / name for name in ("proof.bks", "text.txt", "other.txt"))
    text.write_text("ann saw the tea\n\nbob\nann saw\nthe tea and bob saw the tea\n" * 2)
    other.write_text(text.read_text().replace("saw\nthe", "saw the\n"))
    figures = bs.evaluate(tiny_run, text, proof=file, each_line=True, **reading).figures
    assert figures.proof is not None
    assert figures.proof.nats_per_token == pytest.approx(figures.nats_per_token, rel=1e-4)
    verified = bs.verify(file, tiny_run, text=text)
    assert verified.holds and verified.same_text and verified.lines == figures.lines == 8
    assert verified.nats_per_token == figures.proof.nats_per_token
    assert main(["verify", str(file), "--text", str(text)]) == 0
    assert " in 8 lines, each by itself, the same as text.txt" in capsys.readouterr().out
    assert bs.verify(file, tiny_run, text=other).same_text is False  # the same words in other lines
    header, payload = unpack(file.read_bytes(), "it")
    with pytest.raises(UserError, match="cannot be decoded after 0 of"):
        bs.verify(pack(replace(header, lines=7), payload), tiny_run)
    with pytest.raises(UserError, match="is damaged: its header"):
        bs.verify(pack(replace(header, lines=0), payload), tiny_run)


def test_what_has_no_proof_or_is_none(tiny_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "proof.bks"
    code = bs.compress(b"ann saw the tea\n", tiny_run).data
    with pytest.raises(UserError, match="is a compressed file, not the proof of an evaluation"):
        bs.verify(code)
    bs.evaluate(tiny_run, "ann saw\n", proof=file)
    with pytest.raises(UserError, match="is the proof of an evaluation, not a file; use `backstory verify`"):
        bs.decompress(file, tiny_run)
    for damaged in (file.read_bytes()[:-2], file.read_bytes()[:-2] + b"no"):
        with pytest.raises(UserError) as told:  # a flag of decompress is no advice
            bs.verify(damaged, tiny_run)
        assert "keep" not in str(told.value) and "get" in str(told.value)
    header, payload = unpack(file.read_bytes(), "it")
    moved = tmp_path / "moved"
    shutil.copytree(tiny_run, moved)
    gone = pack(replace(header, model="hf:nowhere"), payload)
    with pytest.raises(UserError, match="the model of the code, hf:nowhere, is not here; name it with model"):
        bs.verify(gone)
    assert bs.verify(gone, moved).holds
    for text in (None, {}, {**(header.text or {}), "nats_per_token": "good"}):
        with pytest.raises(UserError, match="is damaged: its header"):
            bs.verify(pack(replace(header, text=text), payload), tiny_run)
    with pytest.raises(UserError, match="cannot be decoded after 0 of 3 tokens"):
        bs.verify(pack(replace(header, sha256="0" * 64), payload), tiny_run)
