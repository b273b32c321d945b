"""Compression and decompression with every core and reader, of any file; damaged, foreign and undecodable codes."""

import dataclasses
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cheats import Cheated, GoldCache, LearnsWhileScoring, OpenGoldCache, PeeksAhead, TrainsOnInputs
from coded_runs import TEXT, run_of, vocabulary_of
from tiers import fast_then_full

import backstory.codec.token_code as token_code
from backstory.cli.main import main
from backstory.codec import compress, decompress
from backstory.codec.code_file import MARK, pack, unpack
from backstory.codec.range_coder import Decoder, Encoder
from backstory.codec.spelling import Unit
from backstory.codec.token_code import code_text, side_by_side
from backstory.config import (
    DNCConfig,
    DualConfig,
    LSTMConfig,
    MixtureConfig,
    MogrifierConfig,
    NTMConfig,
    SpanBufferConfig,
    TransformerConfig,
    TrellisConfig,
)
from backstory.evaluation import evaluate, read
from backstory.readers import Reader, ReaderCapabilities, StaticReader
from backstory.runs.run import Run
from backstory.utils.errors import UserError

PARTS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "mogrifier": {"core": MogrifierConfig(layers=2, hidden=8)},
    "dual": {"dual": DualConfig()},
    "mixture": {"head": MixtureConfig(experts=2)},
    "buffer": {"buffer": SpanBufferConfig(size=6, span=2)},
    "transformer": {"core": TransformerConfig(layers=1, hidden=8, heads=2, window=8)},
    "trellis": {"core": TrellisConfig(levels=5, hidden=8)},
    "ntm": {"core": NTMConfig(layers=(9,), slots=6, width=5)},
    "dnc": {"core": DNCConfig(layers=(9,), slots=6, width=5)},
}
READERS = [
    "static",
    "cache:window=9",
    "dynamic:rule=sgd,rate=0.1",
    "dynamic:rule=nadam,rate=0.01+cache",
    "tempered:temperature=1.2",
]
FILES = {
    "empty": b"",
    "one byte": b"x",
    "zeros": bytes(150),
    "UTF-16": TEXT.encode("utf-16"),
    "a huge line": b"the cat and " * 60,
    "random": np.random.default_rng(0).bytes(150),
    "line ends": TEXT.replace("\n", "\r\n").encode(),
}


@pytest.fixture(scope="module")
def run() -> Run:
    return run_of(vocabulary_of("words"))


@pytest.mark.parametrize(
    ("parts", "reader"),
    fast_then_full(
        [(parts, reader) for parts in PARTS for reader in READERS],
        [*((parts, "static") for parts in ("transformer", "buffer", "dnc")), *(("lstm", reader) for reader in READERS)],
    ),
)
def test_a_text_comes_back_from_every_model_and_reader(parts: str, reader: str) -> None:
    run = run_of(vocabulary_of("words"), **PARTS[parts])
    code = compress(TEXT.encode(), run, reader=reader)
    assert decompress(code.data, run) == TEXT.encode()


@pytest.mark.parametrize(
    ("file", "name"),
    fast_then_full(
        [(file, name) for file in FILES for name in ("words", "characters", "bytes")],
        [*((file, "words") for file in FILES), ("UTF-16", "bytes"), ("random", "characters")],
    ),
)
def test_any_file_comes_back(file: str, name: str) -> None:
    run = run_of(vocabulary_of(name))
    for batch_size in (1, 7):
        code = compress(FILES[file], run, batch_size=batch_size)
        assert decompress(code.data, run) == FILES[file] and code.size == len(FILES[file])


def test_narrow_products_come_back_too(run: Run) -> None:
    code = compress(TEXT.encode(), run, precision="bfloat16", batch_size=3)
    assert decompress(code.data, run) == TEXT.encode()
    assert code.model_bits != compress(TEXT.encode(), run, batch_size=3).model_bits


@pytest.mark.full
def test_the_code_is_as_long_as_the_score(tiny_run: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    text = tiny_corpus / "test.txt"
    figures = evaluate(tiny_run, text=text).figures
    code = compress(text, tiny_run)
    bits = figures.nats_per_token * figures.tokens / np.log(2)
    assert abs(code.model_bits - bits) < 1e-4 * bits
    payload = code.code_size - code.header_size
    assert abs(8 * payload - (code.model_bits + code.spelling_bits + code.check_bits)) <= 9
    assert code.bits_per_byte == (code.model_bits + code.spelling_bits) / text.stat().st_size
    assert figures.open_bits_per_byte == pytest.approx(code.bits_per_byte, rel=1e-6)
    split = evaluate(tiny_run, split="test", out=tmp_path / "out").figures
    assert split.open_bits_per_byte == pytest.approx(figures.open_bits_per_byte, rel=1e-3)


@pytest.mark.full
def test_a_reader_that_learns_gains_in_the_code_what_it_gains_in_the_score(tiny_run: Path, tiny_corpus: Path) -> None:
    reader, text = "dynamic:rule=sgd,rate=0.3,segment=5", tiny_corpus / "test.txt"
    figures = evaluate(tiny_run, text=text, reader=reader).figures
    bits = figures.nats_per_token * figures.tokens / np.log(2)
    assert abs(compress(text, tiny_run, reader=reader).model_bits - bits) < 1e-4 * bits
    assert bits < compress(text, tiny_run).model_bits - 1


class CountsBlocks(StaticReader):
    """Adapts at the end of each of its own blocks, whatever their length, so that these must be as long as in `evaluate`."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.capabilities, self.block = ReaderCapabilities(block_invariant=False, adapts_weights=True), 4
        self.counts = torch.zeros(model.vocabulary_size)

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self.counts = torch.zeros_like(self.counts)

    def predict(self, tokens: torch.Tensor) -> Cheated:
        return Cheated(None, torch.log_softmax(super().predict(tokens).log_probs() + self.counts, 2))

    def observe(self, targets: torch.Tensor) -> None:
        super().observe(targets)
        self.counts = 0.5 * self.counts + torch.bincount(targets.flatten(), minlength=len(self.counts))


def test_a_reader_that_learns_at_the_end_of_a_block_has_its_own_blocks(run: Run) -> None:
    ids = run.vocabulary.encode(TEXT * 3)
    nats = read(CountsBlocks(run.model), ids, 0).nats * len(ids)
    bits, code = encoded(CountsBlocks(run.model), ids)
    assert abs(bits * np.log(2) - nats) < 1e-4 * nats
    assert (decoded(CountsBlocks(run.model), code, len(ids)) == ids).all()


def encoded(reader: Reader, ids: np.ndarray) -> tuple[float, bytes]:
    """Length in bits of token ids, and their code."""
    encoder = Encoder()
    coded = code_text(encoder, reader, 0, side_by_side(len(ids), 1), units=[Unit(int(id), b"", b"") for id in ids])
    return coded.bits["model"], encoder.finish()


def decoded(reader: Reader, code: bytes, tokens: int) -> np.ndarray:
    return code_text(Decoder(code), reader, 0, side_by_side(tokens, 1)).tokens()


# --- cheats ---


class KnowsTheText(StaticReader):
    """Leans towards the next token, because it was given the text in advance."""

    def __init__(self, model: Any, text: np.ndarray) -> None:
        super().__init__(model)
        self.text, self.seen = torch.from_numpy(text).long(), 0

    def predict(self, tokens: torch.Tensor) -> Cheated:
        table = super().predict(tokens).log_probs()
        if len(self.text):
            coming = self.text[self.seen : self.seen + tokens.shape[1]]
            table = torch.log_softmax(table + 5 * torch.nn.functional.one_hot(coming, table.shape[2]), 2)
        return Cheated(None, table)

    def observe(self, targets: torch.Tensor) -> None:
        super().observe(targets)
        self.seen += targets.shape[1]


def test_a_reader_that_knows_the_text_is_not_decoded(run: Run) -> None:
    ids = run.vocabulary.encode(TEXT * 3)
    bits, code = encoded(KnowsTheText(run.model, ids), ids)
    assert bits < 0.7 * encoded(StaticReader(run.model), ids)[0]  # so good a score
    assert (decoded(KnowsTheText(run.model, ids[:0]), code, len(ids)) != ids).any()  # a decoder has no text


@pytest.mark.parametrize("cheat", [OpenGoldCache, PeeksAhead, TrainsOnInputs, LearnsWhileScoring, GoldCache])
def test_a_cheat_gains_nothing_in_the_code(run: Run, cheat: type[StaticReader]) -> None:
    ids = run.vocabulary.encode(TEXT * 3)
    reported = read(cheat(run.model), ids, 0).nats * len(ids) / np.log(2)
    bits, code = encoded(cheat(run.model), ids)
    assert reported < 0.999 * encoded(StaticReader(run.model), ids)[0] < bits + 0.01
    assert (decoded(cheat(run.model), code, len(ids)) == ids).all()  # what it says of each token alone is honest


def test_a_distribution_that_is_none_is_refused(run: Run) -> None:
    ids = run.vocabulary.encode(TEXT)

    class Doubled(StaticReader):
        def predict(self, tokens: torch.Tensor) -> Cheated:
            return Cheated(None, super().predict(tokens).log_probs() + float(np.log(2)))

    with pytest.raises(UserError, match=r"the reader static gives a distribution that sums to 2(\.0\d*)?, not to 1"):
        encoded(Doubled(run.model), ids)


def test_several_rows_of_a_reader_that_learns_are_refused(run: Run) -> None:
    with pytest.raises(UserError, match="reads one row only; use --batch-size 1"):
        compress(b"the cat", run, reader="dynamic:rule=sgd", batch_size=2)


# --- damage ---


def changed(code: bytes, place: int) -> bytes:
    return code[:place] + bytes([code[place] ^ 64]) + code[place + 1 :]


def newer(code: bytes) -> bytes:
    return MARK + bytes([code[4] + 1]) + code[5:]


MISTAKES = {
    "truncated": (lambda code: code[:-3], r"ends after \d+ of \d+ bytes of code; get the whole file, or add --keep"),
    "in the header": (lambda code: code[:60], "ends within its header"),
    "in the mark": (lambda code: code[:7], "ends within its header"),
    "longer": (lambda code: code + b"x", r"has \d+ bytes instead of \d+ bytes of code"),
    "damaged code": (lambda code: changed(code, -5 + len(code)), "is damaged: its code is not what was written"),
    "damaged header": (lambda code: changed(code, 50), "is damaged: its header is not what was written"),
    "newer": (newer, "is of version 3 of the format, but this backstory reads version 2"),
    "foreign": (lambda code: b"PK\3\4 a zip", "is not a file of `backstory compress`"),
    "empty": (lambda code: b"", "is not a file of `backstory compress`"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_file_that_is_damaged_or_foreign_is_one_line(
    mistake: str, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = MISTAKES[mistake]
    file = tmp_path / "text.bks"
    file.write_bytes(change(compress(b"ann saw the tea and more\n" * 3, tiny_run).data))
    assert main(["decompress", str(file), "--model", str(tiny_run)]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(f"backstory: {file}")
    with pytest.raises(UserError, match=message):
        decompress(file, tiny_run)
    assert list(tmp_path.iterdir()) == [file]


def test_what_comes_before_the_damage_is_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_code, "CHECK_EVERY", 8)
    text = (TEXT * 4).encode()
    code = compress(text, run)
    file, out = tmp_path / "text.bks", tmp_path / "text"
    file.write_bytes(changed(code.data, code.header_size + (code.code_size - code.header_size) // 2))
    with pytest.raises(UserError, match=r"cannot be decoded after \d+ of \d+ tokens.*; the first \d+ bytes are saved$"):
        decompress(file, run, out, keep=True)
    kept = out.read_bytes()
    assert len(text) // 4 < len(kept) < len(text) and text.startswith(kept)


def test_a_header_of_nonsense_is_refused(run: Run) -> None:
    header, code = unpack(compress(b"the cat", run).data, "it")
    for changes in (
        {"tokens": -1},
        {"batch_size": 1 << 30},
        {"content": "more"},
        {"size": "7"},
        {"layers": [1]},
        {"layers": []},
        {"tokens": 10**9, "batch_size": 1},
    ):
        with pytest.raises(UserError, match="is damaged: its header is not what was written"):
            unpack(pack(dataclasses.replace(header, **changes), code), "it")
    with pytest.raises(UserError, match="the reader 'odd', which is unknown here"):
        decompress(pack(dataclasses.replace(header, layers=[{"name": "odd"}]), code), run)
    bomb = zlib.compress(b'{"a":"' + bytes(1 << 24) + b'"}')
    with pytest.raises(UserError, match="is damaged"):
        unpack(MARK + bytes([2]) + len(bomb).to_bytes(4, "big") + zlib.crc32(bomb).to_bytes(4, "big") + bomb, "it")


@pytest.mark.full
def test_another_model_is_refused_and_another_machine_named(run: Run) -> None:
    code = compress(TEXT.encode(), run).data
    with pytest.raises(UserError, match="has other weights than the model of this code"):
        decompress(code, run_of(run.vocabulary, LSTMConfig(layers=1)))
    shuffled = dataclasses.replace(run.vocabulary, words=run.vocabulary.words[::-1])
    with pytest.raises(UserError, match="has another vocabulary than the model of this code"):
        decompress(code, dataclasses.replace(run, vocabulary=shuffled))
    header, payload = unpack(code, "it")
    elsewhere = dataclasses.replace(header, machine=header.machine | {"torch": "1.0", "threads": 2})
    with pytest.warns(UserWarning, match=r"was written with torch 1\.0 \(here \d.*\); it comes out only if"):
        assert decompress(pack(elsewhere, payload), run) == TEXT.encode()
    assert torch.get_num_threads() == 1


# --- the command line ---


def test_files_on_the_command_line(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, model = tmp_path / "text.txt", ["--model", str(tiny_run)]
    file.write_bytes(b"ann saw the tea\n" * 4)
    assert main(["compress", str(file), *model, "--batch-size", "2", "--reader", "cache"]) == 0
    shown = capsys.readouterr().out
    assert "text.txt: 64 bytes in " in shown and " bits per byte without header and checksums" in shown
    assert main(["decompress", f"{file}.bks", *model]) == 2
    assert f"{file} exists; choose another place with --out or --overwrite" in capsys.readouterr().err
    assert main(["decompress", f"{file}.bks", *model, "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    assert main(["compress", str(file), *model]) == 2 and capsys.readouterr()
    assert main(["compress", str(file), *model, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size"] == 64
    assert main(["compress", str(tmp_path / "none"), *model]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.full
def test_standard_input_and_output_in_other_processes(tiny_run: Path) -> None:
    import subprocess
    import sys

    def piped(verb: str, data: bytes) -> bytes:
        command = [sys.executable, "-m", "backstory", verb, "-", "--model", str(tiny_run)]
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout

    data = os.urandom(100) + b"ann saw the tea\n" * 20
    assert piped("decompress", piped("compress", data)) == data


def test_the_file_that_is_read_is_not_written_over(tiny_run: Path, tmp_path: Path) -> None:
    text, code = tmp_path / "text.txt", tmp_path / "text.bks"
    text.write_text("ann saw the tea\n")
    compress(text, tiny_run, code)
    before = code.read_bytes()
    for file, work in ((text, compress), (code, decompress)):
        with pytest.raises(UserError, match=rf"{file.name} is the file that is read; choose another file to write"):
            work(str(file), tiny_run, tmp_path / "." / file.name, overwrite=True)
    assert (text.read_text(), code.read_bytes()) == ("ann saw the tea\n", before)
